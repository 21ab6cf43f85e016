"""Message actions by real clicks and keys, with the staged runtime."""

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QPushButton
from pytestqt.qtbot import QtBot

from kvchat.chat.attachments import document_from_text
from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import Message, MessageState, Role
from kvchat.library.gguf.facts import read_facts
from kvchat.library.model_files import Source
from kvchat.library.model_library import FoundModel
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from kvchat.ui.transcript.footer import MessageActions
from kvchat.ui.transcript.message_view import MessageView
from tests.library.gguf_files import write_gguf
from tests.ui.staged_runtime import StagedRuntime, a_receipt
from tests.ui.waiting import until
from tests.ui.windows import button, child, joined

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def furnished(runtime: StagedRuntime) -> StagedRuntime:
    """Add two turns; the last reply was stopped and is the second of three branches."""
    chat = runtime.chat
    chat.add("Lakes", id="lakes")
    for number, text in enumerate(("Which lake is deepest?", "And the largest?")):
        chat.write("lakes", Role.USER, text)
        if not number:
            chat.write("lakes", Role.ASSISTANT, "Reply 0.", receipt=a_receipt())
    question = chat.said("lakes")[-1].id
    for text, state in (
        ("Reply before.", MessageState.COMPLETE),
        ("Reply 1.", MessageState.STOPPED),
        ("Reply after.", MessageState.COMPLETE),
    ):
        chat.write("lakes", Role.ASSISTANT, text, state=state, receipt=a_receipt(), below=question)
    chat.change("lakes", leaf_id=chat.said("lakes")[-1].siblings[1])
    return runtime


async def views(window: MainWindow, count: int = 4) -> list[MessageView]:
    """Return the page's message views, from top to bottom."""
    page = window.transcript
    await until(lambda: len(page.messages) == len(page.views) == count, f"{count} messages")
    await until(lambda: all(row.widget for view in page.views.values() for row in view.rows))
    return [page.views[message.id] for message in page.messages]


def said(runtime: StagedRuntime) -> list[Message]:
    return runtime.chat.said("lakes")


async def test_a_question_is_written_anew_in_its_place(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    question = (await views(window))[0]
    qtbot.mouseClick(button(question, "Edit this message"), LEFT)
    assert question.editor is not None
    field = question.editor.field
    assert field.hasFocus()
    qtbot.keyClick(field, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    qtbot.keyClicks(field, "In metres.")
    qtbot.keyClick(field, Qt.Key.Key_Return)
    await views(window, 1)
    assert furnished.chat.calls[-1] == ("edit", question.message.id, "Which lake is deepest?\nIn metres.")
    furnished.chat.say("Deep.")
    await views(window, 2)


async def test_escape_gives_an_edit_up_and_stops_nothing(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await views(window)
    qtbot.keyClick(window, Qt.Key.Key_E, Qt.KeyboardModifier.ControlModifier)
    question = (await views(window))[2]
    assert question.editor is not None
    height = question.height()
    qtbot.keyClicks(question.editor.field, "x")
    qtbot.keyClick(question.editor.field, Qt.Key.Key_Escape)
    assert question.editor is None
    assert question.height() < height
    assert button(question, "Edit this message").isVisible()
    assert ("stop", "lakes") not in furnished.chat.calls


async def test_an_edit_that_was_begun_is_there_again(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    question = (await views(window))[0]
    qtbot.mouseClick(button(question, "Edit this message"), LEFT)
    assert question.editor is not None
    qtbot.keyClicks(question.editor.field, " And why?")
    other = furnished.chat.add("Other").id
    window.chat.open(other)
    await until(lambda: not window.transcript.views)
    window.chat.open("lakes")
    question = (await views(window))[0]
    assert question.editor is not None
    assert question.editor.field.toPlainText() == "Which lake is deepest? And why?"
    qtbot.keyClick(question.editor.field, Qt.Key.Key_Escape)
    window.chat.open(other)
    window.chat.open("lakes")
    assert (await views(window))[0].editor is None, "it was given up"


async def test_a_reply_is_written_anew(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    reply = (await views(window))[1]
    qtbot.mouseClick(button(reply, "Edit the reply"), LEFT)
    assert reply.editor is not None
    field = reply.editor.field
    qtbot.keyClick(field, Qt.Key.Key_Return)  # a reply has lines
    qtbot.keyClicks(field, "Baikal.")
    qtbot.keyClick(field, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    await until(lambda: furnished.chat.calls[-1] == ("edit_reply", reply.message.id, "Reply 0.\nBaikal."))
    await until(lambda: furnished.chat.said("lakes")[-1].content == "Reply 0.\nBaikal.")
    edited = (await views(window, 2))[1]
    assert "You edited this reply." in [label.text() for label in edited.findChildren(QLabel)]
    assert not [button_ for button_ in edited.findChildren(QPushButton) if button_.text() == "Continue"], "it is whole"


async def test_edited_reply_that_cannot_be_stored_stays_in_its_editor(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageFailed("Your chats could not be read or written", "The disk is full.")

    reply = (await views(window))[1]
    qtbot.mouseClick(button(reply, "Edit the reply"), LEFT)
    assert reply.editor is not None
    qtbot.keyClicks(reply.editor.field, " Baikal.")
    monkeypatch.setattr(Database, "append", fail)
    qtbot.keyClick(reply.editor.field, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    await until(lambda: window.notices.visible_notices)
    assert reply.editor is not None
    assert reply.editor.field.toPlainText() == "Reply 0. Baikal."


async def test_regenerate_and_continue(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    first, last = (await views(window))[1::2]
    assert not [
        button_ for button_ in first.findChildren(QPushButton) if button_.text() == "Continue" and button_.isVisible()
    ]
    qtbot.mouseClick(button(last, "Continue this reply"), LEFT)
    assert furnished.chat.calls[-1] == ("continue_reply", last.message.id)
    qtbot.mouseClick(button(first, "Regenerate the reply"), LEFT)
    assert furnished.chat.calls[-1] == ("continue_reply", last.message.id), "one reply at a time"
    assert window.notices.visible_notices[0].texts[0] == ("The reply to the last message is still being generated")
    window.chat.stop()
    await until(lambda: window.composer.send_button.accessibleName() == "Send")
    qtbot.keyClick(window, Qt.Key.Key_R, Qt.KeyboardModifier.ControlModifier)
    assert furnished.chat.calls[-1] == ("regenerate", last.message.id)


async def test_branches_are_gone_through_by_key(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    reply = (await views(window))[3]
    assert [arrow.isEnabled() for arrow in child(reply, MessageActions).pager_buttons] == [True, True]
    qtbot.mouseClick(button(reply, "Next branch"), LEFT)
    before, after = reply.message.siblings[0], reply.message.siblings[2]
    await until(lambda: after in window.transcript.views)
    shown = (await views(window))[3]
    assert [arrow.isEnabled() for arrow in child(shown, MessageActions).pager_buttons] == [True, False]
    back = child(shown, MessageActions).pager_buttons[0]
    back.setFocus()
    qtbot.keyClick(back, Qt.Key.Key_Space)
    await until(lambda: reply.message.id in window.transcript.views)
    back = child((await views(window))[3], MessageActions).pager_buttons[0]
    assert back.hasFocus()
    qtbot.keyClick(back, Qt.Key.Key_Space)
    await until(lambda: before in window.transcript.views)
    assert child((await views(window))[3], MessageActions).pager_buttons[1].hasFocus(), "there is nothing before it"


async def test_delete_can_be_undone(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    before = list(said(furnished))
    qtbot.mouseClick(button((await views(window))[1], "Delete the reply and everything after it"), LEFT)
    await views(window, 1)
    await until(lambda: window.notices.visible_notices, "the offer to undo")
    notice = window.notices.visible_notices[0]
    assert notice.texts[0] == "Deleted the message and 4 messages after it"
    qtbot.mouseClick(button(notice, "Undo"), LEFT)
    await views(window)
    assert said(furnished) == before
    assert not window.notices.visible_notices


async def test_a_draft_stays_on_disk_until_its_words_are_in_the_chat(
    runtime: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    """Otherwise a power cut between the two would lose the text."""
    kept = runtime.chat.draft
    qtbot.keyClicks(window.composer.editor, "precious")
    await until(lambda: kept("") == "precious")
    async with runtime.chat.disk:
        qtbot.keyClick(window.composer.editor, Qt.Key.Key_Return)
        await until(lambda: ("new",) in runtime.chat.calls)
        assert window.composer.draft == ""
        await window.chat.drafts.save()
        assert kept("") == "precious"
    await until(lambda: runtime.chat.draft("") == "")


async def test_drafts_are_there_again_in_the_next_window(furnished: StagedRuntime, look: Look, qtbot: QtBot) -> None:
    window = joined(furnished, look)
    await window.start()
    qtbot.keyClicks(window.composer.editor, "Unsent words")
    note = document_from_text("lake.txt", "Deep.")
    window.composer.set_attachments([note])
    window.new_conversation()
    assert window.composer.chips.attachments == ()
    qtbot.keyClicks(window.composer.editor, "Another beginning")
    await window.finish()
    window.deleteLater()
    assert furnished.chat._do(Database.draft_texts) == {"lakes": "Unsent words", "": "Another beginning"}
    again = joined(furnished, look)
    await again.start()
    assert again.composer.draft == "Unsent words"
    assert again.composer.chips.attachments == (note,)
    again.new_conversation()
    assert again.composer.draft == "Another beginning"
    qtbot.keyClick(again.composer.editor, Qt.Key.Key_Return)
    await until(lambda: not furnished.chat.draft(""), "what was sent is no draft")
    again.chat.open("lakes")
    assert again.composer.chips.attachments == (note,)
    qtbot.keyClick(again.composer.editor, Qt.Key.Key_Return)
    await until(lambda: furnished.chat.said("lakes")[-1].attachments == (note,))
    assert furnished.chat._do(Database.draft_attachments) == {}, "nor what was sent with it"
    await again.finish()
    again.deleteLater()


async def test_a_reply_is_forked_into_a_new_chat(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    reply = (await views(window))[1]
    qtbot.mouseClick(button(reply, "Fork into a new chat"), LEFT)
    await until(lambda: window.chat.current not in (None, "lakes"))
    await views(window, 2)
    assert [message.content for message in window.transcript.messages] == ["Which lake is deepest?", "Reply 0."]
    assert len(said(furnished)) == 4, "the chat it comes from is as it was"


async def test_a_reply_is_made_again_by_another_model(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    facts = read_facts(write_gguf(tmp_path / "any.gguf"))
    furnished.models.there = [FoundModel(Path("/models/Other-7B.gguf"), "Other-7B", Source.CHOSEN, 9, facts)]
    reply = (await views(window))[3]
    qtbot.mouseClick(button(reply, "Regenerate with another model"), LEFT)
    menu = window.chat.model_menu
    await until(lambda: menu.isVisible() and menu.actions()[0].text().startswith("Other-7B"))
    menu.actions()[0].trigger()
    menu.close()
    await until(lambda: ("regenerate", reply.message.id) in furnished.chat.calls)
    assert ("use_model", "lakes", str(Path("/models/Other-7B.gguf"))) in furnished.chat.calls
    assert furnished.settings.model_path != str(Path("/models/Other-7B.gguf")), "new chats are answered as before"
