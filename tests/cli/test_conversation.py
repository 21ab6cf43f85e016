"""`kvchat ask` without a question: a real process on a pseudo-terminal."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from kvchat.library.remote.starter import starter_path
from tests.e2e.home import Home
from tests.engine.waiting import is_alive
from tests.engine_fixtures import FakeEngine

pty = pytest.importorskip("pty", reason="Windows has no pseudo-terminals")
pytestmark = pytest.mark.long
PATIENCE_S = 240.0
_ESCAPES = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]|\r")


class Terminal:
    def __init__(self, home: Home, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvchat", *arguments],
            env=os.environ | {"KVCHAT_HOME": str(home.folder), "TERM": "xterm", "PYTHONUTF8": "1"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        self.output = ""

    def wait_for(self, text: str, keys: str = "") -> str:
        """Wait for this output, typing `keys` every three seconds; return what came before."""
        deadline, next_keys = time.monotonic() + PATIENCE_S, 0.0
        while text not in self.output:
            assert time.monotonic() < deadline, self.output
            if keys and time.monotonic() > next_keys:
                self.type(keys)
                next_keys = time.monotonic() + 3
            assert self._read(), f"ended before {text!r}: {self.output!r}"
        before, _, self.output = self.output.partition(text)
        return before

    def interrupt_until(self, text: str) -> None:
        """Press Ctrl+C until this output: readline ignores it between its echo and its waiting."""
        self.wait_for(text, "\x03")

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait(self) -> int:
        while self._read():
            pass
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self) -> bool:
        if select.select([self._ours], [], [], 0.2)[0]:
            try:
                data = os.read(self._ours, 4096)
            except OSError:  # the other end is closed
                return False
            self.output += _ESCAPES.sub("", data.decode("utf-8", "replace"))
            return bool(data)
        return self.process.poll() is None


def _take_terminal() -> None:
    """Make the pseudo-terminal the controlling one, so that Ctrl+C signals this process, the child."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(home: Home) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_terminal(*arguments: str, at: Home = home) -> Terminal:
        opened.append(Terminal(at, *arguments))
        return opened[-1]

    yield open_terminal
    for each in opened:
        with suppress(OSError):
            each.close()


def questions(home: Home) -> list[str]:
    return [message["content"] for message in home.messages() if message["role"] == "user"]


def engines_alive(engine: FakeEngine) -> list[int]:
    return [launch["pid"] for launch in engine.launches() if is_alive(launch["pid"])]


def test_several_questions_and_ctrl_d(terminal, home, fake_engine):
    fake_engine.set(FAKE_REPLY="A first reply.")
    chat = terminal("ask", "--new")
    chat.wait_for("Ctrl+D to quit.")
    chat.wait_for("> ")
    chat.type("Hello\n")
    chat.wait_for("A first reply.")
    chat.wait_for("> ")
    fake_engine.set(FAKE_REPLY="A second one.")
    chat.type("\n")  # nothing is asked
    chat.wait_for("> ")
    chat.type("And nou\x7fw?\n")  # edited
    chat.wait_for("A second one.")
    assert "still loaded" in chat.wait_for("> "), "the slot keeps the chat"
    other = terminal("ask", "--new", "Somebody else")  # sent to the owner over its connection
    other.wait_for("A second one.")
    assert other.wait() == 0, other.output
    chat.type("\x04")
    assert chat.wait() == 0, chat.output
    assert questions(home) == ["Hello", "And now?", "Somebody else"]
    points = home.kept.save_points()
    assert {point.conversation_id for point in points} == {message["conversation_id"] for message in home.messages()}
    assert {point.audience for point in points} == {"chats"}
    assert len(fake_engine.launches()) == 1
    assert engines_alive(fake_engine) == []
    assert "Traceback" not in chat.output


def test_ctrl_c_stops_the_reply_or_drops_the_line_but_does_not_quit(terminal, home, fake_engine):
    fake_engine.set(FAKE_REPLY="word " * 5000, FAKE_TOKEN_DELAY=0.01)
    chat = terminal("ask", "--new")
    chat.wait_for("> ")
    chat.type("Tell me a long story\n")
    chat.wait_for("word word word")
    chat.interrupt_until("> ")
    fake_engine.set(FAKE_REPLY="Short.", FAKE_TOKEN_DELAY=None)
    chat.type("not to be asked")
    chat.wait_for("not to be asked")
    chat.interrupt_until("Ctrl+D to quit.")
    chat.wait_for("> ")
    chat.type("Once more\n")
    chat.wait_for("Short.")
    chat.wait_for("> ")
    chat.type("\x04")
    assert chat.wait() == 0
    assert questions(home) == ["Tell me a long story", "Once more"]
    assert len(home.replies("stopped")) == 1


def test_sigterm_stops_the_engine_and_quits(terminal, fake_engine):
    chat = terminal("ask", "--new")
    chat.wait_for("> ")
    chat.type("Hello\n")
    chat.wait_for("> ")
    chat.process.send_signal(signal.SIGTERM)
    with contextlib.suppress(OSError):  # it has ended
        chat.type("\n")  # handled now, if readline was between its prompt and its waiting
    assert chat.wait() == 143, chat.output
    assert engines_alive(fake_engine) == []


def test_a_failure_is_reported_and_the_chat_continues(terminal, fake_engine):
    fake_engine.set(FAKE_EXIT_AT_START="1:error loading model: unknown model architecture: 'x'")
    chat = terminal("ask", "--new")
    chat.wait_for("> ")
    chat.type("Hello\n")
    chat.wait_for("cannot be loaded")
    chat.wait_for("> ")
    fake_engine.set(FAKE_EXIT_AT_START=None, FAKE_REPLY="Here.")
    chat.type("Hello again\n")
    chat.wait_for("Here.")
    chat.wait_for("> ")
    chat.type("\x04")
    assert chat.wait() == 0


def test_a_call_that_runs_code_is_asked_about(terminal, home, fake_engine):
    pytest.importorskip("pydantic_monty", reason="no wheel for this system")
    call = {"name": "run_python", "arguments": json.dumps({"code": "print(6 * 7)"})}
    fake_engine.set(FAKE_CALLS=json.dumps([[call]]), FAKE_REPLY="Done.")
    chat = terminal("ask", "--new", "--tools", "kvchat/run_python")
    chat.wait_for("> ")
    chat.type("What is six times seven?\n")
    chat.wait_for('The model wants to call kvchat/run_python {"code": "print(6 * 7)"}')
    chat.wait_for("Allow this call? [y]es, in this [c]hat, [a]lways, [N]o: ")
    chat.type("y\n")
    chat.wait_for("calling kvchat/run_python")
    chat.wait_for("Done.")
    chat.wait_for("> ")
    chat.type("\x04")
    assert chat.wait() == 0, chat.output
    assert [message["content"] for message in home.messages() if message["role"] == "tool"] == ["42"]
    assert "Traceback" not in chat.output


@pytest.mark.parametrize("answer", ["n\n", "\x04", "\n"])
def test_without_a_model_the_starter_is_offered(terminal, tmp_path, fake_engine, smollm2, answer):
    fresh = Home(tmp_path / "fresh")
    fresh.write_settings(engine_path=str(fake_engine.path), context_size=2048, free_floor_bytes=0)
    path = starter_path(fresh.folder / "data" / "models")  # nothing is left to download
    path.parent.mkdir(parents=True)
    path.symlink_to(smollm2)
    fake_engine.set(FAKE_REPLY="Hello to you.")
    chat = terminal("ask", "--new", "Hello", at=fresh)
    chat.wait_for("Download the small starter model (98 MB)? [Y/n] ")
    chat.type(answer)
    if answer == "\n":
        chat.wait_for("Hello to you.")
        assert chat.wait() == 0
        assert json.loads((fresh.folder / "config" / "settings.json").read_text())["model_path"] == str(path)
    else:
        assert chat.wait() == 1
        assert "No model is chosen yet" in chat.output
