"""What can be done with a message is within reach of a finger and of the keys, and it says when it was written."""

from __future__ import annotations

from datetime import UTC, datetime

from PySide6.QtCore import QPoint, Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QToolButton
from pytestqt.qtbot import QtBot

from kvchat.chat.record.messages import Role
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.messages.message_actions import MessageActions, _QuietButton
from tests.ui.fake_runtime import FakeRuntime
from tests.ui.waiting import until


def seen(window: MainWindow, row: int) -> bool:
    view = window.transcript.views[window.transcript.messages[row].id]
    return any(button.seen for button in view.action_row.findChildren(_QuietButton))


async def talked(runtime: FakeRuntime, window: MainWindow) -> None:
    for role, words in ((Role.ASSISTANT, "Hello."), (Role.USER, "How high?"), (Role.ASSISTANT, "Eight metres.")):
        runtime.chat.write("d", role, words)
    window.chat.open(None)
    window.chat.open("d")
    await until(lambda: len(window.transcript.messages) == 4 and len(window.transcript.views) == 4)


async def test_a_tap_on_a_message_shows_what_can_be_done(furnished: FakeRuntime, window: MainWindow) -> None:
    """Qt makes a click of a tap that nobody takes; the pointer was never there before."""
    await talked(furnished, window)
    assert [seen(window, row) for row in range(4)] == [False, False, False, True]
    view = window.transcript.views[window.transcript.messages[1].id]
    place, left = view.mapTo(window, QPoint(20, 10)), Qt.MouseButton.LeftButton
    QTimer.singleShot(0, lambda: QTest.mouseClick(window.windowHandle(), left, pos=place))  # it lets Qt's loop turn
    await until(lambda: seen(window, 1))
    assert [seen(window, row) for row in range(4)] == [False, True, False, True]


async def test_tab_comes_to_the_buttons_and_shows_them(
    furnished: FakeRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await talked(furnished, window)
    view = window.transcript.views[window.transcript.messages[1].id]
    window.transcript.setFocus()
    for _ in range(40):
        here = QApplication.focusWidget()
        assert here is not None
        qtbot.keyClick(here, Qt.Key.Key_Tab)
        here = QApplication.focusWidget()
        if isinstance(here, QToolButton) and view.isAncestorOf(here):
            break
    assert seen(window, 1)


async def test_a_message_says_when_it_was_written(furnished: FakeRuntime, window: MainWindow) -> None:
    await talked(furnished, window)
    row = window.transcript.views[window.transcript.messages[0].id].action_row
    now = datetime.now(UTC)
    for at, words in ((now, f"{now.astimezone():%H:%M}"), (datetime(2025, 3, 4, 12, tzinfo=UTC), "4 Mar")):
        made = MessageActions(row._style)
        made.add_time(at)
        assert made._time is not None
        assert made._time.text() == words
        made.deleteLater()
    assert row._time is not None
    assert str(furnished.chat.said["d"][0].created_at.year) in row._time.toolTip()
