"""The time-saved window, its chart and its keys."""

from datetime import timedelta

from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QApplication, QLabel
from pytestqt.qtbot import QtBot

from kvchat.chat.events import ReplyFinished
from kvchat.chat.turn.receipts import MAX_DAYS, REPLY_KINDS
from kvchat.ui.app.main_window import MainWindow
from tests.ui.staged_runtime import TODAY, StagedRuntime, a_receipt, counted
from tests.ui.waiting import until

NONE = Qt.MouseButton.NoButton


async def test_the_sums_where_they_come_from_and_the_days(
    runtime: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    panel = window.side_windows.open_time_saved()
    await until(lambda: panel.statistics is not None)
    assert panel.empty_label.isVisible()
    runtime.chat.counted = counted()
    runtime.events.publish(ReplyFinished("a", "m", a_receipt()))  # the first one
    await until(lambda: not panel.empty_label.isVisible())
    assert panel.total.text() == "About 9 min saved"
    assert panel.estimate.text() == "70 replies in the last 14 days."
    shown = [label.text() for label in panel.findChildren(QLabel) if label.isVisibleTo(panel)]
    for kind in REPLY_KINDS:
        assert shown[shown.index(kind) + 1 : shown.index(kind) + 3][0] == "10"
    runtime.chat.counted = counted(TODAY - timedelta(days=MAX_DAYS - 1))
    runtime.events.publish(ReplyFinished("a", "m", a_receipt()))
    await until(lambda: panel.statistics is runtime.chat.counted)
    panel.saved_bars.setFocus()
    qtbot.keyClick(panel.saved_bars, Qt.Key.Key_Left)
    assert panel.day_label.text() == "20 November: no replies"
    qtbot.keyClick(panel.saved_bars, Qt.Key.Key_Home)
    assert (
        panel.day_label.text() == panel.saved_bars.accessibleDescription() == "23 August: 70 replies; about 9 min saved"
    )
    assert panel.saved_bars.day == 0
    for x, day in ((panel.saved_bars.width() - 12, MAX_DAYS - 1), (2, -1)):
        move = QMouseEvent(QEvent.Type.MouseMove, QPointF(x, 40), QPointF(x, 40), NONE, NONE, Qt.KeyboardModifier(0))
        QApplication.sendEvent(panel.saved_bars, move)
        assert panel.saved_bars.day == day
