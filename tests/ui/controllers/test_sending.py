"""Messages written during a reply, in the real window with the staged runtime."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import NEW_CHAT_ID, QUEUED_PREFIX, Attachment, Role
from kvchat.engine.api.wire import CallDelta, ChatChunk
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from kvchat.ui.chat.composer import Composer
from tests.ui.app.test_language import the_app
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import button, joined, on_show


def enter(qtbot: QtBot, composer: Composer, words: str) -> None:
    qtbot.keyClicks(composer.editor, words)
    qtbot.keyClick(composer.editor, Qt.Key.Key_Return)


def sent(runtime: StagedRuntime) -> list[str]:
    return [call[2] for call in runtime.chat.calls if call[0] == "send"]


async def answering(window: MainWindow, runtime: StagedRuntime, qtbot: QtBot) -> str:
    """Send a message in chat d and wait until the reply has begun."""
    await until(lambda: window.chat.current == "d" and window.transcript.messages)
    enter(qtbot, window.composer, "first")
    await until(lambda: runtime.chat.is_answering("d"))
    runtime.chat.say("Well")
    return "d"


async def test_enter_during_a_reply_queues_and_the_reply_s_end_sends(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    chat, waiting = await answering(window, furnished, qtbot), window.composer.queued_message
    enter(qtbot, window.composer, "second")
    assert window.composer.draft == ""
    assert (waiting.isVisible(), waiting.summary.full_text, waiting.send_button.isVisible()) == (True, "second", False)
    qtbot.mouseClick(waiting.edit_button, Qt.MouseButton.LeftButton)
    assert (window.composer.draft, waiting.isVisible()) == ("second", False)
    enter(qtbot, window.composer, " try")
    assert not window.composer.send_after_reply_button.isVisible(), "there is nothing to send"
    window.composer.editor.insertPlainText("and more")
    qtbot.mouseClick(button(window.composer, "Send after this reply"), Qt.MouseButton.LeftButton)
    assert (window.composer.draft, furnished.chat.is_answering(chat)) == ("", True)
    assert window.chat.send_controller.queued(chat)[0] == "second try\n\nand more"
    window.chat.open("a")
    assert not waiting.isVisible(), "it waits in its own chat"
    furnished.chat.finish()
    await until(lambda: sent(furnished) == ["first", "second try\n\nand more"])
    window.chat.open(chat)
    assert not waiting.isVisible()
    furnished.chat.finish()
    await until(lambda: not window.runner._tasks)
    assert len(sent(furnished)) == 2


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_message_of_the_first_picture_is_sent_unless_edited(
    furnished: StagedRuntime, look: Look, qtbot: QtBot, goes_on: bool
) -> None:
    window = MainWindow(look, furnished.paths.config)
    window.show()
    window.show_initial_chats(await furnished.chat.conversations(), {})
    enter(qtbot, window.composer, "first")
    assert window.composer.notice.text() == "Your message will be sent once kvchat has started."
    if goes_on:
        qtbot.keyClicks(window.composer.editor, " half")
        assert window.composer.notice.isHidden()
    window.join(furnished)
    await window.start()
    await until(lambda: sent(furnished) == ([] if goes_on else ["first"]))
    assert (window.chat.current, window.composer.draft) == ("d", "first half" if goes_on else "")
    furnished.chat.finish()
    await window.finish()
    window.close()
    window.deleteLater()


@pytest.mark.parametrize(("part", "method"), [("drafts", "load"), ("conversations", "start")])
async def test_text_typed_at_any_moment_of_the_start_is_kept(
    furnished: StagedRuntime, look: Look, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, part: str, method: str
) -> None:
    window = joined(furnished, look)
    window.show()
    loader = getattr(window.chat, part)
    load = getattr(loader, method)

    async def type_and_load() -> None:
        qtbot.keyClicks(window.composer.editor, "typed")
        await load()

    monkeypatch.setattr(loader, method, type_and_load)
    await window.start()
    assert (window.chat.current, window.composer.draft) == (None, "typed")
    await window.finish()
    window.close()
    window.deleteLater()


@pytest.mark.parametrize("has_long_draft", [False, True])
async def test_text_and_attachment_of_the_start_are_kept_while_the_drafts_load(
    furnished: StagedRuntime, look: Look, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, has_long_draft: bool
) -> None:
    if has_long_draft:
        furnished.chat._do(Database.store_drafts, {NEW_CHAT_ID: "word " * 30_000}, {})
    window = joined(furnished, look)
    window.show()
    drafts, composer, run = window.chat.drafts, window.composer, furnished.chat.turn_context.run
    qtbot.keyClicks(composer.editor, "typed")
    composer.text_given.emit("long")

    async def read_slowly(function: Callable[..., object], *given: object) -> object:
        await until(lambda: drafts.attachments_of(None))
        return await run(function, *given)

    monkeypatch.setattr(drafts, "_run", read_slowly)
    await window.start()
    texts = [attachment.text.strip() for attachment in composer.chips.attachments]
    assert (composer.draft, texts) == ("typed", ["long", *[("word " * 30_000).strip()] * has_long_draft])
    await window.finish()
    window.close()
    window.deleteLater()


async def test_what_is_removed_is_not_sent_and_stop_asks_first(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    chat, waiting = await answering(window, furnished, qtbot), window.composer.queued_message
    enter(qtbot, window.composer, "never")
    qtbot.mouseClick(waiting.remove_button, Qt.MouseButton.LeftButton)
    assert not waiting.isVisible()
    enter(qtbot, window.composer, "later")
    furnished.chat.stop(chat)
    await until(lambda: waiting.send_button.isVisible())
    await until(lambda: not window.runner._tasks)
    assert sent(furnished) == ["first"]
    qtbot.mouseClick(waiting.send_button, Qt.MouseButton.LeftButton)
    await until(lambda: sent(furnished) == ["first", "later"])
    assert not waiting.isVisible()


@pytest.mark.parametrize("stops", [True, False])
async def test_it_waits_for_the_replies_after_tool_calls_and_stop_asks_first(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot, stops: bool
) -> None:
    chat = await answering(window, furnished, qtbot)
    enter(qtbot, window.composer, "later")
    furnished.engine.server.played.put_nowait(ChatChunk(calls=(CallDelta(0, "1", "nothing", "{}"),)))
    furnished.chat.finish()
    await until(lambda: [message.role for message in furnished.chat.said(chat)[-2:]] == [Role.TOOL, Role.ASSISTANT])
    if stops:
        furnished.chat.say("So")
        await until(lambda: window.chat.turn_of(chat).live_text == "So")
        furnished.chat.stop(chat)
        await until(lambda: not furnished.chat.is_answering(chat))
        await until(lambda: len(sent(furnished)) > 1 or not window.runner._tasks)
    else:
        furnished.chat.finish()
        await until(lambda: len(sent(furnished)) == 2)
        furnished.chat.finish()
    assert sent(furnished) == (["first"] if stops else ["first", "later"])


async def test_it_outlives_the_window_and_is_sent_once(furnished: StagedRuntime, look: Look, qtbot: QtBot) -> None:
    async with on_show(furnished, look) as window:
        chat = await answering(window, furnished, qtbot)
        enter(qtbot, window.composer, "later")
    assert furnished.chat.draft(QUEUED_PREFIX + chat) == "later"
    furnished.chat.stop(chat)
    await until(lambda: not furnished.chat.answering_chats)
    async with on_show(furnished, look) as window:
        await until(
            lambda: (
                window.composer.queued_message.isVisible() and window.composer.queued_message.send_button.isVisible()
            )
        )
        window.chat.retry()
        furnished.chat.say("Well")
        furnished.chat.finish()
        await until(lambda: len(sent(furnished)) == 2)
        furnished.chat.finish()
        await until(lambda: furnished.chat.draft(QUEUED_PREFIX + chat) == "", "nothing left that could be sent again")
        assert sent(furnished) == ["first", "later"]


async def test_it_comes_back_with_the_first_message_of_a_chat_that_could_not_begin(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    window.new_conversation()
    storing = threading.Event()

    def fail(*_: object) -> None:
        assert storing.wait(60)
        raise StorageFailed("Your chats could not be read or written", "The disk is full.")

    with monkeypatch.context() as failing:
        failing.setattr(Database, "append_question", fail)
        enter(qtbot, window.composer, "first")
        await until(lambda: sent(furnished) == ["first"])
        enter(qtbot, window.composer, "second")
        assert window.composer.queued_message.isVisible()
        storing.set()
        await until(lambda: window.composer.draft)
    assert (window.composer.draft, window.chat.current) == ("first\n\nsecond", None)
    assert not window.composer.queued_message.isVisible()
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_Return)
    await until(lambda: sent(furnished) == ["first", "first\n\nsecond"])


@pytest.mark.parametrize("is_new", [True, False])
async def test_of_two_messages_sent_in_one_moment_the_second_is_queued(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot, is_new: bool
) -> None:
    window.chat.open(None if is_new else "d")
    chats_before = set(furnished.chat.by_id)
    enter(qtbot, window.composer, "first")
    enter(qtbot, window.composer, "second")
    await until(lambda: window.composer.queued_message.isVisible() or window.notices.visible_notices)
    assert (sent(furnished), window.notices.visible_notices) == (["first"], [])
    await until(lambda: furnished.chat.answering_chats)
    furnished.chat.finish()
    await until(lambda: sent(furnished) == ["first", "second"])
    furnished.chat.finish()
    assert len(set(furnished.chat.by_id) - chats_before) == is_new


async def test_words_that_no_chat_can_hold_back_stay_in_the_composer(window: MainWindow, qtbot: QtBot) -> None:
    window.new_conversation()
    window.composer.set_busy(True)
    enter(qtbot, window.composer, "precious")
    assert window.composer.draft == "precious"


@pytest.mark.parametrize("gone", [False, True])
def test_a_queued_message_is_on_disk_as_long_as_its_chat(tmp_path: Path, gone: bool) -> None:
    with closing(Database(tmp_path / "chats.db")) as database:
        chat = database.create_conversation("Chat").id
        file = Attachment("a.txt", 1, "h", "text")
        database.store_drafts({QUEUED_PREFIX + chat: "later"}, {QUEUED_PREFIX + chat: (file,)})
        if gone:
            database.delete(chat)
        assert (database.draft_texts(), database.draft_attachments()) == (
            ({}, {}) if gone else ({QUEUED_PREFIX + chat: "later"}, {QUEUED_PREFIX + chat: (file,)})
        )


async def test_the_quick_window_queues_as_well(furnished: StagedRuntime, look: Look, qtbot: QtBot) -> None:
    async with the_app(furnished, look) as app:
        await until(lambda: app._window.chat.current)
        quick = app.start_requests.quick_window
        quick.toggle()
        enter(qtbot, quick.composer, "How high?")
        await until(lambda: sent(furnished) == ["How high?"])
        furnished.chat.say("8,848 m")
        await until(lambda: quick.composer.send_button.accessibleName() == "Stop")
        enter(qtbot, quick.composer, "In feet?")
        assert (quick.composer.queued_message.isVisible(), quick.composer.queued_message.summary.full_text) == (
            True,
            "In feet?",
        )
        furnished.chat.finish()
        await until(lambda: sent(furnished) == ["How high?", "In feet?"])
        assert not quick.composer.queued_message.isVisible()
