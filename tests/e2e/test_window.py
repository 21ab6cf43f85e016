"""The main use, in the real window with real engines: chat, quit, return, continue at once."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from kvchat.library.remote.starter import installed_starter
from kvchat.ui.models.first_start import starter_title
from tests.e2e.desktop import Desktop
from tests.e2e.home import GREEDY, Home, engine_path, notes
from tests.e2e.waiting import wait_until
from tests.e2e.window import KVCHAT, LONG, left_behind, open_window

pytestmark = pytest.mark.e2e

QUESTION = "Which note was the first?"


@pytest.fixture
def desktop() -> Iterator[Desktop]:
    with Desktop() as made:
        yield made


@pytest.mark.parametrize("engine", ["embedded", "llama-server"])
def test_a_chat_continues_at_once_after_a_restart(desktop, tmp_path, smollm2, engine):
    home = Home(tmp_path / "home")
    home.write_settings(model_path=str(smollm2), engine_path=engine_path(engine), max_tokens=24, **GREEDY)
    with open_window(desktop, home) as first:
        first.send(f"Controllers\n{notes(215)}")
        cold = first.replies(1)[0]["receipt"]
        assert 2500 < cold["prompt_tokens"] < 4000
        first.wait_for_saves(1)
        desktop.key("ctrl+n")
        first.send("Something else entirely, about a violin and a lamp.")
        first.replies(2)
        first.wait_for_saves(2)
        later = home.copy(tmp_path / "later")
        first.open_conversation("Controllers")
        first.wait_for_strip("loaded")
        first.send(QUESTION)
        hot = first.replies(3)[-1]
        first.quit()

    shares = []
    for attempt in range(3):  # other processes can disturb a measurement
        again = later.copy(tmp_path / f"later {attempt}")
        with open_window(desktop, again) as second:
            second.open_conversation("Controllers")
            second.wait_for_strip("loaded")
            second.send(QUESTION)
            restored = second.replies(3)[-1]
            second.quit()
        receipt = restored["receipt"]
        assert receipt["source"] == "disk"
        assert receipt["cached_tokens"] >= 0.98 * receipt["prompt_tokens"]
        assert restored["content"] == hot["content"]
        shares.append((receipt["ttft_ms"] + receipt["restore_ms"]) / cold["ttft_ms"])
        if shares[-1] < 0.05:
            break
    assert min(shares) < 0.05, shares


def test_a_kill_while_streaming_loses_a_second_and_leaves_no_engine(desktop, tmp_path, smollm2):
    home = Home(tmp_path / "home")
    endless = {"engine_path": engine_path("llama-server"), "engine_arguments": "--ignore-eos"}
    home.write_settings(model_path=str(smollm2), **endless, **GREEDY)
    with open_window(desktop, home) as first:
        first.send("Count from one to five hundred, in words, one number per line.")
        wait_until(lambda: [m for m in home.replies("streaming") if m["content"]], seconds=LONG, what="a partial reply")
        assert len(left_behind(home)) > 1
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        wait_until(lambda: not left_behind(home), what="the engine's end")
    partial = home.messages()[-1]["content"]
    assert partial
    with open_window(desktop, home) as second:
        interrupted = wait_until(lambda: home.replies("interrupted"), what="the interrupted reply")
        assert interrupted[0]["content"] == partial
        desktop.find("push button", "Try this reply again")
        second.wait_for_strip("ready")
        desktop.key("ctrl+n")
        second.send("Count from one to five hundred, in words, one number per line.")
        wait_until(lambda: [m for m in home.replies("streaming") if m["content"]], seconds=LONG, what="a new reply")
        desktop.key("Escape")
        wait_until(lambda: home.replies("stopped"), seconds=LONG, what="the stopped reply")
        second.quit()


def test_an_unreadable_model_is_reported_and_another_can_be_chosen(desktop, tmp_path):
    home = Home(tmp_path / "home")
    garbage = tmp_path / "garbage.gguf"
    garbage.write_bytes(b"no model at all" * 100)
    home.write_settings(model_path=str(garbage))
    announcements = desktop.announcements
    with open_window(desktop, home) as only:
        desktop.find("push button", "Choose another model", seconds=LONG)
        announcements.wait_for("This is not a GGUF model", LONG)
        only.wait_for_strip("failed")
        only.send("Are you there?")
        wait_until(home.messages, what="the message on disk")
        assert home.messages()[0]["content"] == "Are you there?"
        places = []
        for _ in range(3):  # a window reopens at its place
            desktop.key("ctrl+comma")
            desktop.find("list", "Pages", seconds=LONG)
            assert only.unlabelled() == []
            places.append(wait_until(lambda: desktop.find("list", "Pages").box, what="the settings"))
            desktop.close_window()
        assert len(set(places)) == 1
        desktop.tray().click("Quit")
        assert only.process.wait(LONG) == 0


def test_without_a_tray_closing_the_window_quits(tmp_path, smollm2):
    home = Home(tmp_path / "home")
    home.write_settings(model_path=str(smollm2))
    with Desktop(tray=False) as bare, open_window(bare, home) as only:
        only.wait_for_strip("ready")

        def quitting() -> bool:
            """Retry: a busy window manager may drop keys, or close the question with delayed ones."""
            with contextlib.suppress(TimeoutError):
                bare.key("alt+F4")
                bare.click(bare.find("push button", "Quit", seconds=20))  # the first close asks
            with contextlib.suppress(subprocess.TimeoutExpired):
                only.process.wait(20)
            return only.process.poll() is not None

        wait_until(quitting, seconds=LONG, what="the end")
        assert only.process.returncode == 0
        assert not left_behind(home)


def test_the_first_start_downloads_the_starter_and_a_second_raises_the_window(desktop, tmp_path):
    home = Home(tmp_path / "home")
    home.write_settings(max_tokens=12, **GREEDY)
    with open_window(desktop, home) as first:
        desktop.click(
            desktop.find("push button", starter_title(is_downloaded=installed_starter() is not None), seconds=LONG)
        )
        first.wait_for_strip("ready")
        first.send("Hello")
        first.replies(1)
        desktop.close_window()
        assert first.process.poll() is None
        with desktop.application(*KVCHAT, KVCHAT_HOME=str(home.folder)) as second:
            assert second.wait(LONG) == 0
        wait_until(desktop.windows, what="the first window")
        first.quit()
    assert list((home.folder / "data" / "models").glob("*.gguf"))
