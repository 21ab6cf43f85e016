"""The tray's icon, menu and behavior. The desktop draws the icon; the menu is kvchat's."""

import sys
from collections.abc import Iterator

import pytest
from PySide6.QtCore import QEvent, Qt
from PySide6.QtWidgets import QApplication, QSystemTrayIcon
from pytestqt.qtbot import QtBot

from kvchat.engine.api.connection import EngineState
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.app.tray import Tray
from kvchat.ui.base.icons import LogoState
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until


@pytest.fixture
def tray(runtime: StagedRuntime, window: MainWindow) -> Iterator[Tray]:
    tray = Tray(runtime, window)
    yield tray
    tray.close()


async def test_tooltip_and_menu_follow_the_engine(runtime: StagedRuntime, window: MainWindow, tray: Tray) -> None:
    assert tray.icon.toolTip() == "kvchat · ready · SmolLM2-135M-Instruct"
    assert [a.isEnabled() for a in (tray.start_action, tray.stop_action, tray.restart_action)] == [False, True, True]
    runtime.set_engine(EngineState.STOPPED)
    assert "stopped" in tray.icon.toolTip()
    assert [a.isEnabled() for a in (tray.start_action, tray.stop_action, tray.restart_action)] == [True, False, False]
    runtime.set_engine(EngineState.FAILED)
    assert [a.isEnabled() for a in (tray.start_action, tray.stop_action, tray.restart_action)] == [True, False, True]


async def test_menu_entries_are_wishes(runtime: StagedRuntime, window: MainWindow, tray: Tray, qtbot: QtBot) -> None:
    tray.restart_action.trigger()
    await until(lambda: ("restart_engine",) in runtime.calls)
    tray.stop_action.trigger()
    await until(lambda: ("stop",) in runtime.calls)
    with qtbot.waitSignal(window.quit_requested, timeout=0):
        tray.quit_action.trigger()
    quick = next(action for action in tray.menu.actions() if action.text() == "Quick question")
    with qtbot.waitSignal(tray.quick_requested, timeout=0):
        quick.trigger()


async def test_toggle_hides_and_shows(runtime: StagedRuntime, window: MainWindow, tray: Tray) -> None:
    assert tray.menu.actions()[0].text() == "Open kvchat"
    assert tray.hide_action.isVisible()
    tray.icon.activated.emit(QSystemTrayIcon.ActivationReason.Trigger)
    assert not window.isVisible()
    assert not tray.hide_action.isVisible()
    tray.menu.actions()[0].trigger()
    assert window.isVisible()
    window.showMinimized()
    tray.menu.actions()[0].trigger()
    assert not window.isMinimized(), "where it is covered or small as well"
    tray.hide_action.trigger()
    assert not window.isVisible()


async def test_on_macos_the_dock_icon_shows_a_hidden_window(
    runtime: StagedRuntime, window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    tray = Tray(runtime, window)
    tray.icon.activated.emit(QSystemTrayIcon.ActivationReason.Trigger)  # as its menu opens
    assert window.isVisible()
    window.hide()
    for is_closed in (False, True):
        QApplication.instance().applicationStateChanged.emit(Qt.ApplicationState.ApplicationActive)
        assert window.isVisible() is not is_closed
        window.hide()
        tray.close()


async def test_closing_goes_to_the_tray_where_there_is_one(
    runtime: StagedRuntime, window: MainWindow, tray: Tray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", staticmethod(lambda: True))
    heard: list[str] = []
    window.quit_controller.hidden_first_time.connect(lambda: heard.append("told"))
    window.quit_requested.connect(lambda: heard.append("quit"))
    for _ in range(2):
        window.show()
        window.close()
        assert not window.isVisible()
    assert heard == ["told"]
    monkeypatch.undo()
    window.show()
    window.close()
    assert window.quit_controller.question is not None, "there it stayed, here it would end: that is said first"
    window.quit_controller.question.confirm_button.click()
    assert heard == ["told", "quit"]


async def test_busy_while_a_reply_runs(runtime: StagedRuntime, window: MainWindow, tray: Tray) -> None:
    window.chat.send_controller.send("Hello")
    await until(lambda: runtime.chat.answering_chats)
    runtime.chat.say("Hi")
    assert tray.logo is LogoState.BUSY
    runtime.chat.finish()
    await until(lambda: tray.logo is LogoState.READY)


async def test_new_and_recent_chats_from_the_menu(runtime: StagedRuntime, window: MainWindow, tray: Tray) -> None:
    for number in range(7):
        runtime.chat.add(f"R&D, chapter {number} " + "and more " * 9, id=f"c{number}")
    await until(lambda: [action.data() for action in tray.recent] == ["c6", "c5", "c4", "c3", "c2"])
    assert tray.recent[0].text().startswith("R&&D, chapter 6")
    assert tray.recent[0].text().endswith("…")
    window.hide()
    tray.recent[2].trigger()
    assert (window.isVisible(), window.chat.current) == (True, "c4")
    window.hide()
    tray.new_chat_action.trigger()
    assert (window.isVisible(), window.chat.current) == (True, None)


async def test_once_closed_it_hears_of_no_chats(runtime: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    tray = Tray(runtime, window)
    runtime.chat.add("Lakes", id="lakes")
    await until(lambda: len(tray.recent) == 1)
    tray.close()
    QApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    with qtbot.captureExceptions() as raised:
        window.chat.conversations.content_changed.emit()
        window.shown_changed.emit()
    assert not raised
