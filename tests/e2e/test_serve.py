"""`kvchat serve` and a window with the real engine: one process owns it, and the others use it."""

import json
from pathlib import Path

import psutil
import pytest

from kvchat.engine.process.plan import free_port
from tests.e2e.desktop import Desktop
from tests.e2e.home import GREEDY, Home, engine_arguments, notes
from tests.e2e.serving import Serving, serving
from tests.e2e.window import open_window
from tests.models import tiny_model
from tests.systems import not_on_windows

pytestmark = pytest.mark.e2e


@not_on_windows("uses POSIX locks")
def test_one_process_owns_the_engine(tmp_path):
    """`ask` uses the running engine; a second `serve` refuses to start."""
    home, model = Home(tmp_path / "home"), tiny_model("llama")
    home.write_settings(free_floor_bytes=0, model_path=str(model), engine_path=engine_arguments("llama-server")[1])
    keys = tmp_path / "keys"
    keys.write_text("a-key-of-the-users-own")
    keys.chmod(0o600)
    with serving(home, "--key-file", str(keys), port=free_port("127.0.0.1")) as at:
        asked = home.run("ask", "--new", "--temperature", "0", "--max-tokens", "5", notes(20))
        assert asked.returncode == 0, asked.stderr
        assert asked.stdout.strip()
        assert leaks(at, home, keys, notes(20)[:60]) == []
        again = home.ask("And the first?")
        assert again["receipt"]["cached_tokens"] > 0.8 * again["receipt"]["prompt_tokens"]
        second = home.run("serve", "--port", str(free_port("127.0.0.1")))
        assert second.returncode == 1
        assert "kvchat serve" in second.stderr
        assert "does not load a model twice" in second.stderr
        assert not home.run("serve", "--host", "0.0.0.0", "--port", "1").stdout
        assert at.end() == 0
    assert not (home.folder / "data" / "owner.json").exists()
    assert home.run("ask", "--new", "--max-tokens", "2", "Hello").returncode == 0, "it starts its own engine again"
    answer = home.run("serve", "--host", "0.0.0.0", "--port", str(free_port("127.0.0.1")))
    assert answer.returncode == 1
    assert "needs an API key" in answer.stderr


def leaks(at: Serving, home: Home, key: Path, text: str) -> list[str]:
    """Return command lines and files that reveal a key (the user's, the owner's, the engine's) or the text."""
    engines = psutil.Process(at.process.pid).children()
    owner = json.loads((home.folder / "data" / "owner.json").read_text("utf-8"))
    owners = {owner["key"], owner["api_key"]}
    secrets = {key.read_text("utf-8"), *owners, *(engine.environ()["LLAMA_API_KEY"] for engine in engines)}
    assert len(secrets) == 3 + len(engines) == 4
    command_lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    files = [file for file in home.folder.rglob("*") if file.is_file() and file.name not in ("owner.json", key.name)]
    others = [file for file in files if not file.is_relative_to(home.folder / "data")]

    def content(file: Path) -> bytes:
        try:
            return file.read_bytes()
        except FileNotFoundError:  # a slot file, absorbed meanwhile
            return b""

    return [
        *(line for line in command_lines if any(secret in line for secret in secrets)),
        *(str(file) for file in files if any(secret.encode() in content(file) for secret in secrets)),
        *(str(file) for file in others if text.encode() in content(file)),
    ]


def test_commands_use_the_windows_engine(tmp_path):
    """No second engine starts; the API server stays off as set."""
    home = Home(tmp_path / "home")
    model, engine = str(tiny_model("llama")), engine_arguments("llama-server")[1]
    home.write_settings(free_floor_bytes=0, model_path=model, engine_path=engine, max_tokens=12, **GREEDY)
    note = home.folder / "data" / "owner.json"

    def engines() -> list[int]:
        """Return the engines of this home; other tests may use the same model at the same time."""
        processes = [(process.pid, process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
        return [pid for pid, command in processes if model in command and str(home.folder) in " ".join(command)]

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
