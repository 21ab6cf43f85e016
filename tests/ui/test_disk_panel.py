"""The disk panel over the fake store."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from kvchat.settings import GB
from kvchat.ui.confirm import ConfirmDialog
from kvchat.ui.disk_panel import DiskPanel
from kvchat.ui.main_window import MainWindow
from tests.ui.fake_runtime import FakeRuntime
from tests.ui.waiting import until


@pytest.fixture
def furnished(runtime: FakeRuntime) -> FakeRuntime:
    for id, title, size in (("a", "Thesis", 136_000_000), ("b", "Jeju", 900_000_000)):
        runtime.chat.add(title, id=id)
        runtime.kept[id] = size
    runtime.kept["gone"] = 1_000_000
    runtime.set_aside = 12_000_000
    return runtime


async def opened(window: MainWindow) -> DiskPanel:
    panel = window.open_disk_panel()
    await until(lambda: len(panel.rows) == 3)
    return panel


async def test_shows_what_is_kept_largest_first(furnished: FakeRuntime, window: MainWindow) -> None:
    panel = await opened(window)
    assert [(row.title.whole, row.amount.text()) for row in panel.rows.values()] == [
        ("Jeju", "900 MB"),
        ("Thesis", "136 MB"),
        ("A conversation that is gone", "1 MB"),
    ]
    assert panel.total.text() == "1 of 20 GB in use"
    for words in ("212 GB free", "Below 2 GB nothing is saved", "12 MB in files that were found bad"):
        assert words in panel.free.text()


async def test_delete_one(furnished: FakeRuntime, window: MainWindow, qtbot: QtBot) -> None:
    panel = await opened(window)
    qtbot.mouseClick(panel.rows["b"].delete, Qt.MouseButton.LeftButton)
    await until(lambda: set(panel.rows) == {"a", "gone"})
    assert ("delete_save_points", "b") in furnished.calls
    assert "b" in furnished.chat.talks


async def test_delete_all_asks_first(furnished: FakeRuntime, window: MainWindow, qtbot: QtBot) -> None:
    panel = await opened(window)
    qtbot.mouseClick(panel.delete_all, Qt.MouseButton.LeftButton)
    question = panel.findChild(ConfirmDialog)
    assert question is not None
    assert furnished.kept
    qtbot.mouseClick(question.yes, Qt.MouseButton.LeftButton)
    await until(lambda: not panel.rows)
    assert ("delete_save_points", None) in furnished.calls


async def test_set_the_quota(furnished: FakeRuntime, window: MainWindow, qtbot: QtBot) -> None:
    panel = await opened(window)
    assert panel.quota.value() == 20.0
    panel.quota.setValue(7.5)
    qtbot.mouseClick(panel.apply, Qt.MouseButton.LeftButton)
    await until(lambda: furnished.settings.quota_bytes == 7.5 * GB)
    await until(lambda: panel.total.text() == "1 of 7.5 GB in use")


async def test_enter_in_the_field_sets_the_quota(furnished: FakeRuntime, window: MainWindow, qtbot: QtBot) -> None:
    panel = await opened(window)
    field = panel.quota.lineEdit()
    field.selectAll()
    qtbot.keyClicks(field, "5")
    qtbot.keyClick(field, Qt.Key.Key_Return)
    await until(lambda: furnished.settings.quota_bytes == 5 * GB)
    assert panel.isVisible()


async def test_opens_from_the_line_at_the_bottom(furnished: FakeRuntime, window: MainWindow, qtbot: QtBot) -> None:
    qtbot.mouseClick(window.sidebar.usage_button, Qt.MouseButton.LeftButton)
    panel = window.findChild(DiskPanel)
    assert panel is not None
    assert panel.isVisible()
