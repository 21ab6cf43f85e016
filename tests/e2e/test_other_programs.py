"""Other programs use the API server of `kvchat serve`: two sessions with a restart between, and all is warm."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from kvchat.engine.process.plan import free_port
from tests.e2e.home import Home, engine_arguments, notes
from tests.e2e.serving import TEMPLATE, Serving, serving
from tests.gateway import agents
from tests.models import starter_model
from tests.models import tiny_model as tiny

pytestmark = pytest.mark.e2e

SYSTEM = "Answer from these notes, or call a tool.\n" + notes(10)
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Ulm"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "It tells.", "parameters": CITY}}
NEW = 40  # tokens of the last question, and of what stands around it
CALL: Any = {"name": "weather", "arguments": '{"city": "Ulm"}'}


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny("llama", heeds=True)


@contextlib.contextmanager
def serving_any_model(home: Home, model: Path, port: int = 0) -> Iterator[Serving]:
    """With a template that heeds tools, and whatever models the programs name."""
    template = home.folder / "template.jinja"
    by_template = f"--chat-template-file {template}"
    home.write_settings(context_size=16384, free_floor_bytes=0, api_any_model=True, engine_arguments=by_template)
    template.write_text(TEMPLATE, "utf-8")
    arguments = "--model", str(model), *engine_arguments("llama-server")
    with serving(home, *arguments, port=port or free_port("127.0.0.1")) as at:
        yield at
        assert at.end(signal.SIGINT) == 0
    assert "Traceback" not in at.errors.read_text("utf-8")


KEPT = ("disk", "warm")  # what the program that was there last goes on from may be put together already


def is_warm(told: dict[str, Any], *sources: str) -> bool:
    return bool(told["source"] in (sources or KEPT) and told["cached"] >= told["prompt"] - NEW > 0)


def test_the_packages_of_openai_and_anthropic(tmp_path):
    """All they can ask comes back in a form they take. A tool is called in the first session and answers in the second.

    What was said and called is warm after the restart, and what follows is hot.
    """
    home, model = Home(tmp_path / "home"), starter_model()
    with serving_any_model(home, model) as server:
        chats = {"openai": _openai(server), "responses": _responses(server), "anthropic": _anthropic(server)}
        assert {one["program"] for one in server.requests()} == {"openai-python", "anthropic-python"}
    home.make_prefill_expensive()
    with serving_any_model(home, model) as server:
        for name, goes_on in chats.items():
            for sources, turn in zip((KEPT, ("hot",)), goes_on(server), strict=True):
                told = server.requests()[-1]
                assert is_warm(told, *sources), json.dumps([name, turn, told])


GoesOn = Callable[[Serving], Iterator[str]]  # the tool's answer, and what is asked then


def _client_of_openai(server: Serving) -> Any:
    from openai import OpenAI  # takes a second, which every run of the quick tests would wait for

    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def _client_of_anthropic(server: Serving) -> Any:
    from anthropic import Anthropic

    return Anthropic(base_url=server.url, api_key="none", max_retries=0)


def _openai(server: Serving) -> GoesOn:
    client = _client_of_openai(server)
    (named,) = (one.id for one in client.models.list())
    assert named == starter_model().stem
    said: list[Any] = [{"role": "system", "content": SYSTEM}]
    for name in ("one", "two"):  # the model is small: it does as was done before
        called = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": name, "type": "function", "function": CALL}],
        }
        said += [{"role": "user", "content": "Weather in Ulm?"}, called]
        said += [{"role": "tool", "tool_call_id": name, "content": "Rain."}, {"role": "assistant", "content": "Rain."}]
    said += [{"role": "user", "content": "Weather in Ulm?"}]
    greedy: Any = {"model": named, "max_tokens": 40, "temperature": 0}

    raw = client.chat.completions.with_raw_response.create(messages=said, **greedy)
    whole = raw.parse()
    assert raw.headers["x-kvchat-source"] == "cold"
    assert whole.usage
    assert int(raw.headers["x-kvchat-prompt"]) == whole.usage.prompt_tokens
    streamed = client.chat.completions.create(messages=said, stream=True, **greedy)
    words = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
    assert words
    shaped: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    answer = client.chat.completions.create(messages=said, response_format=shaped, **greedy)
    assert json.loads(answer.choices[0].message.content or "") == {"city": "Ulm"}

    called = client.chat.completions.create(messages=said, tools=[TOOL], **greedy)
    (made,) = called.choices[0].message.tool_calls or ()
    assert made.type == "function"
    assert json.loads(made.function.arguments) == {"city": "Ulm"}
    parts = client.chat.completions.create(messages=said, tools=[TOOL], stream=True, **greedy)
    calls = [one for chunk in parts if chunk.choices for one in chunk.choices[0].delta.tool_calls or ()]
    assert "".join(one.function.arguments or "" for one in calls if one.function) == made.function.arguments
    said += [called.choices[0].message.model_dump(exclude_none=True)]
    text = client.completions.create(prompt=SYSTEM, **greedy | {"model": "gpt-4o"})
    assert text.choices[0].text
    assert text.model == named

    def goes_on(server: Serving) -> Iterator[str]:
        client = _client_of_openai(server)
        said.append({"role": "tool", "tool_call_id": made.id, "content": "Rain."})
        after = client.chat.completions.create(messages=said, tools=[TOOL], **greedy).choices[0].message
        yield "answered"
        said.extend([after.model_dump(exclude_none=True), {"role": "user", "content": "And?"}])
        client.chat.completions.create(messages=said, tools=[TOOL], **greedy)
        yield "asked again"

    return goes_on


def _responses(server: Serving) -> GoesOn:
    client = _client_of_openai(server)
    asked: Any = {
        "model": "gpt-5-codex",
        "instructions": "Be brief. " + SYSTEM,
        "max_output_tokens": 40,
        "temperature": 0,
        "tools": [{"type": "function", "strict": True, **TOOL["function"]}],
    }
    said: list[Any] = []
    for name in ("one", "two"):
        said += [{"role": "user", "content": "Weather in Ulm?"}, {"type": "function_call", "call_id": name, **CALL}]
        said += [{"type": "function_call_output", "call_id": name, "output": "Rain."}]
        said += [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]}]
    said += [{"role": "user", "content": "Weather in Ulm?"}]
    whole = client.responses.create(input=said, **asked)
    made = next(item for item in whole.output if item.type == "function_call")
    assert json.loads(made.arguments) == {"city": "Ulm"}
    events = list(client.responses.create(input=said, stream=True, **asked))
    last = events[-1]
    assert last.type == "response.completed"
    parts = [one.delta for one in events if one.type == "response.function_call_arguments.delta"]
    assert "".join(parts) == made.arguments
    said += whole.model_dump(exclude_none=True)["output"]

    def goes_on(server: Serving) -> Iterator[str]:
        client = _client_of_openai(server)
        said.append({"type": "function_call_output", "call_id": made.call_id, "output": "Rain."})
        after = client.responses.create(input=said, **asked)
        yield "answered"
        said.extend([*after.model_dump(exclude_none=True)["output"], {"role": "user", "content": "And?"}])
        client.responses.create(input=said, **asked)
        yield "asked again"

    return goes_on


def _anthropic(server: Serving) -> GoesOn:
    client = _client_of_anthropic(server)
    asked: Any = {
        "model": "claude",
        "system": "Heed the notes. " + SYSTEM,
        "max_tokens": 40,
        "extra_body": {"temperature": 0},
    }
    said: list[Any] = []
    for name in ("one", "two"):
        use = {"type": "tool_use", "id": name, "name": "weather", "input": {"city": "Ulm"}}
        result = {"type": "tool_result", "tool_use_id": name, "content": "Rain."}
        said += [{"role": "user", "content": "Weather in Ulm?"}, {"role": "assistant", "content": [use]}]
        said += [{"role": "user", "content": [result]}, {"role": "assistant", "content": "Rain."}]
    said += [{"role": "user", "content": "Weather in Ulm?"}]
    counted = client.messages.count_tokens(model="any", system=asked["system"], messages=said)
    whole = client.messages.create(messages=said, **asked)
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    with client.messages.stream(messages=said, **asked) as stream:
        assert "".join(stream.text_stream) == stream.get_final_text()
    tool: Any = {"name": "weather", "description": "It tells.", "input_schema": CITY}
    called = client.messages.create(messages=said, tools=[tool], **asked)
    used = next(block for block in called.content if block.type == "tool_use")
    assert used.input == {"city": "Ulm"}
    said += [{"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in called.content]}]

    def goes_on(server: Serving) -> Iterator[str]:
        client = _client_of_anthropic(server)
        said.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": used.id, "content": "Rain."}]})
        after = client.messages.create(messages=said, tools=[tool], **asked)
        yield "answered"
        said.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in after.content]})
        client.messages.create(messages=[*said, {"role": "user", "content": "And?"}], tools=[tool], **asked)
        yield "asked again"

    return goes_on


AGENTS: dict[str, tuple[str, Callable[..., agents.Body], str]] = {
    "Claude Code": ("/v1/messages", agents.claude_code, "max_tokens"),
    "Codex": ("/v1/responses", agents.codex, "max_output_tokens"),
    "Cline": ("/v1/chat/completions", agents.cline, "max_tokens"),
    "Aider": ("/v1/chat/completions", agents.aider, "max_tokens"),
    "OpenCode": ("/v1/chat/completions", agents.opencode, "max_tokens"),
}


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen35"])
def test_agents_of_every_shape_go_on_after_a_restart(tmp_path, architecture):
    """A turn in the first session, the next in the second: with a model that can be cut, and one that cannot."""
    home, model = Home(tmp_path / "home"), tiny(architecture, heeds=True)
    with serving_any_model(home, model) as server:
        turns = {name: _turns(server, name) for name in AGENTS}
    home.make_prefill_expensive()
    with serving_any_model(home, model) as server:
        for name, said in turns.items():
            _asked(server, name, *said)
            told = server.requests()[-1]
            assert is_warm(told), json.dumps([name, told])


def _turns(server: Serving, name: str) -> list[agents.Body]:
    """What was said after an agent's first request and after its second; the third follows."""
    said: list[agents.Body] = []
    for words in ("And the lexer?", "And the printer?"):
        reply = _asked(server, name, *said)
        said += [_message(name, "assistant", reply), _message(name, "user", words)]
    return said


def _message(name: str, role: str, words: str) -> agents.Body:
    if name != "Codex":
        return {"role": role, "content": words}
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": words}]}


def _asked(server: Serving, name: str, *said: agents.Body) -> str:
    path, shape, limit = AGENTS[name]
    body = shape(*said) | {limit: 12, "temperature": 0}
    answer = httpx2.post(f"{server.url}{path}", json=body, timeout=240, headers={"user-agent": f"{name}/1.0"})
    assert answer.status_code == 200, answer.text
    server.requests()  # on a busy machine the next would not wait until what this one left is saved
    return "".join(_words(json.loads(line[6:])) for line in answer.text.splitlines() if line.startswith("data: {"))


def _words(event: dict[str, Any]) -> str:
    delta = event.get("delta")
    if isinstance(delta, str):
        return delta
    if isinstance(delta, dict):
        return str(delta.get("text") or "")
    return "".join(choice["delta"].get("content") or "" for choice in event.get("choices") or ())


def test_bench_compares_the_servers(tmp_path):
    """kvchat's and the engine itself; hearth as well, where it is installed."""
    home, model = Home(tmp_path / "home"), tiny("llama", heeds=True)
    arguments = "--tokens", "1500", "--model", str(model), *engine_arguments("llama-server")
    figures = home.bench("gateway", *arguments)
    ours, engine = figures["servers"][:2]
    hearth = ["hearth"] if shutil.which("hearth") else []
    assert [server["name"] for server in figures["servers"]] == ["kvchat", "llama-server", *hearth]
    assert ours["restarted_read"] <= NEW, "the turn before each restart was saved to its end"
    assert engine["restarted_cached"] == 0
    assert ours["disk_ratio"] < 1.5
    assert engine["overhead_ms"] is None
    assert not list((home.folder / "cache").glob("bench-*"))
