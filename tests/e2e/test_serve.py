"""`kvchat serve` and a window with the real engine: one process has it, and the others use it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
import pytest

from kvchat.engine.process.plan import free_port
from tests.e2e.desktop import Desktop
from tests.e2e.home import GREEDY, Home, engine_arguments, notes
from tests.e2e.serving import Serving, serving
from tests.e2e.window import open_window
from tests.models import tiny_model

pytestmark = pytest.mark.e2e


@pytest.mark.skipif(sys.platform == "win32", reason="locks as POSIX has them")
def test_one_process_has_the_engine(tmp_path):
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


def test_beside_a_window_its_engine_answers(tmp_path):
    """No second engine; and no API server, which the settings have off."""
    home = Home(tmp_path / "home")
    model, engine = str(tiny_model("llama")), engine_arguments("llama-server")[1]
    home.write_settings(free_floor_bytes=0, model_path=model, engine_path=engine, max_tokens=12, **GREEDY)
    note = home.folder / "data" / "owner.json"

    def engines() -> list[int]:
        """Of this home alone: other tests have the same model loaded at the same time."""
        listed = [(one.pid, one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
        return [pid for pid, words in listed if model in words and str(home.folder) in " ".join(words)]

    with Desktop() as desktop, open_window(desktop, home) as window:
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
