"""Chats grouped by time of last use."""

from datetime import UTC, datetime, timedelta

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from kvchat.chat.record.messages import Conversation
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.sidebar.conversation_list import Arrangement, Heading, SortOrder, arrange_chats, with_headings
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until

NOW = datetime(2026, 11, 22, 14, 5).astimezone()


def chat(id: str, *, hours: float, on_top: bool = False) -> Conversation:
    when = NOW - timedelta(hours=hours)
    return Conversation(id, id, False, when, when, None, on_top=on_top)


def shown(chats: list[Conversation], order: SortOrder = SortOrder.USED) -> list[str]:
    rows = with_headings(arrange_chats(chats, Arrangement(order)), order, NOW)
    return [f"[{row.title}]" if isinstance(row, Heading) else row.id for row in rows]


def test_chats_are_parted_by_day() -> None:
    hours = {"now": 0.1, "morning": 13, "late": 15, "week": 24 * 6, "month": 24 * 20, "old": 24 * 60}
    chats = [chat(id, hours=value) for id, value in hours.items()]
    assert shown(chats) == [
        *("[Today]", "now", "morning", "[Yesterday]", "late", "[Last 7 days]", "week"),
        *("[Last 30 days]", "month", "[Earlier]", "old"),
    ]
    assert shown([*chats[:1], chat("kept", hours=900, on_top=True)]) == ["[Pinned]", "kept", "[Today]", "now"]
    assert shown([]) == []
    assert shown([chat("a", hours=900)], SortOrder.CREATED) == ["[Earlier]", "a"]
    assert shown(chats[::5], SortOrder.NAME) == ["now", "old"], "names have no days"


def test_times_of_a_wrong_clock_go_with_their_neighbors() -> None:
    """The list keeps its order: chats dated in the future stay above today's, or among their neighbors."""
    years = 24 * 365
    ahead, behind = chat("ahead", hours=-5 * years), chat("behind", hours=7 * years)
    now, late, old = chat("now", hours=0.1), chat("late", hours=15), chat("old", hours=24 * 60)
    assert shown([ahead, now, old]) == ["[Today]", "ahead", "now", "[Earlier]", "old"]
    assert shown([ahead, old]) == ["[Today]", "ahead", "[Earlier]", "old"]
    assert shown([behind, now, ahead, late]) == ["[Today]", "behind", "now", "ahead", "[Yesterday]", "late"]
    assert shown([ahead, now, old], SortOrder.CREATED) == ["[Today]", "ahead", "now", "[Earlier]", "old"]


async def test_a_heading_is_no_chat(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    """Keys, clicks and hovering ignore it."""
    old = datetime(2020, 1, 1, tzinfo=UTC)
    for id in "ab":
        furnished.chat.change(id, updated_at=old.timestamp())
    for id in "cd":
        furnished.chat.change(id, updated_at=datetime.now(UTC).timestamp())
    await window.chat.conversations.reload()
    view, model = window.sidebar.list, window.sidebar.model
    titles = [row.title for row in model.rows]
    assert titles[0] == "Today"
    assert titles[3] == "Earlier"
    assert [chat.id for chat in model.chats] == window.chat.conversations.chat_ids
    order = window.chat.conversations.chat_ids
    window.chat.open(order[1])
    window.sidebar.select_neighbor(1)
    assert window.chat.current == order[2]
    view.setFocus()
    qtbot.keyClick(view, Qt.Key.Key_Up)
    assert window.chat.current == order[1]
    heading = model.index(3)
    for button in (Qt.MouseButton.LeftButton, Qt.MouseButton.RightButton):
        qtbot.mouseClick(view.viewport(), button, pos=view.visualRect(heading).center())
    view.entered.emit(heading)
    await until(lambda: window.chat.current == order[1])
    view.selectAll()
    assert sorted(window.sidebar.chosen) == sorted(order)
