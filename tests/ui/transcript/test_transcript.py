"""The page: long conversations, following a reply, selecting and copying, links."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication, QMouseEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QTextEdit, QToolButton
from pytestqt.qtbot import QtBot

from kvchat.chat.record.messages import Message, MessageState, Role
from kvchat.settings import Settings
from kvchat.ui.base.theme import Look
from kvchat.ui.rendering.text_page import LinkDialog, TextPage, display_host
from kvchat.ui.transcript.message_view import MessageView, ToggleRow
from kvchat.ui.transcript.reply_view import ReplyView
from kvchat.ui.transcript.transcript import Transcript
from kvchat.ui.widgets.text_search import select_range
from tests.ui.reading import a_message
from tests.ui.staged_runtime import a_receipt
from tests.ui.waiting import LONG_MS

REPLY = "First **words**.\n\n- one\n- two $x^2$\n\n```python\nprint(1)\n```\n\nLast [words](https://example.org/a)."


def conversation(turns: int) -> list[Message]:
    """Return `turns` questions and answers of different lengths."""
    messages = []
    for i in range(turns):
        messages.append(a_message(f"q{i}", Role.USER, f"Question {i}? " * (1 + i % 5)))
        words = "\n\n".join(f"Answer {i}, paragraph {j}. " * (1 + (i * j) % 9) for j in range(1 + i % 4))
        messages.append(replace(a_message(f"a{i}", Role.ASSISTANT, words), receipt=a_receipt()))
    return messages


def top_of(page: Transcript, id: str) -> int:
    view = page.views[id]
    return view.mapTo(page.viewport(), QPoint(0, 0)).y()


def in_sight(page: Transcript) -> dict[str, int]:
    """Return the messages whose beginning is visible, with its position."""
    tops = {id: top_of(page, id) for id, view in page.views.items() if view.isVisible()}
    return {id: top for id, top in tops.items() if 0 <= top < page.viewport().height()}


def streaming(page: Transcript, *before: Message) -> Callable[[str], ReplyView]:
    """Show a streaming reply; return a function that sets its text so far."""
    page.show_conversation([*before, a_message("live", Role.ASSISTANT, "", MessageState.STREAMING)])

    def says(text: str) -> ReplyView:
        page.show_live_reply("live", text, "")
        view = page.views["live"]
        assert isinstance(view, ReplyView)
        view.render_now()
        return view

    return says


def drag(start: QTextEdit, at: int, end: QTextEdit, to: int) -> None:
    """Drag the mouse from a place in one text to a place in another. QTest cannot move it with the button held."""
    viewport, left, begin = start.viewport(), Qt.MouseButton.LeftButton, _point(start, at)
    target = viewport.mapFromGlobal(end.viewport().mapToGlobal(_point(end, to)))
    QTest.mousePress(viewport, left, pos=begin)
    for share in (0.3, 0.7, 1.0):
        where = begin + (target - begin) * share
        spot, everywhere, none = QPointF(where), QPointF(viewport.mapToGlobal(where)), Qt.KeyboardModifier.NoModifier
        event = QMouseEvent(QEvent.Type.MouseMove, spot, everywhere, Qt.MouseButton.NoButton, left, none)
        QGuiApplication.sendEvent(viewport, event)
    QTest.mouseRelease(viewport, left, pos=target)


def _point(text: QTextEdit, position: int) -> QPoint:
    cursor = text.textCursor()
    cursor.setPosition(position)
    return text.cursorRect(cursor).center()


def test_a_long_conversation_opens_at_its_end_with_few_widgets(page: Transcript, qtbot: QtBot) -> None:
    messages = conversation(2_500)
    started = time.thread_time()
    page.show_conversation(messages)
    QGuiApplication.processEvents()
    print(f"\n5,000 messages open in {1000 * (time.thread_time() - started):.0f} ms")
    assert len(page.views) < 20
    assert "a2499" in page.views
    assert page.verticalScrollBar().value() == page.verticalScrollBar().maximum() > 100_000
    qtbot.waitUntil(lambda: len(page.shown_rows) >= 30, timeout=LONG_MS)  # those near are made when idle
    QTest.qWait(50)
    assert len(page.shown_rows) < 70


@pytest.mark.slow
def test_what_is_read_stays_where_it_is_while_heights_are_found_out(
    page: Transcript, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count(step=0.004)  # a slow computer does six things in the time of a step
    monkeypatch.setattr("kvchat.ui.transcript.message_column.time.thread_time", lambda: next(clock))
    page.show_conversation(conversation(300))
    bar = page.verticalScrollBar()
    for key, place in ((Qt.Key.Key_Home, 0), (Qt.Key.Key_End, bar.maximum)):
        QTest.keyClick(page, key)
        assert bar.value() == (place() if callable(place) else place)
    for _ in range(60):
        before = in_sight(page)
        value = bar.value()
        bar.setValue(value - 150)
        assert before
        for _ in range(2):
            assert all(top_of(page, id) == top + 150 for id, top in before.items())
            QGuiApplication.processEvents()
    id, top = next(iter(sorted(in_sight(page).items(), key=lambda item: item[1])))
    page.resize(560, 600)
    QGuiApplication.processEvents()
    assert abs(top_of(page, id) - top) < 150
    for place in range(10, 0, -1):
        bar.setValue(bar.maximum() * place // 11)
        QGuiApplication.processEvents()
    assert not page.views["a299"].texts
    assert len(page.shown_rows) < 300


def test_follows_the_reply_until_the_reader_scrolls_up(page: Transcript, qtbot: QtBot) -> None:
    says, bar = streaming(page, *conversation(10)), page.verticalScrollBar()
    says("More words.\n\n" * 30)
    assert bar.value() == bar.maximum()
    bar.setValue(bar.value() - 10)
    before, end = in_sight(page), bar.maximum()
    says("More words.\n\n" * 60)
    assert bar.maximum() > end
    assert all(top_of(page, id) == top for id, top in before.items())
    bar.setValue(bar.maximum())
    says("More words.\n\n" * 90)
    assert bar.value() == bar.maximum()
    for height in (300, 900, 300):
        page.resize(850, height)
    assert bar.value() == bar.maximum()


def test_a_reply_that_streams_survives_losing_its_widget(page: Transcript) -> None:
    says = streaming(page, *conversation(300))
    says("Half a reply")
    messages = page.messages
    page.show_conversation([])
    page.show_conversation(messages)
    assert "and more" in says("Half a reply, and more").texts[0].toPlainText()


def test_thinking_is_folded_and_says_how_long_it_took(page: Transcript) -> None:
    thought = replace(a_message("a", Role.ASSISTANT, "Yes."), thinking="Hm.", receipt=a_receipt(thinking_ms=12_300))
    page.show_conversation([thought])
    view = page.views["a"]
    fold = view.findChild(ToggleRow)
    assert fold is not None
    assert fold.toggle_button.accessibleName() == "Thought for 12 s, collapsed"
    assert len(view.texts) == 1
    before = view.height()
    fold.toggle_button.click()
    assert [text.toPlainText() for text in view.texts] == ["Hm.", "Yes."]
    assert view.height() > before


def test_selecting_across_messages_copies_them_all(page: Transcript) -> None:
    question, thanks = a_message("q", Role.USER, "My question"), a_message("r", Role.USER, "Thanks")
    page.show_conversation([question, a_message("a", Role.ASSISTANT, REPLY), thanks])
    drag(page.views["q"].texts[0], 3, page.views["r"].texts[0], 6)
    QTest.keyClick(page.views["q"].texts[0], Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == (
        "question\n\nFirst words.\n- one\n- two $x^2$\n\nprint(1)\n\nLast words.\n\nThanks"
    )
    both = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    QTest.keyClick(page.views["q"].texts[0], Qt.Key.Key_C, both)
    assert QGuiApplication.clipboard().text() == f"question\n\n{REPLY}\n\nThanks"
    QTest.mouseClick(page.views["a"].texts[0].viewport(), Qt.MouseButton.LeftButton, pos=QPoint(5, 5))
    assert not any(text.textCursor().hasSelection() for id in ("q", "a", "r") for text in page.views[id].texts)


def test_selecting_within_a_reply(page: Transcript) -> None:
    page.show_conversation([a_message("a", Role.ASSISTANT, REPLY)])
    first, code, _ = page.views["a"].texts
    drag(first, 6, code, 5)
    assert page.selection.selected_text() == "words.\n- one\n- two $x^2$\n\nprint"
    assert (
        page.selection.selected_text(markdown=True) == "First **words**.\n\n- one\n- two $x^2$\n\n```python\nprint\n```"
    )
    drag(first, 0, first, 5)
    assert page.selection.selected_text() == page.selection.selected_text(markdown=True) == "First"
    drag(code, 8, first, 6)  # upwards
    assert page.selection.selected_text() == "words.\n- one\n- two $x^2$\n\nprint(1)"
    page.show_conversation([a_message("e", Role.ASSISTANT, "One 🍅🍅 **two 👩‍👧 three** four")])
    text = page.views["e"].texts[0]
    drag(text, 0, text, len("One 🍅🍅".encode("utf-16-le")) // 2)
    assert page.selection.selected_text() == "One 🍅🍅"
    page.selection.select_message(page.views["e"])
    assert page.selection.selected_text() == "One 🍅🍅 two 👩‍👧 three four"


def test_what_is_selected_stays_so_while_the_reply_goes_on(page: Transcript) -> None:
    says, said = streaming(page, a_message("q", Role.USER, "Continue")), "Some 😀 words with $x$ that"
    says(said)
    text = page.views["live"].texts[0]
    select_range(text, 5, 13)
    for more in (" go on", " and on.", "\n\nA second paragraph", " that grows"):
        said += more
        says(said)
        assert text.textCursor().selectedText() == "😀 words"
    says(said := said + "\n\n```python\nx = 1\ny")
    code = page.views["live"].texts[1]
    select_range(code, 0, 7)
    for more in (" = 2", "\n", "z = 3\n", "w"):
        says(said := said + more)
        assert code.textCursor().selectedText().replace("\u2029", "\n") == "x = 1\ny"
    says(said + "\n```\n\nEnd.")
    assert code.textCursor().selectedText().replace("\u2029", "\n") == "x = 1\ny"


def test_a_selection_outlives_widgets_between_its_ends(page: Transcript, qtbot: QtBot) -> None:
    page.show_conversation(conversation(300))
    end = page.views["a299"].texts[0]
    QTest.mouseClick(end.viewport(), Qt.MouseButton.LeftButton, pos=_point(end, 0))
    page.verticalScrollBar().setValue(0)
    assert "a150" not in page.views
    start = page.views["q0"].texts[0]
    where = _point(start, 0)
    QTest.mouseClick(start.viewport(), Qt.MouseButton.LeftButton, Qt.KeyboardModifier.ShiftModifier, pos=where)
    words = page.selection.selected_text()
    assert words.startswith("Question 0?")
    assert "Answer 150, paragraph 1." in words
    assert words.rstrip().endswith("Question 299?")


def test_a_message_is_copied_by_the_menu_and_by_its_button(page: Transcript) -> None:
    typed = "a  b\n    indented *not emphasised*\n\n<b>bold</b> $x$"
    page.show_conversation([a_message("q", Role.USER, typed), a_message("a", Role.ASSISTANT, REPLY)])
    assert (page.views["q"].texts[0].toPlainText(), page.views["q"].texts[0].accessibleName()) == (
        typed,
        f"You: {typed}",
    )
    assert page.whole_message(page.messages[1], markdown=True) == REPLY
    assert page.whole_message(page.messages[1], markdown=False).startswith("First words.\n- one\n- two $x^2$")
    page.selection.select_message(page.views["a"])
    assert page.selection.selected_text().endswith("print(1)\n\nLast words.")
    for id, expected in (("q", typed), ("a", REPLY)):
        buttons = page.views[id].findChildren(QToolButton)
        assert all(button.isVisible() for button in buttons)
        next(button for button in buttons if button.accessibleName().startswith("Copy")).click()
        assert QGuiApplication.clipboard().text() == expected


def test_a_link_says_where_it_leads_and_asks(page: Transcript, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toString()))
    page.show_conversation([a_message("a", Role.ASSISTANT, "[x](https://example.org/a)")])
    text = page.views["a"].texts[0]
    assert isinstance(text, TextPage)
    for url in ("file:///etc/passwd", "javascript:alert(1)"):
        text.anchorClicked.emit(QUrl(url))
        assert page.findChild(LinkDialog) is None
    text.anchorClicked.emit(QUrl("https://example.org/a"))
    dialog = page.findChild(LinkDialog)
    assert dialog is not None
    assert not opened
    dialog.open_button.click()
    assert opened == ["https://example.org/a"]
    for url, place in (
        ("https://www.paypal.com@evil.example/x", "evil.example"),
        ("https://аррӏе.com/", "xn--80ak6aa92e.com"),
        ("http://example.org:8080/", "example.org:8080"),
        ("mailto:a@example.org", "a@example.org"),
    ):
        assert display_host(url) == place


def test_long_messages_are_shown_in_pieces(page: Transcript, qtbot: QtBot) -> None:
    source = "\n".join(f"line_{i} = {i}" for i in range(10_000))
    long = {"a": "y " * 40_000, "c": f"```python\n{source}\n```"}
    for id, text in long.items():
        page.show_conversation([a_message(id, Role.ASSISTANT, text)])
        view = page.views[id]
        qtbot.waitUntil(lambda: view.is_complete, timeout=LONG_MS)  # noqa: B023
        assert sum(row.part.text.count("y") for row in view.rows) == 40_000 or id == "c"
        assert len(view.texts) < 20
    assert page.views["c"].texts[0].toPlainText() != source
    qtbot.waitUntil(lambda: page.views["c"].texts[0].toPlainText() == source, timeout=LONG_MS)


@pytest.mark.parametrize("ending", ["# [Lemmy L", "gy", "> gy", "| g |\n|---|\n| y |", "# غ", "- gy\n\n  gy"])
def test_the_last_line_is_not_cut(page: Transcript, ending: str) -> None:
    page.show_conversation([a_message("a", Role.ASSISTANT, f"Before.\n\n{ending}")])
    part = page.views["a"].texts[-1]
    assert isinstance(part, TextPage)
    last = part.document().lastBlock()
    line = last.layout().lineAt(last.layout().lineCount() - 1)
    top = part.document().documentLayout().blockBoundingRect(last).y()
    assert top + line.y() + line.height() <= part.height()


def test_few_widgets_are_styled_anew_when_the_text_size_changes(page: Transcript, look: Look, qtbot: QtBot) -> None:
    page.show_conversation(conversation(40))
    qtbot.waitUntil(lambda: len(page.shown_rows) > 20, timeout=LONG_MS)
    styled: list[int] = []  # after the page's own answer to the signal
    look.changing.connect(
        lambda: styled.append(sum(isinstance(widget, MessageView) for widget in QApplication.allWidgets()))
    )
    look.apply_settings(Settings(zoom=125))
    assert styled == [0]
    assert page.views
