"""The main job, through the real window with the real engines: chat, quit, come back, go on at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.accessible import Gone
from tests.e2e.desktop import Desktop
from tests.e2e.home import GREEDY, Home, children_of, engine_path, notes
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

KVCHAT = (sys.executable, "-m", "kvchat")
LONG = 60.0  # seconds a slow machine may take for a prefill of 3,000 tokens
QUESTION = "Which note was the first?"


@pytest.fixture
def desktop() -> Iterator[Desktop]:
    with Desktop() as made:
        yield made


class Window:
    """A running kvchat, used as a user would."""

    def __init__(self, desktop: Desktop, home: Home, process: subprocess.Popen[bytes]) -> None:
        self.desktop, self.home, self.process = desktop, home, process

    def say(self, text: str) -> None:
        """Put a text into the composer and press Enter."""
        composer = self.desktop.find("text", "Message")
        composer.set_text(text)
        composer.focus()
        wait_until(lambda: composer.text == text, what="the text in the composer")
        self.desktop.key("Return")

    def replies(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many replies are whole."""
        return wait_until(
            lambda: replies if len(replies := self.home.replies()) >= count else None, seconds=LONG, what="the reply"
        )

    def saved(self, count: int) -> None:
        """Wait until so many conversations are saved, and the strip has said so."""
        wait_until(lambda: len(self.home.slot_files()) >= count, seconds=LONG, what="the save point")
        self.strip_says("saved")

    def strip_says(self, words: str) -> None:
        """Wait until the status strip says this."""
        wait_until(lambda: words in self.strip(), seconds=LONG, what=f"{words!r} in the strip")

    def strip(self) -> str:
        """Everything the status strip says."""
        try:
            strip = self.desktop.find(name="Status")
            return " | ".join(node.name for node in strip.walk() if node.showing and node.name)
        except Gone:
            return ""

    def open_conversation(self, title: str) -> None:
        """Click the conversation in the sidebar whose title begins so."""
        rows = self.desktop.find("list", "Conversations").find_all("list item")
        self.desktop.click(next(row for row in rows if row.name.startswith(title)))

    def quit(self) -> None:
        """Quit from the tray; nothing may stay."""
        below = children_of(self.process.pid)
        assert below, "an engine runs"
        self.desktop.tray().click("Quit")
        assert self.process.wait(30) == 0
        assert not [process for process in below if process.is_running()]


@contextmanager
def window(desktop: Desktop, home: Home, *arguments: str, **environment: str) -> Iterator[Window]:
    with desktop.application(*KVCHAT, *arguments, KVCHAT_HOME=str(home.folder), **environment) as process:
        desktop.find("text", "Message", seconds=LONG)
        yield Window(desktop, home, process)


@pytest.mark.parametrize("engine", ["embedded", "llama-server"])
def test_chat_quit_come_back_go_on_at_once(desktop: Desktop, tmp_path: Path, smollm2: Path, engine: str) -> None:
    home = Home(tmp_path / "home")
    home.write_settings(model_path=str(smollm2), engine_path=engine_path(engine), max_tokens=24, **GREEDY)
    with window(desktop, home) as first:
        first.say(f"Bridges\n{notes(215)}")
        cold = first.replies(1)[0]["receipt"]
        assert 2500 < cold["prompt_tokens"] < 4000
        first.saved(1)
        desktop.key("ctrl+n")
        first.say("Something else entirely, about a violin and a lamp.")
        first.replies(2)
        first.saved(2)
        later = home.copy(tmp_path / "later")
        first.open_conversation("Bridges")
        first.strip_says("restored")
        first.say(QUESTION)
        hot = first.replies(3)[-1]
        first.quit()

    with window(desktop, later) as second:
        second.open_conversation("Bridges")
        second.strip_says("restored")
        second.say(QUESTION)
        restored = second.replies(3)[-1]
        receipt = restored["receipt"]
        assert receipt["source"] == "disk"
        assert receipt["cached_tokens"] >= 0.98 * receipt["prompt_tokens"]
        assert receipt["ttft_ms"] + receipt["restore_ms"] < 0.05 * cold["ttft_ms"]
        assert restored["content"] == hot["content"]
        second.quit()


def test_the_same_reply_hot_in_the_slot_it_was_made_in(desktop: Desktop, tmp_path: Path, smollm2: Path) -> None:
    """Hot in the strict sense: the slot never held anything else. Restored in another process: the same words."""
    home = Home(tmp_path / "home")
    home.write_settings(model_path=str(smollm2), max_tokens=24, **GREEDY)
    with window(desktop, home) as first:
        first.say(notes(60))
        first.replies(1)
        first.saved(1)
        later = home.copy(tmp_path / "later")
        first.say(QUESTION)
        hot = first.replies(2)[-1]
        first.quit()
    assert hot["receipt"]["source"] == "hot"
    restored = later.ask(QUESTION, "--model", str(smollm2), "--max-tokens", "24")
    assert restored["receipt"]["source"] == "disk"
    assert restored["reply"] == hot["content"]


def test_killed_while_streaming_it_loses_a_second_and_leaves_no_engine(
    desktop: Desktop, tmp_path: Path, smollm2: Path
) -> None:
    home = Home(tmp_path / "home")
    home.write_settings(model_path=str(smollm2), **GREEDY)
    with window(desktop, home) as first:
        first.say("Count from one to five hundred, in words, one number per line.")
        wait_until(lambda: [m for m in home.replies("streaming") if m["content"]], seconds=LONG, what="a partial reply")
        below = children_of(first.process.pid)
        assert below
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        psutil.wait_procs(below, timeout=10)
        assert not [process for process in below if process.is_running()]
    partial = home.messages()[-1]["content"]
    assert partial
    with window(desktop, home) as second:
        interrupted = wait_until(lambda: home.replies("interrupted"), what="the interrupted reply")
        assert interrupted[0]["content"] == partial
        desktop.find("push button", "Try this reply again")
        second.strip_says("ready")
        second.say("Thank you.")
        wait_until(lambda: [m for m in home.replies("streaming") if m["content"]], seconds=LONG, what="a new reply")
        desktop.key("Escape")
        wait_until(lambda: home.replies("stopped"), seconds=LONG, what="the stopped reply")
        second.quit()


def test_an_unreadable_model_is_said_on_screen_and_another_can_be_chosen(desktop: Desktop, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    garbage = tmp_path / "garbage.gguf"
    garbage.write_bytes(b"no model at all" * 100)
    home.write_settings(model_path=str(garbage))
    with window(desktop, home) as only:
        desktop.find("push button", "Choose another model", seconds=LONG)
        only.strip_says("failed")
        only.say("Are you there?")
        wait_until(home.messages, what="the message on disk")
        assert home.messages()[0]["content"] == "Are you there?"
        desktop.tray().click("Quit")
        assert only.process.wait(30) == 0


def test_a_second_start_raises_the_first_window(desktop: Desktop, tmp_path: Path, smollm2: Path) -> None:
    home = Home(tmp_path / "home")
    home.write_settings(model_path=str(smollm2))
    with window(desktop, home) as first:
        first.strip_says("ready")
        desktop.key("alt+F4")
        wait_until(lambda: not desktop.windows(), what="the window in the tray")
        assert first.process.poll() is None
        with desktop.application(*KVCHAT, KVCHAT_HOME=str(home.folder)) as second:
            assert second.wait(30) == 0
        wait_until(desktop.windows, what="the first window")
        first.quit()


def test_without_a_tray_closing_the_window_quits(tmp_path: Path, smollm2: Path) -> None:
    home = Home(tmp_path / "home")
    home.write_settings(model_path=str(smollm2))
    with Desktop(tray=False) as bare, window(bare, home) as only:
        only.strip_says("ready")
        below = children_of(only.process.pid)
        bare.key("alt+F4")
        assert only.process.wait(30) == 0
        assert not [process for process in below if process.is_running()]


def test_the_first_start_fetches_the_starter_model_and_chats(desktop: Desktop, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.write_settings(max_tokens=12, **GREEDY)
    with desktop.application(*KVCHAT, KVCHAT_HOME=str(home.folder)) as process:
        only = Window(desktop, home, process)
        desktop.click(desktop.find("push button", "Fetch the starter model (98 MB)", seconds=LONG))
        only.strip_says("ready")
        only.say("Hello")
        only.replies(1)
        only.quit()
    assert list((home.folder / "data" / "models").glob("*.gguf"))
