"""The page of what was saved, through its plots, its keys and its button."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QApplication, QFileDialog, QLabel
from pytestqt.qtbot import QtBot

from kvchat.chat.events import ReplyFinished
from kvchat.chat.turn.statistics import KINDS, MOST_DAYS
from kvchat.settings import GB
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.colors import DARK, LIGHT, Theme
from kvchat.ui.base.theme import Look
from kvchat.ui.storage.saved_panel import MOST_REASONS, SavedPanel, colour_of
from kvchat.ui.widgets.elided import ElidedLabel
from tests.ui.base.contrast import contrast
from tests.ui.fake_runtime import TODAY, FakeRuntime, a_receipt, counted
from tests.ui.waiting import until
from tests.ui.windows import button

LEFT, NONE = Qt.MouseButton.LeftButton, Qt.MouseButton.NoButton
LONG = "what is kept was made with other settings and " + "some more " * 30


@pytest.fixture
def furnished(runtime: FakeRuntime) -> FakeRuntime:
    runtime.chat.counted = counted([LONG, *(f"reason {number}" for number in range(8))])
    runtime.kept["a"] = 3 * GB
    return runtime


async def opened(window: MainWindow) -> SavedPanel:
    panel = window.side_windows.open_saved()
    await until(lambda: panel.shown is not None and panel.disk.text())
    return panel


def labels(panel: SavedPanel) -> list[str]:
    return [one.text() for one in panel.findChildren(QLabel) if one.isVisibleTo(panel)]


async def test_storage_and_the_palette_lead_to_it(furnished: FakeRuntime, window: MainWindow, qtbot: QtBot) -> None:
    storage = window.side_windows.open_storage()
    qtbot.mouseClick(button(storage, "Time saved…"), LEFT)
    panel = next(one for one in window.findChildren(SavedPanel))
    await until(lambda: panel.shown is not None)
    assert panel.isVisible()
    panel.close()
    palette = window.keyboard.open_palette()
    qtbot.keyClicks(palette.field, "energy")
    qtbot.keyClick(palette.field, Qt.Key.Key_Return)
    await until(panel.isVisible)


async def test_a_new_user_is_told_what_will_be_here(runtime: FakeRuntime, window: MainWindow) -> None:
    panel = await opened(window)
    assert panel.empty.isVisible()
    assert not panel.save.isVisible()
    runtime.chat.counted = counted()
    runtime.events.publish(ReplyFinished("a", "m", a_receipt()))  # the first one
    await until(panel.save.isVisible)
    assert not panel.empty.isVisible()


async def test_the_sums_and_the_same_as_a_table(furnished: FakeRuntime, window: MainWindow) -> None:
    panel = await opened(window)
    assert panel.total.text() == "About 8 min saved"
    assert panel.estimate.text() == "So much less waiting in the last 14 days, over 140 replies."
    assert panel.disk.text() == "3 of 20 GB in use"
    shown = labels(panel)
    for kind in KINDS:
        assert shown[shown.index(kind) + 1 : shown.index(kind) + 3][0] == ("90" if kind == "read again" else "10")


async def test_energy_is_told_where_the_card_tells(furnished: FakeRuntime, window: MainWindow) -> None:
    furnished.watts = 300.0
    panel = await opened(window)
    await until(lambda: "Energy saved: up to 70 Wh, at the 300 W" in panel.estimate.text())


async def test_reasons_the_most_frequent_first_and_a_long_one_gives_way(
    furnished: FakeRuntime, window: MainWindow
) -> None:
    panel = await opened(window)
    reasons = [one for one in panel.findChildren(ElidedLabel) if one.isVisibleTo(panel)]
    assert len(reasons) == MOST_REASONS + 1
    assert reasons[-1].whole == "3 other reasons"
    await until(lambda: reasons[0].text().endswith("…"))
    assert reasons[0].accessibleName() == LONG.strip()
    assert panel.width() < 1000


async def test_a_plot_has_its_colours_where_the_replies_are(
    furnished: FakeRuntime, window: MainWindow, look: Look
) -> None:
    panel = await opened(window)
    image = panel.replies.grab().toImage()
    found = {image.pixelColor(x, y).name() for x in range(image.width()) for y in range(image.height())}
    assert {colour_of(kind, look.theme).name() for kind in KINDS} <= found


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
@pytest.mark.parametrize("kind", KINDS)
def test_each_colour_can_be_told_from_the_page(theme: Theme, kind: str) -> None:
    assert contrast(colour_of(kind, theme).name(), theme.page) >= 3


async def test_arrow_keys_and_the_pointer_tell_of_a_day(
    furnished: FakeRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    furnished.chat.counted = counted(["x"], TODAY - timedelta(days=MOST_DAYS - 1))
    panel = await opened(window)
    panel.replies.setFocus()
    qtbot.keyClick(panel.replies, Qt.Key.Key_Left)
    assert panel.day.text() == "20 November: no replies; 3 of 20 GB on the disk"
    qtbot.keyClick(panel.replies, Qt.Key.Key_Home)
    assert panel.day.text() == panel.replies.accessibleDescription()
    assert panel.day.text().startswith("23 August: 60 replies, 10 still loaded, 10 read ahead, 10 remembered, ")
    assert panel.day.text().endswith("10 first reply, 10 read again; about 8 min saved")
    assert (panel.replies.day, panel.saved.day) == (0, 0)
    for x, day in ((panel.saved.width() - 12, MOST_DAYS - 1), (2, -1)):
        move = QMouseEvent(QEvent.Type.MouseMove, QPointF(x, 40), QPointF(x, 40), NONE, NONE, Qt.KeyboardModifier(0))
        QApplication.sendEvent(panel.saved, move)
        assert (panel.replies.day, panel.saved.day) == (day, day)


async def test_the_table_is_written_whole_or_not_at_all(
    furnished: FakeRuntime, window: MainWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    panel = await opened(window)
    nowhere = tmp_path / "none" / "t.csv"
    for target, notice in ((tmp_path / "t.csv", "Saved"), (nowhere, "The export could not be written")):
        qtbot.mouseClick(panel.save, LEFT)
        dialog = next(one for one in panel.findChildren(QFileDialog) if one.isVisible())
        assert Path(dialog.selectedFiles()[0]).name == "Time saved.csv"
        dialog.fileSelected.emit(str(target))
        dialog.close()
        await until(lambda notice=notice: notice in [one.words[0] for one in panel.notices.on_show])
    assert (tmp_path / "t.csv").read_bytes().startswith(b"\xef\xbb\xbfday,went on from,")
