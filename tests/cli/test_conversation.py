"""`kvchat ask` without a question, as somebody types on a terminal: a real process on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kvchat.library.remote.starter import starter_path
from tests.e2e.home import Home
from tests.engine.waiting import is_alive
from tests.engine_fixtures import FakeEngine

pytestmark = [pytest.mark.fake, pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are Unix's")]
PATIENCE_S = 240.0
_ESCAPES = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]|\r")


class Terminal:
    """A kvchat in a terminal."""

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
        self.said = ""

    def until(self, words: str) -> str:
        """Wait until these words have come, and forget all up to them."""
        latest = time.monotonic() + PATIENCE_S
        while words not in self.said:
            assert time.monotonic() < latest, self.said
            if not self._read():
                raise AssertionError(f"ended before {words!r}: {self.said!r}")
        before, _, self.said = self.said.partition(words)
        return before

    def interrupts(self, words: str) -> None:
        """Press Ctrl+C until these words have come: readline does not hear it between its echo and its waiting."""
        latest = time.monotonic() + PATIENCE_S
        while words not in self.said:
            assert time.monotonic() < latest, self.said
            self.types("\x03")
            again = time.monotonic() + 3
            while words not in self.said and time.monotonic() < again:
                assert self._read(), self.said
        self.until(words)

    def types(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def ends(self) -> int:
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
                heard = os.read(self._ours, 4096)
            except OSError:  # nobody has the other end any more
                return False
            self.said += _ESCAPES.sub("", heard.decode("utf-8", "replace"))
            return bool(heard)
        return self.process.poll() is None


def _take_terminal() -> None:
    """In the child: what is typed as Ctrl+C is a signal for it."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def home(tmp_path: Path, fake_engine: FakeEngine, smollm2: Path) -> Home:
    home = Home(tmp_path / "home")
    home.write_settings(
        model_path=str(smollm2), engine_path=str(fake_engine.path), context_size=8192, free_floor_bytes=0
    )
    return home


@pytest.fixture
def terminal(home: Home) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_terminal(*arguments: str, at: Home = home) -> Terminal:
        opened.append(Terminal(at, *arguments))
        return opened[-1]

    yield open_terminal
    for one in opened:
        with suppress(OSError):
            one.close()


def engines_alive(fake: FakeEngine) -> list[int]:
    return [launch["pid"] for launch in fake.launches() if is_alive(launch["pid"])]


def test_questions_one_after_the_other_and_ctrl_d(terminal, home, fake_engine):
    fake_engine.set(FAKE_REPLY="A first reply.")
    talk = terminal("ask", "--new")
    talk.until("Ctrl+D to quit.")
    talk.until("> ")
    talk.types("Hello\n")
    talk.until("A first reply.")
    talk.until("> ")
    fake_engine.set(FAKE_REPLY="A second one.")
    talk.types("\n")  # nothing is asked
    talk.until("> ")
    talk.types("And nou\x7fw?\n")  # edited
    talk.until("A second one.")
    assert "still loaded" in talk.until("> "), "it is warm between"
    beside = terminal("ask", "--new", "Somebody else")  # sent to the owner over its connection
    beside.until("A second one.")
    assert beside.ends() == 0, beside.said
    talk.types("\x04")
    assert talk.ends() == 0, talk.said
    assert [one["content"] for one in home.messages() if one["role"] == "user"] == [
        "Hello",
        "And now?",
        "Somebody else",
    ]
    kept = home.kept.save_points()
    assert {point.conversation_id for point in kept} == {one["conversation_id"] for one in home.messages()}
    assert {point.audience for point in kept} == {"chats"}
    assert len(fake_engine.launches()) == 1
    assert engines_alive(fake_engine) == []
    assert "Traceback" not in talk.said


def test_ctrl_c_stops_the_reply_and_drops_a_line_but_ends_nothing(terminal, home, fake_engine):
    fake_engine.set(FAKE_REPLY="word " * 5000, FAKE_TOKEN_DELAY=0.01)
    talk = terminal("ask", "--new")
    talk.until("> ")
    talk.types("Tell me a long story\n")
    talk.until("word word word")
    talk.interrupts("> ")
    fake_engine.set(FAKE_REPLY="Short.", FAKE_TOKEN_DELAY=None)
    talk.types("not to be asked")
    talk.until("not to be asked")
    talk.interrupts("Ctrl+D to quit.")
    talk.until("> ")
    talk.types("Once more\n")
    talk.until("Short.")
    talk.until("> ")
    talk.types("\x04")
    assert talk.ends() == 0
    asked = [one["content"] for one in home.messages() if one["role"] == "user"]
    assert asked == ["Tell me a long story", "Once more"]
    assert len(home.replies("stopped")) == 1


def test_sigterm_stops_the_engine_and_ends(terminal, fake_engine):
    talk = terminal("ask", "--new")
    talk.until("> ")
    talk.types("Hello\n")
    talk.until("> ")
    talk.process.send_signal(signal.SIGTERM)
    with contextlib.suppress(OSError):  # it has ended
        talk.types("\n")  # heard now, where readline was between its prompt and its waiting
    assert talk.ends() == 143, talk.said
    assert engines_alive(fake_engine) == []


def test_what_fails_is_said_and_the_next_question_may_be_asked(terminal, fake_engine):
    fake_engine.set(FAKE_EXIT_AT_START="1:error loading model: unknown model architecture: 'x'")
    talk = terminal("ask", "--new")
    talk.until("> ")
    talk.types("Hello\n")
    talk.until("cannot be loaded")
    talk.until("> ")
    fake_engine.set(FAKE_EXIT_AT_START=None, FAKE_REPLY="Here.")
    talk.types("Hello again\n")
    talk.until("Here.")
    talk.until("> ")
    talk.types("\x04")
    assert talk.ends() == 0


@pytest.mark.parametrize("answer", ["n\n", "\x04", "\n"])
def test_without_a_model_the_starter_is_offered(terminal, tmp_path, fake_engine, smollm2, answer):
    fresh = Home(tmp_path / "fresh")
    fresh.write_settings(engine_path=str(fake_engine.path), context_size=2048, free_floor_bytes=0)
    here = starter_path(fresh.folder / "data" / "models")  # so that nothing is left to fetch
    here.parent.mkdir(parents=True)
    here.symlink_to(smollm2)
    fake_engine.set(FAKE_REPLY="Hello to you.")
    talk = terminal("ask", "--new", "Hello", at=fresh)
    talk.until("Download the small starter model (98 MB)? [Y/n] ")
    talk.types(answer)
    if answer == "\n":
        talk.until("Hello to you.")
        assert talk.ends() == 0
        assert json.loads((fresh.folder / "config" / "settings.json").read_text())["model_path"] == str(here)
    else:
        assert talk.ends() == 1
        assert "No model is chosen yet" in talk.said


def test_without_a_terminal_the_question_is_read(home, fake_engine):
    fake_engine.set(FAKE_REPLY="Blue.")
    done = subprocess.run(
        [sys.executable, "-m", "kvchat", "ask", "--new"],
        input=b"Which colour?\n",
        env=os.environ | {"KVCHAT_HOME": str(home.folder)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"Blue.\n"
