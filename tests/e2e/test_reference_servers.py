"""The reference MCP servers, called by a real engine's replies in `kvchat ask`."""

import json
from pathlib import Path

import pytest

from kvchat.__main__ import main
from kvchat.engine.discovery.engines import EngineLocation
from tests.bench.shared_prompt import TEMPLATE
from tests.e2e.home import GREEDY, ROOT, Home
from tests.models import tiny_model
from tests.reference_servers import NAMES, reference_call, serving_page

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.mark.parametrize("name", NAMES)
def test_allowed_call(
    tmp_path: Path, real_llama_server: EngineLocation, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    home, template = Home(tmp_path / "home"), tmp_path / "template.jinja"
    template.write_text(TEMPLATE, "utf-8")
    home.write_settings(
        model_path=str(tiny_model("llama")),
        engine_path=str(real_llama_server.path),
        engine_arguments=f"--chat-template-file {template}",
        context_size=8192,
        max_tokens=48,
        **GREEDY,
    )
    with serving_page() as url:
        made = reference_call(name, tmp_path / name, url)
        (home.folder / "config" / "mcp.json").write_text(json.dumps({"mcpServers": {name: made.entry}}))
        monkeypatch.setenv("KVCHAT_HOME", str(home.folder))
        assert main(["tools", "approve", name]) == 0
        forced = ("ask", "--new", "--tools", name, "--allow-tools", "Please help.")
        done = home.run(
            made.tool, json.dumps(made.arguments), *forced, module="tests.e2e.forced_call", cwd=ROOT, timeout=600
        )
    assert done.returncode == 0, done.stderr
    assert f"calling {name}/{made.tool} " in done.stderr
    _system, _question, call, result, reply = home.messages()
    assert made.result in result["content"]
    assert result["state"] == "complete"
    assert reply["receipt"]["cached_tokens"] >= call["receipt"]["prompt_tokens"], "only the call and its result are new"
