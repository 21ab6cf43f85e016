"""Quitting while something large is being saved."""

import asyncio
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication, QLabel
from pytestqt.qtbot import QtBot

from kvchat.session.slots import PendingSave
from kvchat.ui.app import tray
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.app.tray import ShutdownDialog, Tray, close_with_progress
from tests.ui.staged_runtime import StagedRuntime


class Slow(StagedRuntime):
    """Runtime whose shutdown ends only when told not to wait."""

    left: PendingSave | None = PendingSave(2_100_000_000, 12.3)

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.told = asyncio.Event()

    @property
    def pending_save(self) -> PendingSave | None:
        return self.left

    def cancel_saving(self) -> None:
        self.told.set()

    async def close(self) -> None:
        await self.told.wait()


def boxes() -> list[ShutdownDialog]:
    return [
        widget for widget in QApplication.topLevelWidgets() if isinstance(widget, ShutdownDialog) and widget.isVisible()
    ]


async def test_it_is_said_how_long_it_takes_and_can_be_left(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tray, "SHOWN_AFTER_S", 0.01)
    runtime = Slow(tmp_path)
    closing = asyncio.create_task(close_with_progress(runtime))
    while not boxes():  # noqa: ASYNC110 - Qt tells of no such thing
        await asyncio.sleep(0.01)
    (box,) = boxes()
    assert "2.1 GB" in box.status.text()
    assert "about 12 s" in box.status.text()
    box.reject()
    assert box.isVisible()
    box.quit_button.click()
    await closing
    assert not boxes()


def said(window: MainWindow) -> str:
    """Return the text of the open question; empty if there is none."""
    question = window.quit_controller.question
    return " ".join(label.text() for label in question.findChildren(QLabel)) if question else ""


async def test_what_other_programs_and_the_library_lose_is_asked_about(
    runtime: StagedRuntime, window: MainWindow
) -> None:
    heard: list[bool] = []
    window.quit_requested.connect(lambda: heard.append(True))
    runtime.api_server.active_requests = [object()]  # type: ignore[list-item]
    window.quit_controller.ask()
    assert "A reply to an app is being generated" in said(window)
    runtime.api_server.active_requests = []
    assert window.quit_controller.question is not None
    window.quit_controller.question.reject()
    runtime.chat.library.processing["a"] = object()  # type: ignore[assignment]
    window.quit_controller.ask()
    assert "Documents are being processed" in said(window)
    assert not heard
    runtime.chat.library.processing.clear()
    window.quit_controller.question.confirm_button.click()
    assert heard


async def test_where_there_is_no_tray_closing_says_once_that_it_quits(
    runtime: StagedRuntime, window: MainWindow
) -> None:
    tray, heard = Tray(runtime, window), []
    window.quit_requested.connect(lambda: heard.append(True))
    window.close()
    assert "no system tray" in said(window)
    assert window.quit_controller.question is not None
    window.quit_controller.question.keep_button.click()
    assert not heard
    assert window.isVisible()
    window.close()
    assert heard == [True], "it has been said"
    tray.close()
