"""Search in all chats and in the open one, by keys and clicks."""

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from kvchat.chat.attachments import document_from_text
from kvchat.chat.record.messages import Role
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.attachments.chips import AttachmentView
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import child

CTRL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier


@pytest.fixture
def furnished(runtime: StagedRuntime) -> StagedRuntime:
    """Add three chats; the oldest mentions marmots far above its end, the newest is open."""
    for id in ("alps", "食べ物", "other"):
        runtime.chat.add(f"About {id}", id=id)
    for number in range(40):
        role = Role.ASSISTANT if number % 2 else Role.USER
        word = "a 😀 **marmot** sits" if number in (5, 9) else "nothing"
        runtime.chat.write("alps", role, f"{number}: {word} here.\n\n" + "More of it. " * 30)
    runtime.chat.write("食べ物", Role.USER, "北京烤鸭好吃吗？ A marmot asks.")
    runtime.chat.write("other", Role.USER, "Hello")
    return runtime


def marked(window: MainWindow) -> list[str]:
    """Return every marked text on the page."""
    return [
        cursor.selectedText()
        for view in window.transcript.views.values()
        for text in view.texts
        if text.property("marked")
        for cursor in window.transcript.marks._hit_cursors(text)
    ]


def in_sight(window: MainWindow, message_id: str) -> bool:
    """Return True if the first mark of a message is visible."""
    row, number = window.transcript.marks.hits_in_message(message_id)[0]
    text = row.text
    assert text is not None
    cursor = window.transcript.marks._hit_cursors(text)[number]
    place = text.mapTo(window.transcript.viewport(), text.cursorRect(cursor).center())
    return window.transcript.viewport().rect().contains(place)


async def search(window: MainWindow, qtbot: QtBot, words: str) -> None:
    window.activateWindow()
    await until(window.isActiveWindow)
    qtbot.keyClick(window, Qt.Key.Key_F, CTRL | SHIFT)
    field = window.sidebar.search_panel.field
    field.setText("")
    for word in words:
        QTest.keyClicks(field, word) if word.isascii() else field.insert(word)
    await until(lambda: window.sidebar.search_panel.pages.currentIndex() == 1, "results")


def found(window: MainWindow) -> list[str]:
    return [chat.conversation_id for chat in window.sidebar.search_panel.results.hits]


async def test_what_is_found_opens_at_the_hit_and_marks_it(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await search(window, qtbot, "MARM")
    assert found(window) == ["食べ物", "alps"]
    results = window.sidebar.search_panel.results
    qtbot.keyClick(window.sidebar.search_panel.field, Qt.Key.Key_Down)
    qtbot.mouseClick(
        results.viewport(), Qt.MouseButton.LeftButton, pos=results.visualRect(results.model().index(1, 0)).center()
    )
    await until(lambda: window.chat.current == "alps" and window.find_bar.isVisible(), "the chat")
    second, first = results.hits[1].message_ids
    assert window.find_bar.position_label.text() == "2 of 2"
    assert set(marked(window)) == {"marm"}
    assert in_sight(window, second)
    qtbot.keyClick(window, Qt.Key.Key_F3)
    assert window.find_bar.position_label.text() == "1 of 2"
    assert in_sight(window, first)
    qtbot.keyClick(window, Qt.Key.Key_Escape)
    assert not window.find_bar.isVisible()
    assert marked(window) == []


async def test_enter_opens_the_first_and_escape_shows_the_chats_again(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await search(window, qtbot, "烤鸭")
    field = window.sidebar.search_panel.field
    qtbot.keyClick(field, Qt.Key.Key_Return)
    await until(lambda: window.chat.current == "食べ物" and window.find_bar.isVisible(), "the chat")
    assert marked(window) == ["烤鸭"]
    qtbot.keyClick(field, Qt.Key.Key_Escape)
    await until(lambda: window.sidebar.search_panel.pages.currentIndex() == 0, "the chats")
    window.chat.open("other")
    assert not window.find_bar.isVisible()


async def test_nothing_found_and_an_unfinished_index_are_said(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvchat.chat.search.index_batch", lambda database: True)
    monkeypatch.setattr(furnished.chat.finder, "start_indexing", lambda: None)
    await search(window, qtbot, "xyzzy")
    assert window.sidebar.search_panel.status.text() == "No matches. Older messages are still being indexed."
    monkeypatch.undo()
    await until(lambda: window.sidebar.search_panel.status.text() == "No matches.", "the rest of the index")


async def test_a_hit_on_another_branch_goes_there(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    shown = furnished.chat.said("other")[-1]
    hidden = furnished.chat.write("other", Role.USER, "A hidden gnu", below=shown.parent_id)
    await furnished.chat.switch("other", shown.id)
    await search(window, qtbot, "gnu")
    window.chat.open("alps")
    qtbot.keyClick(window.sidebar.search_panel.field, Qt.Key.Key_Return)
    await until(lambda: marked(window) == ["gnu"], "the branch")
    assert ("switch", "other", hidden.id) in furnished.chat.calls


async def test_f3_goes_from_hit_to_hit(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    words = "A heron. " + "Words in between. " * 300
    first = furnished.chat.write("other", Role.USER, words + "A heron.")
    last = furnished.chat.write("other", Role.ASSISTANT, f"{words}\n\nA heron.\n\n```\nheron\n```")
    window.chat.open("other")
    await until(lambda: len(window.transcript.messages) == 3 and last.id in window.transcript.views)
    await until(lambda: all(view.is_complete for view in window.transcript.views.values()))
    window.activateWindow()
    await until(window.isActiveWindow)
    qtbot.keyClick(window, Qt.Key.Key_F, CTRL)
    qtbot.keyClicks(window.find_bar.field, "heron")
    places = [window.find_bar.position_label.text()]
    seen = [led_to(window)]
    for _ in range(5):
        qtbot.keyClick(window, Qt.Key.Key_F3)
        places.append(window.find_bar.position_label.text())
        seen.append(led_to(window))
    there = [(last.id, 0), (last.id, 1), (last.id, 2), (first.id, 0), (first.id, 1), (last.id, 0)]
    assert seen == there
    here = [f"{number} of 3 in message 2 of 2" for number in (1, 2, 3)]
    assert places == [*here, "1 of 2 in message 1 of 2", "2 of 2 in message 1 of 2", here[0]]
    for place in there[4::-1]:
        qtbot.keyClick(window, Qt.Key.Key_F3, SHIFT)
        assert led_to(window) == place
    qtbot.keyClicks(window.find_bar.field, "x")
    assert window.find_bar.position_label.text() == "Not found"


def led_to(window: MainWindow) -> tuple[str, int]:
    """Return the message and number of the current mark, which must be visible."""
    page, accent = window.transcript, window.transcript._look.theme.accent
    for id in page.views:
        for number, (row, place_in_row) in enumerate(page.marks.hits_in_message(id)):
            text = row.text
            cursor = page.marks._hit_cursors(text)[place_in_row] if text else None
            for mark in text.extraSelections() if text else ():
                if mark.cursor == cursor and mark.format.background().color().name() == accent:  # type: ignore[attr-defined]
                    place = text.mapTo(page.viewport(), text.cursorRect(cursor).center())
                    assert page.viewport().rect().contains(place)
                    return id, number
    raise AssertionError("nothing stands out")


async def test_a_hit_in_a_document_shows_it_there(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    document = document_from_text("notes.txt", "😀 line\n" * 300 + "The platypus.\n" + "line\n" * 300 + "platypuses")
    furnished.chat.write("other", Role.USER, "What is in it?", attachments=(document,))
    await search(window, qtbot, "platypus")
    qtbot.keyClick(window.sidebar.search_panel.field, Qt.Key.Key_Return)
    await until(lambda: window.findChild(AttachmentView) is not None, "the document")
    shown = child(window, AttachmentView)
    assert window.find_bar.position_label.text() == "1 of 1"
    assert [mark.cursor.selectedText() for mark in shown.text.extraSelections()] == ["platypus"] * 2
    assert shown.text.textCursor().block().text() == "The platypus."
    shown.activateWindow()
    await until(shown.isActiveWindow)
    qtbot.keyClick(shown, Qt.Key.Key_F3)
    assert shown.text.textCursor().block().text() == "platypuses"
    assert shown.position_label.text() == "2 of 2"
    shown.close()
    view = window.transcript.views[furnished.chat.said("other")[-1].id]
    assert view.chips is not None
    assert view.chips.chips[0].property("found") == "true"
    window.find_bar.close_bar()
    assert view.chips.chips[0].property("found") == "false"
