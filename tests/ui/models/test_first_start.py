"""From no model to a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog
from pytestqt.qtbot import QtBot

from kvchat.errors import KvchatError
from kvchat.ui.app.main_window import MainWindow
from tests.ui.fake_runtime import FakeRuntime
from tests.ui.waiting import until


@pytest.fixture
def runtime(tmp_path: Path) -> FakeRuntime:
    return FakeRuntime(tmp_path, model=None)


async def test_without_a_model_the_page_is_shown(runtime: FakeRuntime, window: MainWindow) -> None:
    assert window.first_start.isVisible()
    assert not window.composer.isVisible()
    assert window.first_start.back.isHidden()


async def test_starter_model_is_wished_and_its_progress_shown(
    runtime: FakeRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    page = window.first_start
    runner: list[str] = []
    page.starter_requested.connect(lambda: runner.append("starter"))
    page.cancel_requested.connect(lambda: runner.append("cancel"))
    qtbot.mouseClick(page.starter, Qt.MouseButton.LeftButton)
    page.show_progress(49_000_000, 98_000_000)
    assert page.bar.value() == 500
    assert page.amount.text() == "49 MB of 98 MB"
    assert page.starter.isHidden()
    qtbot.mouseClick(page.cancel, Qt.MouseButton.LeftButton)
    assert runner == ["starter", "cancel"]
    assert page.starter.isVisible()


async def test_a_starter_that_is_here_keeps_nobody_from_quitting(runtime: FakeRuntime, window: MainWindow) -> None:
    heard: list[bool] = []
    window.quit_requested.connect(lambda: heard.append(True))
    window.first_start.show_progress(98_000_000, 98_000_000)
    assert window.first_start.is_fetching
    window.first_start.show_fetched()
    window.keyboard.actions["quit"].trigger()
    assert heard == [True]


async def test_an_error_is_shown_and_the_choice_comes_back(runtime: FakeRuntime, window: MainWindow) -> None:
    page = window.first_start
    page.show_progress(1, 2)
    page.show_error(KvchatError("Could not be fetched", "No network.", "Pick a file."))
    assert page.error.title.text() == "Could not be fetched"
    assert (page.error.detail.text(), page.error.advice.text()) == ("No network.", "Pick a file.")
    assert page.error.title.isVisible()
    assert page.starter.isVisible()


async def test_a_picked_file_is_used(runtime: FakeRuntime, window: MainWindow, qtbot: QtBot, tmp_path: Path) -> None:
    qtbot.mouseClick(window.first_start.pick, Qt.MouseButton.LeftButton)
    dialog = window.first_start.findChild(QFileDialog)
    assert dialog is not None
    dialog.fileSelected.emit(str(tmp_path / "m.gguf"))
    dialog.close()
    await until(lambda: window.composer.isVisible())
    assert ("use_model", tmp_path / "m.gguf") in runtime.calls
    assert window.strip.model.whole == "m"


async def test_a_file_that_is_no_model_is_refused_on_the_page(runtime: FakeRuntime, window: MainWindow) -> None:
    runtime.refuse = KvchatError("Not a GGUF file", "", "Pick another.")
    window.first_start.pick_requested.emit(Path("/x.txt"))
    await until(lambda: window.first_start.error.title.isVisible())
    assert window.first_start.error.title.text() == "Not a GGUF file"


async def test_a_model_that_comes_by_itself_ends_the_page(runtime: FakeRuntime, window: MainWindow) -> None:
    await runtime.use_model(Path("/models/starter.gguf"))
    await until(lambda: window.composer.isVisible())
