"""`kvchat serve` with the real engine, spoken to by the packages that programs use, with a restart in between."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvchat.engine.running.plan import free_port
from tests.e2e.desktop import Desktop
from tests.e2e.home import GREEDY, Home, engine_arguments, notes
from tests.e2e.serving import Serving, serving
from tests.e2e.window import open_window
from tests.models import tiny_model

pytestmark = pytest.mark.e2e

SYSTEM = "You title chats. " + notes(80)
TOOL = {"name": "measure", "description": "Measures a bridge.", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def desktop() -> Iterator[Desktop]:
    with Desktop() as running:
        yield running


class Clients:
    """What two programs ask, one like OpenCode, one like Claude Code."""

    def __init__(self, at: Serving) -> None:
        import anthropic  # both take seconds, and are not there where only the quick tests run
        import openai

        self.openai = openai.OpenAI(base_url=f"{at.url}/v1", api_key="none", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=at.url, api_key="none", max_retries=0)
        self.unknown = (openai.NotFoundError, anthropic.NotFoundError)

    def close(self) -> None:
        self.openai.close()
        self.anthropic.close()

    def title(self, of: str = "bridges") -> Any:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Name this chat about {of}."}]
        return self.openai.chat.completions.with_raw_response.create(
            model="kvchat", messages=messages, max_tokens=8, temperature=0
        )

    def chat(self, *words: str) -> tuple[str, Any]:
        roles = ("user", "assistant")
        messages = [{"role": roles[n % 2], "content": one} for n, one in enumerate(words)]
        with self.openai.chat.completions.with_streaming_response.create(
            model="kvchat", messages=messages, max_tokens=8, temperature=0, stream=True
        ) as answer:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in answer.parse() if chunk.choices)
            return text, answer.headers

    def message(self, *turns: Any) -> tuple[list[Any], Any]:
        raw = self.anthropic.messages.with_raw_response.create(
            model="kvchat",
            system=[{"type": "text", "text": notes(120, start=500)}],
            messages=list(turns),
            tools=[TOOL],
            max_tokens=8,
            extra_body={"temperature": 0},
        )
        return [block.model_dump(exclude_none=True) for block in raw.parse().content], raw.headers


def assert_warm(headers: Any, *sources: str) -> None:
    assert headers["x-kvchat-source"] in (sources or ("disk", "warm")), dict(headers)
    assert int(headers["x-kvchat-found"]) > 300


@pytest.mark.parametrize("architecture", ["llama", "qwen35", "gemma3"])
def test_programs_go_on_warm_after_a_restart(tmp_path: Path, architecture: str) -> None:
    """Two programs in turns, each with a prompt of its own; then all of it again, in another process."""
    home, port = Home(tmp_path / "home"), free_port("127.0.0.1")
    home.write_settings(free_floor_bytes=0, context_size=8192)
    common = ("--model", str(tiny_model(architecture)), *engine_arguments("llama-server"))
    first_words, question = notes(120), {"role": "user", "content": "Which bridge is the longest?"}
    with serving(home, *common, port=port) as at, closing(Clients(at)) as ours:
        title, _ = ours.title(), at.requests()  # on a busy machine the next does not wait until what it left is saved
        (reply, _), _ = ours.chat(first_words), at.requests()
        (blocks, _), _ = ours.message(question), at.requests()
        ours.title("rivers")  # where states cannot be cut, the second that begins so leaves one there
        assert [one.id for one in ours.openai.models.list()] == [tiny_model(architecture).stem]
        assert ours.anthropic.messages.count_tokens(model="kvchat", messages=[question]).input_tokens > 5
        assert at.end(signal.SIGINT if architecture == "llama" else signal.SIGTERM) == 0
    home.as_if_read_slowly()
    with serving(home, *common, port=port) as at, closing(Clients(at)) as ours:
        again = ours.title()
        assert again.parse().choices[0].message.content == title.parse().choices[0].message.content
        assert_warm(again.headers)
        _, headers = ours.chat(first_words, reply, "And the second?")
        assert_warm(headers)
        _, headers = ours.message(question, {"role": "assistant", "content": blocks}, question)
        assert_warm(headers)
        cached, prompt = int(headers["x-kvchat-cached"]), int(headers["x-kvchat-prompt"])
        assert cached >= 0.95 * (prompt - 30)
        responses = ours.openai.responses.create(model="kvchat", input="Hello", max_output_tokens=4)
        assert responses.output_text
        made_up = ours.openai.chat.completions.create(model="gpt-4o", messages=[question], max_tokens=1)
        assert made_up.model == tiny_model(architecture).stem
        assert at.end() == 0
    home.write_settings(free_floor_bytes=0, context_size=8192, door_any_model=False)
    with serving(home, *common, port=port) as at, closing(Clients(at)) as ours:
        with pytest.raises(ours.unknown, match="There are"):
            ours.openai.chat.completions.create(model="gpt-4o", messages=[question])
        with pytest.raises(ours.unknown, match="There are"):
            ours.anthropic.messages.create(model="claude", messages=[question], max_tokens=1)
        assert at.end() == 0
    assert "Traceback" not in (home.folder / "serve.errors").read_text("utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="locks as POSIX has them")
def test_one_process_has_the_engine(tmp_path: Path) -> None:
    """`ask` uses the engine that is there; a second `serve` says that it cannot."""
    home, model = Home(tmp_path / "home"), tiny_model("llama")
    home.write_settings(free_floor_bytes=0, model_path=str(model), engine_path=engine_arguments("llama-server")[1])
    keys = tmp_path / "keys"
    keys.write_text("a-key-of-the-users-own")
    keys.chmod(0o600)
    with serving(home, "--key-file", str(keys), port=free_port("127.0.0.1")) as at:
        asked = home.run("ask", "--new", "--temperature", "0", "--max-tokens", "5", notes(20))
        assert asked.returncode == 0, asked.stderr
        assert asked.stdout.strip()
        assert on_show(at, home, keys, notes(20)[:60]) == []
        again = home.ask("And the first?")
        assert again["receipt"]["cached_tokens"] > 0.8 * again["receipt"]["prompt_tokens"]
        second = home.run("serve", "--port", str(free_port("127.0.0.1")))
        assert second.returncode == 1
        assert "kvchat serve" in second.stderr
        assert "not loaded twice" in second.stderr
        assert not home.run("serve", "--host", "0.0.0.0", "--port", "1").stdout
        assert at.end() == 0
    assert not (home.folder / "data" / "owner.json").exists()
    assert home.run("ask", "--new", "--max-tokens", "2", "Hello").returncode == 0, "it has an engine of its own again"
    answer = home.run("serve", "--host", "0.0.0.0", "--port", str(free_port("127.0.0.1")))
    assert answer.returncode == 1
    assert "needs an API key" in answer.stderr


def on_show(at: Serving, home: Home, key: Path, words: str) -> list[str]:
    """Where others, or logs, have a key (the user's, the owner's, the engine's) or what was said."""
    engines = psutil.Process(at.process.pid).children()
    told = json.loads((home.folder / "data" / "owner.json").read_text("utf-8"))
    owners = {told["key"], told["api_key"]}
    secrets = {key.read_text("utf-8"), *owners, *(one.environ()["LLAMA_API_KEY"] for one in engines)}
    assert len(secrets) == 3 + len(engines) == 4
    listed = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    files = [one for one in home.folder.rglob("*") if one.is_file() and one.name not in ("owner.json", key.name)]
    others = [one for one in files if not one.is_relative_to(home.folder / "data")]
    return [
        *(words for words in listed if any(secret in words for secret in secrets)),
        *(str(one) for one in files if any(secret.encode() in one.read_bytes() for secret in secrets)),
        *(str(one) for one in others if words.encode() in one.read_bytes()),
    ]


def test_beside_a_window_its_engine_answers(desktop: Desktop, tmp_path: Path) -> None:
    """No second engine; and no door for others, which the settings have shut."""
    home = Home(tmp_path / "home")
    model, engine = str(tiny_model("llama")), engine_arguments("llama-server")[1]
    home.write_settings(free_floor_bytes=0, model_path=model, engine_path=engine, max_tokens=12, **GREEDY)
    note = home.folder / "data" / "owner.json"

    def engines() -> list[int]:
        """Of this home alone: other tests have the same model loaded at the same time."""
        listed = [(one.pid, one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
        return [pid for pid, words in listed if model in words and str(home.folder) in " ".join(words)]

    with open_window(desktop, home) as window:
        window.exchange(notes(30))
        before = engines()
        assert len(before) == 1
        asked = home.run("ask", "--temperature", "0", "--max-tokens", "5", "And the first?")
        assert asked.returncode == 0, asked.stderr
        assert engines() == before
        assert note.stat().st_mode & 0o077 == 0
        assert home.run("serve", "--port", str(free_port("127.0.0.1"))).returncode == 1
        assert len(home.replies()) == 2
        window.quit()
    assert not note.exists()
