"""The time-saved window, its chart and its keys."""

from datetime import timedelta

import pytest
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QApplication, QLabel
from pytestqt.qtbot import QtBot

from kvchat.chat.events import ReplyFinished
from kvchat.chat.turn.receipts import MAX_DAYS, REPLY_KINDS
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.storage.saved_panel import SavedPanel
from tests.ui.staged_runtime import TODAY, StagedRuntime, a_receipt, counted
from tests.ui.waiting import until

LEFT, NONE = Qt.MouseButton.LeftButton, Qt.MouseButton.NoButton


@pytest.fixture
def furnished(runtime: StagedRuntime) -> StagedRuntime:
    runtime.chat.counted = counted()
    return runtime


async def opened(window: MainWindow) -> SavedPanel:
    panel = window.side_windows.open_saved()
    await until(lambda: panel.statistics is not None)
    return panel


async def test_the_sums_and_where_they_come_from(runtime: StagedRuntime, window: MainWindow) -> None:
    panel = await opened(window)
    assert panel.empty_label.isVisible()
    runtime.chat.counted = counted()
    runtime.events.publish(ReplyFinished("a", "m", a_receipt()))  # the first one
    await until(lambda: not panel.empty_label.isVisible())
    assert panel.total.text() == "About 9 min saved"
    assert panel.estimate.text() == "In the last 14 days, across 70 replies."
    shown = [label.text() for label in panel.findChildren(QLabel) if label.isVisibleTo(panel)]
    for kind in REPLY_KINDS:
        assert shown[shown.index(kind) + 1 : shown.index(kind) + 3][0] == "10"


async def test_arrow_keys_and_the_pointer_tell_of_a_day(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    furnished.chat.counted = counted(TODAY - timedelta(days=MAX_DAYS - 1))
    panel = await opened(window)
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
