"""Organizing chats: several at once, folders, archive, pinning, and undo."""

from collections.abc import Collection

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QInputDialog, QLineEdit, QMenu, QPushButton
from pytestqt.qtbot import QtBot

from kvchat.chat.record.messages import Conversation
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from kvchat.ui.sidebar.conversation_list import Arrangement, Row, SortOrder
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import child, on_show

pytestmark = pytest.mark.slow

CTRL = Qt.KeyboardModifier.ControlModifier


def listed(window: MainWindow) -> str:
    """Return the listed ids, in order."""
    return "".join(chat.id for chat in window.sidebar.model.chats)


def click(window: MainWindow, qtbot: QtBot, id: str, modifier: Qt.KeyboardModifier) -> None:
    view = window.sidebar.list
    place = view.visualRect(window.sidebar.model.index_of(id)).center()
    qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, modifier, place)


def choose(window: MainWindow, id: str, *path: str) -> None:
    """Choose an entry of the context menu."""
    view = window.sidebar.list
    view.customContextMenuRequested.emit(view.visualRect(window.sidebar.model.index_of(id)).center())
    menu = QApplication.activePopupWidget()
    assert isinstance(menu, QMenu)
    shown = menu
    for words in path:
        action = next(action for action in shown.actions() if action.text() == words)
        if (submenu := action.menu()) is not None:
            shown = submenu
    action.trigger()
    menu.close()


def undo(window: MainWindow, qtbot: QtBot) -> None:
    (button,) = [button for notice in window.notices.visible_notices for button in notice.findChildren(QPushButton)]
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


async def test_several_are_deleted_at_once(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    click(window, qtbot, "c", CTRL)
    click(window, qtbot, "a", CTRL)
    assert window.sidebar.chosen == ["d", "c", "a"]
    assert window.chat.current == "d", "choosing several opens none of them"
    choose(window, "a", "Delete 3 chats")
    await until(lambda: listed(window) == "b", "the deletion")
    assert window.chat.current == "b"
    undo(window, qtbot)
    await until(lambda: listed(window) == "dcba", "the undo")


async def test_a_right_click_opens_nothing_and_its_menu_is_about_that_row(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    view = window.sidebar.list
    place = view.visualRect(window.sidebar.model.index_of("b")).center()
    qtbot.mouseClick(view.viewport(), Qt.MouseButton.RightButton, Qt.KeyboardModifier.NoModifier, place)
    assert (window.chat.current, window.sidebar.chosen) == ("d", ["d"])
    choose(window, "b", "Rename")
    editor = child(view.viewport(), QLineEdit)
    editor.setText("Another name")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    await until(lambda: window.chat.conversations.title("b") == "Another name", "the name")
    choose(window, "b", "Delete")
    await until(lambda: window.notices.visible_notices, "the offer to undo")
    assert window.notices.visible_notices[0].texts == ("Deleted “Another name”", "")
    await until(lambda: listed(window) == "dca", "the deletion")
    undo(window, qtbot)
    await until(lambda: listed(window) == "dcba", "the undo")
    assert window.chat.current == "d", "only a chat that was open is opened again"


async def test_archive_and_back(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    choose(window, "d", "Archive")
    await until(lambda: listed(window) == "cba", "the archiving")
    window.sidebar.arrange(Arrangement(archive=True))
    assert listed(window) == "d"
    assert window.sidebar.view_button.text() == "Archive"
    click(window, qtbot, "d", Qt.KeyboardModifier.NoModifier)
    choose(window, "d", "Unarchive")
    await until(lambda: listed(window) == "", "the way back")
    window.sidebar.arrange(Arrangement())
    assert listed(window) == "dcba"


async def test_a_pin_and_folders_come_and_go(furnished: StagedRuntime, window: MainWindow) -> None:
    for order in ("adcb", "dcba"):
        choose(window, "a", "Pin")
        await until(lambda order=order: listed(window) == order)
    choose(window, "d", "Move to folder", "New folder…")
    (dialog,) = window.findChildren(QInputDialog)
    dialog.setTextValue("R&D 旅行")
    dialog.accept()
    await until(lambda: furnished.chat.by_id["d"].folder == "R&D 旅行", "the folder")
    await until(lambda: window.sidebar.folders == ["R&D 旅行"], "the list")
    window.sidebar.view_menu.aboutToShow.emit()
    next(a for a in window.sidebar.view_menu.actions() if a.text() == "R&&D 旅行").trigger()
    assert listed(window) == "d"
    choose(window, "d", "Move to folder", "No folder")
    await until(lambda: listed(window) == "", "the way out")


@pytest.mark.parametrize(
    ("last", "now", "shown"),
    [
        (Arrangement(SortOrder.NAME), Arrangement(SortOrder.NAME), "abcd"),
        (Arrangement(SortOrder.NAME, "R&D, “旅行”"), Arrangement(SortOrder.NAME, "R&D, “旅行”"), "b"),
        (Arrangement(folder="Gone"), Arrangement(), "dcba"),
        (Arrangement(archive=True), Arrangement(archive=True), "a"),
    ],
)
async def test_the_next_window_shows_what_this_one_showed_last(
    furnished: StagedRuntime, window: MainWindow, look: Look, last: Arrangement, now: Arrangement, shown: str
) -> None:
    furnished.chat.change("b", folder="R&D, “旅行”")
    if last.archive:
        furnished.chat.change("a", archived=True)
    window.sidebar.arrange(last)
    window.close()
    async with on_show(furnished, look) as again:
        assert (again.sidebar.arrangement, listed(again)) == (now, shown)


@pytest.mark.parametrize("text", ["", "[]", '{"order": "OLD", "folder": null, "archive": false}'])
def test_an_arrangement_that_cannot_be_read_is_the_first_one(text: str) -> None:
    assert Arrangement.from_json(text) == Arrangement()


async def test_of_thousands_only_what_is_in_sight_is_made(
    furnished: StagedRuntime, window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2000):
        furnished.chat.add(f"Chat {number}", id=f"n{number}")
    await until(lambda: window.sidebar.model.rowCount() == 2005)
    made: list[str] = []
    row = window.chat.conversations._row

    def counted(chat: Conversation, busy_ids: Collection[str]) -> Row:
        made.append(chat.id)
        return row(chat, busy_ids)

    monkeypatch.setattr(window.chat.conversations, "_row", counted)
    window.chat.conversations.show_list()
    window.sidebar.grab()
    assert 0 < len(set(made)) < 100


@pytest.mark.slow
async def test_all_of_thousands_stay_chosen_in_another_order(furnished: StagedRuntime, window: MainWindow) -> None:
    for number in range(2000):
        furnished.chat.add(f"Chat {number}", id=f"n{number}")
    await until(lambda: window.sidebar.model.rowCount() == 2005)
    window.sidebar.list.selectAll()
    window.sidebar.arrange(Arrangement(SortOrder.NAME))
    assert len(window.sidebar.chosen) == 2004
    assert window.sidebar.chosen == window.chat.conversations.chat_ids
