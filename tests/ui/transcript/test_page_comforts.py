"""Folding of long messages, message actions, the context menu, chips side by side, and no leaks."""

from dataclasses import replace

import pytest
from PySide6.QtCore import QEvent, QObject, QPoint, QPointF, Qt
from PySide6.QtGui import QContextMenuEvent, QEnterEvent
from PySide6.QtWidgets import QApplication, QMenu, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from kvchat.chat.attachments import document_from_text
from kvchat.chat.record.messages import Role
from kvchat.text.search import parse_query
from kvchat.tools.tool import ToolCall
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.rendering.text_page import ask_to_open
from kvchat.ui.transcript.footer import MessageActions, MessageRequest, RequestKind
from kvchat.ui.transcript.message_view import ToggleRow, UserView
from kvchat.ui.transcript.reply_view import ReplyView
from kvchat.ui.transcript.transcript import Transcript
from tests.ui.reading import a_message
from tests.ui.staged_runtime import StagedRuntime, a_receipt
from tests.ui.waiting import until
from tests.ui.windows import child

LEFT = Qt.MouseButton.LeftButton
LONG = "\n".join(f"Line {i} with words" for i in range(5_000)) + "\nthe heron"


def the_question(page: Transcript) -> UserView:
    view = page.views["q"]
    assert isinstance(view, UserView)
    return view


def fold_button(view: UserView) -> QPushButton:
    return next(row.widget.toggle_button for row in view.rows if isinstance(row.widget, ToggleRow))


def click_receipt(page: Transcript, qtbot: QtBot, id: str) -> None:
    view = page.views[id]
    assert isinstance(view, ReplyView)
    assert view.receipt is not None
    qtbot.mouseClick(view.receipt.summary_button, LEFT)


def test_a_long_message_of_one_s_own_is_folded_until_found_or_selected(page: Transcript, qtbot: QtBot) -> None:
    messages = [a_message("q", Role.USER, LONG), a_message("a", Role.ASSISTANT, "Yes.")]
    page.show_conversation(messages)
    view = the_question(page)
    assert view.height() < 400
    assert fold_button(view).text().startswith("Show all, 5,001 lines")
    assert len(view.texts) == 1, "what is not to be seen is not made"
    qtbot.mouseClick(fold_button(view), LEFT)
    assert view.height() > 50_000
    assert len(view.texts) < 10
    page.scroll_to_end()
    assert fold_button(view).text().startswith("Show less")
    qtbot.mouseClick(fold_button(view), LEFT)
    assert view.height() < 400
    page.marks.show_terms(parse_query("heron"))
    assert page.show_message("q") == 1
    assert not view.is_folded
    page.show_conversation([])
    page.show_conversation(messages)
    page.selection.select_message(the_question(page))
    assert page.selection.selected_text().replace("\n\n", "\n") == LONG
    page.show_conversation([a_message("q", Role.USER, "\n".join(f"Line {i}" for i in range(13)))])
    assert the_question(page).findChild(ToggleRow) is None, "it is not long"


def test_what_is_unfolded_keeps_its_place_at_the_end_of_the_page_as_well(page: Transcript, qtbot: QtBot) -> None:
    """The page showed the end of the unfolded text, and the clicked receipt moved out of view."""
    early = [a_message("p", Role.USER, LONG), a_message("b", Role.ASSISTANT, "No.")]
    asked = [a_message("q", Role.USER, LONG), replace(a_message("a", Role.ASSISTANT, "Yes."), receipt=a_receipt())]
    late = [a_message("r", Role.USER, "And?"), replace(a_message("c", Role.ASSISTANT, "Well."), receipt=a_receipt())]
    page.show_conversation([*early, *asked, *late])
    bar = page.verticalScrollBar()
    assert bar.value() == bar.maximum() > 0

    def top(id: str) -> int:
        return page.views[id].mapTo(page.viewport(), QPoint()).y()

    question, answer = the_question(page), page.views["a"]
    at, low = top("a"), answer.height()
    click_receipt(page, qtbot, "a")
    assert (top("a"), answer.height() > low) == (at, True)
    click_receipt(page, qtbot, "a")
    assert top("a") == at
    assert bar.value() == bar.maximum(), "folded again, it is the end again, and what comes is followed"
    at = top("q")
    qtbot.mouseClick(fold_button(question), LEFT)
    assert question.height() > 50_000
    assert top("q") == at
    page.scroll_to_end()
    click_receipt(page, qtbot, "c")
    qtbot.waitUntil(lambda: bar.value() == bar.maximum())
    assert top("c") + page.views["c"].height() < page.viewport().height(), "the last one's details are in sight"


def test_actions_of_a_reply_that_calls_a_tool_show_under_the_pointer(page: Transcript) -> None:
    reply = replace(a_message("b", Role.ASSISTANT, "I look."), calls=(ToolCall("1", "look", "{}"),))
    page.show_conversation([a_message("q", Role.USER, "Which?"), reply, a_message("a", Role.ASSISTANT, "This.")])
    actions = child(page.views["b"], MessageActions)
    assert not actions.is_shown
    QApplication.sendEvent(page.views["b"], QEnterEvent(*[QPointF(3, 3)] * 3))
    assert actions.is_shown


@pytest.mark.parametrize("place", ["its text", "beside its text", "a key"])
async def test_a_right_click_opens_a_menu(runtime: StagedRuntime, window: MainWindow, qtbot: QtBot, place: str) -> None:
    runtime.chat.add("Lakes", id="lakes")
    runtime.chat.write("lakes", Role.USER, "Which?")
    reply = runtime.chat.write("lakes", Role.ASSISTANT, "This.", receipt=a_receipt())
    window.chat.open("lakes")
    await until(lambda: reply.id in window.transcript.views)
    view = window.transcript.views[reply.id]
    text = view.texts[0]
    target = {"its text": text.viewport(), "beside its text": view, "a key": text}[place]  # as the system does
    requested: list[MessageRequest] = []
    window.transcript.message_requested.connect(requested.append)
    where = QPoint(3, 3)
    QApplication.sendEvent(target, QContextMenuEvent(QContextMenuEvent.Reason.Mouse, where, target.mapToGlobal(where)))
    menu = view.findChild(QMenu)
    assert menu is not None
    entries = {action.text(): action for action in menu.actions() if action.text()}
    assert list(entries)[:4] == [
        *("Copy message as text", "Copy message as Markdown", "Select this message", "Edit the reply")
    ]
    entries["Copy message as text"].trigger()
    assert QApplication.clipboard().text() == "This."
    entries["Regenerate the reply"].trigger()
    menu.close()
    assert requested[0].kind is RequestKind.REGENERATE


async def test_nothing_grows_with_what_was_attached_or_asked(
    runtime: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    def everything() -> int:
        QApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
        return len(window.findChildren(QWidget)) + len(window.composer.findChildren(QObject))

    def once() -> None:
        window.composer.set_attachments([document_from_text(f"{i}.txt", "words") for i in range(4)])
        window.composer.set_attachments(())
        dialog = ask_to_open(window, "https://example.org")
        assert dialog is not None
        dialog.close()

    once()
    before = everything()
    for _ in range(5):
        once()
    assert everything() == before
