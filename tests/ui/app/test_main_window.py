"""The main window, used by keys, buttons and lists, with the staged runtime."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QLabel, QMenu, QPushButton
from pytestqt.qtbot import QtBot

from kvchat.chat.events import (
    EngineSilent,
    FirstToken,
    Notice,
    Prefilling,
    ReadAheadProgress,
    ReplyDelta,
    Speed,
    TurnFailed,
)
from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import MessageState, Role
from kvchat.chat.turn.forecasts import Forecast
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.errors import EngineError, EngineFailed, EngineFailure, FailureKind
from kvchat.errors import KvchatError
from kvchat.library.remote.downloader import DownloadOrder
from kvchat.library.remote.downloads import Download, DownloadState
from kvchat.library.remote.hub import HubFile, HubPart
from kvchat.session.events import Restored, Restoring
from kvchat.session.proof import Source, Verdict
from kvchat.text.formatting import ALWAYS_KEEP, NEVER_KEEP, VERIFY_MEMORY, TimeRange
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.theme import Look
from kvchat.ui.models.models_window import ModelsWindow
from kvchat.ui.transcript.footer import Timeline
from kvchat.ui.transcript.reply_view import ReplyView
from kvchat.ui.widgets.lists import ROW
from tests.ui.staged_runtime import StagedRuntime, a_receipt, spy
from tests.ui.waiting import LONG_MS, until
from tests.ui.windows import child, joined, question

pytestmark = pytest.mark.slow


@pytest.fixture
def furnished(runtime: StagedRuntime) -> StagedRuntime:
    """Add two conversations; `thesis` is the newer one."""
    for id, title in (("jeju", "Trip to Jeju"), ("thesis", "Thesis, chapter 3")):
        runtime.chat.add(title, id=id)
        runtime.chat.write(id, Role.USER, f"About {title}?")
        runtime.chat.write(id, Role.ASSISTANT, f"All about {title}.", receipt=a_receipt())
    return runtime


def replies(window: MainWindow) -> list[ReplyView]:
    return [view for view in window.transcript.views.values() if isinstance(view, ReplyView)]


def titles(window: MainWindow) -> list[str]:
    return [chat.title for chat in window.sidebar.model.chats]


def sources(window: MainWindow) -> list[Source | None]:
    model = window.sidebar.model
    rows = [model.index_of(chat.id).data(ROW) for chat in model.chats]
    return [row.forecast.source if row.forecast else None for row in rows]


def entry(menu: QMenu, words: str, *, fill: bool = True) -> QAction:
    """Return an entry of a menu that is filled when it opens."""
    if fill:
        menu.aboutToShow.emit()
    return next(action for action in menu.actions() if action.text() == words)


async def settled(window: MainWindow, runtime: StagedRuntime) -> None:
    """Wait until the open conversation is on the page."""
    wanted = len(runtime.chat.said(window.chat.current or ""))
    await until(lambda: len(window.transcript.views) == wanted, "the messages")


async def test_shows_the_newest_conversation_and_tells_the_runtime(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await settled(window, furnished)
    assert titles(window) == ["Thesis, chapter 3", "Trip to Jeju"]
    assert window.header.title.full_text == "Thesis, chapter 3"
    assert ("select", "thesis") in furnished.chat.calls
    assert replies(window)[0].text == "All about Thesis, chapter 3."
    before = window.chat.current
    window.sidebar.list.setFocus()
    qtbot.keyClicks(window.sidebar.list, "Why?")
    assert (window.composer.draft, window.chat.current) == ("Why?", before)


async def test_what_is_written_is_told_as_it_is_written_and_reading_it_can_be_stopped(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await settled(window, furnished)
    qtbot.keyClicks(window.composer.editor, "one")
    assert furnished.chat.drafted == ("thesis", "one", ())
    high = window.status_strip.sizeHint().height()
    furnished.events.publish(ReadAheadProgress("thesis", 300, 2100, draft=True))
    assert "processing your draft: 300 of 2,100 tokens" in window.status_strip.remarks.text
    assert window.status_strip.progress.value() == 142
    assert (window.status_strip.stop_button.isVisible(), window.status_strip.sizeHint().height()) == (
        True,
        high,
    )  # the page stays in place
    qtbot.mouseClick(window.status_strip.stop_button, Qt.MouseButton.LeftButton)
    assert furnished.chat.calls[-1] == ("stop_reading_ahead", "thesis")
    furnished.events.publish(ReadAheadProgress("thesis", 2100, 2100, draft=True))
    assert "2,100 tokens processed ahead" in window.status_strip.remarks.text
    assert window.status_strip.stop_button.isHidden()


async def test_enter_sends_and_shift_enter_makes_a_line(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    editor = window.composer.editor
    qtbot.keyClicks(editor, "one")
    qtbot.keyClick(editor, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    qtbot.keyClicks(editor, "two")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    await until(lambda: ("send", "thesis", "one\ntwo") in furnished.chat.calls)
    assert window.composer.draft == ""


async def test_composer_is_as_high_as_its_words_need_in_another_width(window: MainWindow) -> None:
    editor, heights = window.composer.editor, []
    for count in (1, 4, 8, 20):
        window.composer.set_draft("\n".join("x" * count))
        heights.append(editor.height())
    assert heights[0] < heights[1] < heights[2] == heights[3]
    window.resize(1000, 600)
    window.composer.set_draft("What stands there? " * 6)
    await until(lambda: editor.width() > 500)
    wide, lines = editor.height(), editor.document().size().height()
    window.resize(400, 600)
    await until(lambda: editor.document().size().height() > lines and editor.height() > wide)
    window.resize(1000, 600)
    await until(lambda: editor.document().size().height() == lines and editor.height() == wide)


async def test_first_message_begins_a_conversation(runtime: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    composer = window.composer
    assert not composer.send_button.isEnabled()
    qtbot.keyClicks(composer.editor, "   ")
    assert not composer.send_button.isEnabled()
    qtbot.keyClicks(composer.editor, "Hello")
    assert (composer.send_button.isEnabled(), composer.send_button.accessibleName()) == (True, "Send")
    qtbot.mouseClick(composer.send_button, Qt.MouseButton.LeftButton)
    await until(lambda: titles(window) == ["Hello"])
    assert runtime.chat.calls[-1] == ("send", window.chat.current, "Hello")
    assert window.header.title.full_text == "Hello"
    qtbot.keyClick(composer.editor, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    assert (window.chat.current, len(window.transcript.views)) == (None, 0)
    assert not entry(window.header.chat_menu, ALWAYS_KEEP).isEnabled()
    assert entry(window.header.chat_menu, "Chat settings…").isEnabled()
    qtbot.keyClick(composer.editor, Qt.Key.Key_Down, Qt.KeyboardModifier.ControlModifier)
    await until(lambda: window.header.title.full_text == "Hello")


@pytest.mark.parametrize("begun", [True, False])
async def test_a_message_goes_where_enter_was_pressed(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot, begun: bool
) -> None:
    """On a busy machine, later keys are handled before the message is sent."""
    if not begun:
        window.new_conversation()
    here, calls, editor = window.chat.current, furnished.chat.calls, window.composer.editor
    qtbot.keyClicks(editor, "for this chat")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    window.chat.open("jeju")
    await until(lambda: [call for call in calls if call[0] == "send"])
    (_send, chat, _text), *_more = (call for call in calls if call[0] == "send")
    assert chat == here if begun else chat not in ("jeju", "thesis")
    assert (window.chat.current, window.composer.draft) == ("jeju", "")
    window.new_conversation()
    assert window.composer.draft == ""


async def test_streaming_then_stop(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    window.chat.send_controller.send("go on")
    await until(lambda: furnished.chat.answering_chats[:1] == ("thesis",))
    assert window.composer.send_button.accessibleName() == "Stop"
    furnished.events.publish(Prefilling("thesis", 100, 400))
    assert window.transcript.tail.pending_label.text() == "Processing 25% of 400 tokens…"
    for piece in ("One ", "two ", "**three**"):
        furnished.chat.say(piece)
    await until(lambda: "One two **three**" in [reply.text for reply in replies(window)])
    assert window.transcript.tail.pending_label.isHidden()
    qtbot.mouseClick(window.composer.send_button, Qt.MouseButton.LeftButton)
    await until(lambda: replies(window)[-1].message.state is MessageState.STOPPED)
    assert ("stop", "thesis") in furnished.chat.calls
    assert window.composer.send_button.accessibleName() == "Send"


async def test_a_reply_goes_on_while_another_conversation_is_read(furnished: StagedRuntime, window: MainWindow) -> None:
    window.chat.send_controller.send("go on")
    await until(lambda: furnished.chat.answering_chats[:1] == ("thesis",))
    furnished.chat.say("first half, ")
    window.chat.open("jeju")
    furnished.chat.say("second half")
    await settled(window, furnished)
    assert window.composer.send_button.accessibleName() == "Send"
    assert [reply.text for reply in replies(window)] == ["All about Trip to Jeju."]
    window.chat.open("thesis")
    await until(lambda: replies(window) and replies(window)[-1].text == "first half, second half")


async def test_click_switches_and_each_conversation_keeps_its_draft(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await settled(window, furnished)
    qtbot.keyClicks(window.composer.editor, "half a thought")
    view = window.sidebar.list
    where = view.visualRect(window.sidebar.model.index_of("jeju")).center()
    qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=where)
    await until(lambda: window.chat.current == "jeju")
    await settled(window, furnished)
    assert replies(window)[0].text == "All about Trip to Jeju."
    assert window.composer.draft == ""
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_Up, Qt.KeyboardModifier.ControlModifier)
    await until(lambda: window.chat.current == "thesis")
    assert window.composer.draft == "half a thought"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["still there", "gone on to another"])
async def test_words_for_a_conversation_that_could_not_begin_come_back(
    runtime: StagedRuntime, window: MainWindow, qtbot: QtBot, elsewhere: bool
) -> None:
    runtime.chat.add("Other", id="other")
    runtime.chat.refuse = KvchatError("Your chats could not be read or written", "The disk is full.")
    qtbot.keyClicks(window.composer.editor, "precious")
    async with runtime.chat.disk:
        qtbot.keyClick(window.composer.editor, Qt.Key.Key_Return)
        await until(lambda: ("new",) in runtime.chat.calls)
        if elsewhere:
            window.chat.open("other")
    await until(lambda: window.notices.visible_notices)
    if elsewhere:
        assert window.composer.draft == ""
        window.new_conversation()
    assert window.composer.draft == "precious"
    assert not [call for call in runtime.chat.calls if call[0] == "send"]


async def test_a_title_that_looks_like_html_is_shown_as_it_is(runtime: StagedRuntime, window: MainWindow) -> None:
    title = "<b>bold</b> & <img src='file:///etc/passwd'> " * 4
    runtime.chat.add(title, id="html")
    await until(lambda: titles(window) == [title])
    window.chat.open("html")
    window.resize(600, 420)
    await until(lambda: "&lt;img" in window.header.title.toolTip())
    assert window.header.title.text().startswith("<b>bold")


async def test_dots_say_where_a_conversation_is(furnished: StagedRuntime, window: MainWindow) -> None:
    await until(lambda: sources(window) == [Source.COLD, Source.COLD])
    for chat in ("jeju", "thesis"):
        furnished.chat.say("A long answer. " * 30)
        furnished.chat.finish()
        await furnished.chat.send(chat, "And then?")
    await until(lambda: sources(window) == [Source.HOT, Source.WARM])
    furnished.kept = {"jeju": 136_000_000}
    window.chat.conversations.reload_soon()
    await until(lambda: window.sidebar.usage_button.text() == "Storage 136 MB of 20 GB")
    furnished.set_engine(EngineState.STOPPED)
    await until(lambda: sources(window)[0] is Source.WARM)


async def test_each_chat_says_how_long_it_would_take(
    furnished: StagedRuntime, window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot, cold = (Forecast(Source.HOT, 0, TimeRange(0.3, 0.3)), Forecast(Source.COLD, 0, TimeRange(41.3, 41.3)))

    async def forecast(_models: object) -> dict[str, Forecast]:
        return {"thesis": hot, "jeju": cold}

    monkeypatch.setattr(furnished.chat.forecasts, "forecast_chats", forecast)
    window.chat.conversations.reload_soon()
    index_of, chats = window.sidebar.model.index_of, ("thesis", "jeju")
    names = [
        "Thesis, chapter 3, still loaded: replies immediately",
        "Trip to Jeju, must be reprocessed: replies in about 41 s",
    ]
    roles = Qt.ItemDataRole.AccessibleTextRole, Qt.ItemDataRole.ToolTipRole
    await until(lambda: [index_of(id).data(roles[0]) for id in chats] == names)
    assert index_of("jeju").data(roles[1]) == names[1].replace(", ", "\n", 1)
    assert [index_of(id).data(ROW).forecast.is_noticeable for id in chats] == [False, True]


async def test_only_chats_in_sight_are_asked_how_long_they_would_take(
    furnished: StagedRuntime, window: MainWindow
) -> None:
    for number in range(1000):
        furnished.chat.add(f"Chat {number}")
    asked: list[tuple[Any, ...]] = []
    spy(furnished.chat.forecasts, asked, "forecast_chats")
    window.chat.conversations.reload_soon()
    await until(lambda: window.sidebar.model.rowCount() == 1003 and asked)
    assert sum(len(chats) for _, chats in asked) < 100
    asked.clear()
    window.sidebar.list.scrollToBottom()
    await until(lambda: any("jeju" in chats for _, chats in asked))


async def test_a_failed_turn_offers_to_try_again(furnished: StagedRuntime, window: MainWindow, qtbot: QtBot) -> None:
    window.chat.send_controller.send("go on")
    await until(lambda: furnished.chat.answering_chats[:1] == ("thesis",))
    furnished.events.publish(TurnFailed("thesis", KvchatError("Out of memory", "3.2 GB short.", "Close something.")))
    furnished.chat.finish()
    card = window.transcript.tail.failure_card
    assert (card.title.text(), card.detail.text(), card.advice_label.text()) == (
        "Out of memory",
        "3.2 GB short.",
        "Close something.",
    )
    await until(lambda: card.isVisible() and not window.transcript.tail.unanswered_row.isVisible())
    qtbot.mouseClick(card.retry_button, Qt.MouseButton.LeftButton)
    assert ("retry", "thesis") in furnished.chat.calls
    assert card.isHidden()


async def test_an_interrupted_reply_offers_to_try_again(furnished: StagedRuntime, window: MainWindow) -> None:
    furnished.chat.write("thesis", Role.USER, "And?")
    furnished.chat.write("thesis", Role.ASSISTANT, "Half an ans", state=MessageState.INTERRUPTED)
    await settled(window, furnished)
    again = [b for b in replies(window)[-1].findChildren(QPushButton) if b.text() == "Try again"]
    again[0].click()
    assert ("retry", "thesis") in furnished.chat.calls


async def test_one_card_where_engine_and_turn_fail_alike(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await settled(window, furnished)
    furnished.chat.write("thesis", Role.USER, "And then?")
    failure = EngineFailure(FailureKind.OUT_OF_MEMORY, "The model does not fit", "It needs 9 GB.", "Choose another.")
    furnished.events.publish(TurnFailed("thesis", EngineError(failure.title, failure.detail, failure.advice)))
    await until(lambda: window.transcript.tail.failure_card.isVisible())
    furnished.set_engine(EngineState.FAILED, failure=failure)
    assert window.engine_card.isVisible()
    assert not window.transcript.tail.failure_card.isVisible()
    await until(window.transcript.tail.unanswered_row.isVisible)
    qtbot.mouseClick(window.transcript.tail.answer_button, Qt.MouseButton.LeftButton)
    await until(lambda: ("retry", "thesis") in furnished.chat.calls)


async def test_message_is_sent_again_when_the_paired_computer_is_back(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await settled(window, furnished)
    furnished.chat.write("thesis", Role.USER, "And then?")
    failure = EngineFailure(FailureKind.AWAY, "gpubox is not available", "It does not answer.", "kvchat keeps trying.")
    furnished.events.publish(TurnFailed("thesis", EngineFailed(failure)))
    furnished.set_engine(EngineState.FAILED, failure=failure)
    tail, card = window.transcript.tail, window.engine_card
    await until(tail.resend_button.isVisible)
    assert (card.restart_button.text(), card.own_engine_button.isVisible()) == ("Try again", True)
    assert not card.log_button.isVisible()
    qtbot.mouseClick(tail.resend_button, Qt.MouseButton.LeftButton)
    assert not tail.resend_button.isVisible()
    assert tail.unanswered_label.text() == "kvchat sends this message when the computer is back."
    furnished.set_engine(EngineState.STARTING, failure=failure)
    assert ("retry", "thesis") not in furnished.chat.calls
    furnished.set_engine(EngineState.READY)
    await until(lambda: ("retry", "thesis") in furnished.chat.calls)
    assert not card.isVisible()
    assert furnished.chat.calls.count(("retry", "thesis")) == 1


async def test_imported_memory_is_verified_from_the_menu_of_its_chat(
    furnished: StagedRuntime, window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def verify(chat: str) -> bool:
        asked.append(chat)
        return True

    monkeypatch.setattr(furnished.chat.memory_verifier, "verify", verify)
    window.show_chat("jeju")
    await until(lambda: window.chat.current == "jeju")

    def entry() -> QAction | None:
        window.header.chat_menu.aboutToShow.emit()
        return next((action for action in window.header.chat_menu.actions() if action.text() == VERIFY_MEMORY), None)

    assert entry() is None
    furnished.keep(replace(furnished.usage_of("jeju"), imported=True))
    window.chat.conversations.reload_soon()
    await until(lambda: entry() is not None)
    (verify := entry()) and verify.trigger()
    await until(lambda: asked == ["jeju"])
    told = [notice.texts[0] for notice in window.notices.visible_notices]
    await until(
        lambda: (
            "The memory of this chat was verified" in [notice.texts[0] for notice in window.notices.visible_notices]
        ),
        told,
    )


async def test_pin_and_never_save_from_the_conversation_s_own_menus(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await settled(window, furnished)
    furnished.kept["thesis"] = 1000
    shown = window.header.chat_menu
    shown.popup(window.mapToGlobal(window.rect().center()))
    action = next(action for action in shown.actions() if action.text() == ALWAYS_KEEP)
    qtbot.mouseClick(shown, Qt.MouseButton.LeftButton, pos=shown.actionGeometry(action).center())
    await until(lambda: ("pin", "thesis", True) in furnished.calls)
    await until(lambda: getattr(window.sidebar.model.index_of("thesis").data(ROW).usage, "pinned", False))
    assert entry(shown, ALWAYS_KEEP).isChecked()
    jeju = window.sidebar.model.index_of("jeju")
    where = window.sidebar.list.visualRect(jeju).center()
    window.sidebar.list.customContextMenuRequested.emit(where)
    menu = next(menu for menu in window.sidebar.list.findChildren(QMenu) if menu.isVisible())
    never = next(action for action in menu.actions() if action.text() == NEVER_KEEP)
    assert not never.isChecked()
    qtbot.mouseClick(menu, Qt.MouseButton.LeftButton, pos=menu.actionGeometry(never).center())
    await until(lambda: ("never_save", "jeju", True) in furnished.calls)
    await until(lambda: getattr(window.sidebar.model.index_of("jeju").data(ROW).usage, "never_save", False))
    spoken = [window.sidebar.model.index_of(id).data(Qt.ItemDataRole.AccessibleTextRole) for id in ("thesis", "jeju")]
    assert spoken == [
        "Thesis, chapter 3, must be reprocessed, always kept",
        "Trip to Jeju, must be reprocessed, never kept",
    ]


@pytest.fixture
def named_by_the_model(furnished: StagedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    async def generate(chat: str) -> None:
        furnished.chat.change(chat, title="Named by the model")

    monkeypatch.setattr(furnished.chat.title_generator, "generate", generate)


@pytest.mark.usefixtures("named_by_the_model")
async def test_both_menus_of_a_chat_have_the_same_entries(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await settled(window, furnished)

    def words(menu: QMenu) -> list[str]:
        return [action.text() for action in menu.actions()]

    entry(window.header.chat_menu, "Rename")
    view, index = window.sidebar.list, window.sidebar.model.index_of("jeju")
    row = view.visualRect(index)
    qtbot.mouseMove(view.viewport(), row.center())
    dots = QPoint(row.right() - 16, row.center().y())
    qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=dots)
    menu = next(menu for menu in view.findChildren(QMenu) if menu.isVisible())
    assert window.chat.current == "thesis", "the row is not opened for that"
    assert words(menu) == words(window.header.chat_menu)
    assert {"Rename", "Pin", "Chat settings…", "Export with memory…", "Delete"} <= set(words(menu))
    entry(menu, "Generate a title for this chat", fill=False).trigger()
    menu.close()
    await until(lambda: furnished.chat.by_id["jeju"].title == "Named by the model")


async def test_engine_failure_card_and_its_buttons(furnished: StagedRuntime, window: MainWindow) -> None:
    failure = EngineFailure(FailureKind.BAD_MODEL, "Not a model", "It is truncated.", "Fetch it again.")
    furnished.set_engine(EngineState.FAILED, failure=failure)
    card = window.engine_card
    assert card.isVisible()
    assert (card.title.text(), card.detail.text(), card.advice_label.text()) == (
        "Not a model",
        "It is truncated.",
        "Fetch it again.",
    )
    card.restart_button.click()
    await until(lambda: ("restart_engine",) in furnished.calls)
    card.log_button.click()
    engine = window.side_windows.open_engine(show_log=True)
    assert "server is listening" in engine.log_page.text.toPlainText()
    engine.close()
    card.model_button.click()
    models = child(window, ModelsWindow)
    assert models.isVisible()
    furnished.set_engine(EngineState.READY)
    assert card.isHidden()


async def test_errors_notices_and_bugs_are_shown_in_one_place(furnished: StagedRuntime, window: MainWindow) -> None:
    furnished.refuse = KvchatError("Cannot restart", "No model.", "Choose one.")
    window.header.requested.emit("restart-engine")
    await until(lambda: len(window.notices.visible_notices) == 1)
    assert window.notices.visible_notices[0].texts == ("Cannot restart", "No model. Choose one.")
    furnished.events.publish(Notice("Disk nearly full", "1.9 GB free."))
    furnished.events.publish(Notice("Disk nearly full", "1.9 GB free."))
    assert len(window.notices.visible_notices) == 2
    window.notices.visible_notices[0].close_button.click()
    assert [notice.texts[0] for notice in window.notices.visible_notices] == ["Disk nearly full"]
    furnished.refuse = ZeroDivisionError("by zero")  # type: ignore[assignment]
    window.header.requested.emit("restart-engine")
    await until(lambda: window.notices.report is not None)
    report = window.notices.report
    assert report is not None
    assert "ZeroDivisionError: by zero" in report.text.toPlainText()
    report.close()


async def test_an_open_receipt_stays_open_when_it_learns_what_came_after_the_reply(
    furnished: StagedRuntime, window: MainWindow
) -> None:
    await settled(window, furnished)
    receipt = replies(window)[0].receipt
    assert receipt is not None
    receipt.summary_button.click()
    last = furnished.chat.said("thesis")[-1]
    known = replace(last.receipt, settle_ms=220.0, save_ms=90.0)  # type: ignore[type-var]
    furnished.chat.set_receipt(last, known)
    await until(lambda: (view := replies(window)[0].receipt) is not None and view.receipt == known)
    receipt = replies(window)[0].receipt
    assert receipt is not None
    assert receipt.is_open
    assert receipt.details is not None
    timeline = child(receipt.details, Timeline)
    assert timeline.isVisible()
    told = "Loading 21 ms, Processing 70 ms, First token 0.22 s, Generating 9.98 s, Finalizing 0.22 s, Saving 90 ms"
    assert timeline.accessibleName() == f"Timeline: {told}"


async def test_strip_shows_engine_context_and_turn(furnished: StagedRuntime, window: MainWindow) -> None:
    await settled(window, furnished)
    strip = window.status_strip
    assert strip.state.text() == "ready"
    assert strip.model.full_text == "SmolLM2-135M-Instruct"
    assert strip.context.text() == "context 32K"
    assert "trained for" in strip.context.toolTip()
    furnished.events.publish(Prefilling("thesis", 2959, 5918))
    assert strip.remarks.text == "processing 50% of 5,918 tokens"
    assert strip.progress.isVisible()
    furnished.events.publish(FirstToken("thesis", 310, 5906, 5918, Verdict(Source.HOT, hollow=False, miss_reason=None)))
    assert strip.remarks.text == "still loaded · first token after 0.31 s"
    assert not strip.progress.isVisible()
    furnished.events.publish(Prefilling("jeju", 1, 2))
    assert strip.remarks.text == "still loaded · first token after 0.31 s"
    furnished.events.publish(Speed("thesis", 41.3, 6000))
    assert strip.context.isVisible()
    window.resize(420, 600)
    both = ["still loaded", "first token after 0.31 s"]
    await until(lambda: [piece.text for piece in strip.remarks.fitting(strip.remarks.width())][:2] == both)
    window.resize(1100, 600)
    await until(lambda: strip.width() == 1100)
    assert strip.model.isVisible()
    furnished.events.publish(EngineSilent("thesis", 12.4))
    assert strip.state.text() == "not responding"
    assert strip.remarks.text == "still loaded · first token after 0.31 s · no output for 12 s"
    furnished.events.publish(EngineSilent("thesis", 0.0))
    assert strip.state.text() == "ready"
    assert "no output" not in strip.remarks.text


async def test_the_strip_forgets_what_it_told_of_a_chat_when_another_is_opened(
    furnished: StagedRuntime, window: MainWindow
) -> None:
    await settled(window, furnished)
    furnished.events.publish(Restoring(61_000_000, 687, conversation_id="thesis"))
    furnished.events.publish(Restored(61_000_000, 687, 47.0, conversation_id="thesis"))
    assert window.status_strip.remarks.text == "loaded 61 MB in 47 ms"
    window.chat.open("jeju")
    assert window.status_strip.remarks.text == ""
    window.chat.open("thesis")
    furnished.events.publish(ReadAheadProgress("thesis", 687, 2645, draft=False))
    assert window.status_strip.remarks.text == "processing this chat: 687 of 2,645 tokens"
    window.chat.open("jeju")
    furnished.events.publish(ReplyDelta("thesis", "m", "words", ""))
    furnished.events.publish(Speed("thesis", 41.3, 6000))
    window.chat.open("thesis")
    assert "41 tokens/s" in window.status_strip.remarks.text, "a reply that goes on stays told"


async def test_the_window_remembers_its_place(furnished: StagedRuntime, window: MainWindow, look: Look) -> None:
    window.resize(700, 500)
    window.close()
    window.window_state.wait_until_written()
    again = joined(furnished, look)
    assert (again.width(), again.height()) == (700, 500)
    assert (furnished.paths.config / "window.ini").exists()
    again.deleteLater()


@pytest.mark.parametrize("way", ["close", "quit"])
async def test_quitting_in_the_middle_of_something_asks(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot, way: str
) -> None:
    heard: list[bool] = []
    window.quit_requested.connect(lambda: heard.append(True))
    leave = window.close if way == "close" else window.keyboard.actions["quit"].trigger
    window.chat.send_controller.send("go on")
    await until(lambda: furnished.chat.answering_chats[:1] == ("thesis",))
    window.transfer.in_progress.append("Importing…")
    order = DownloadOrder("a/b", "c", HubFile("m", "", (HubPart("m.gguf", 10, "0" * 64),)))
    waiting = Download(order, Path("m.gguf"), DownloadState.FETCHING)
    furnished.models.downloads._downloads[waiting.path] = waiting
    leave()
    leave()
    asked = question(window)
    words = " ".join(label.text() for label in asked.findChildren(QLabel))
    assert all(part in words for part in ("“Thesis, chapter 3”", "1 model is being downloaded", "Importing"))
    assert (heard, window.isVisible()) == ([], True)
    qtbot.keyClick(asked, Qt.Key.Key_Return)  # staying is the default
    assert heard == []
    window.transfer.in_progress.clear()
    furnished.models.downloads._downloads.clear()
    leave()
    question(window).confirm_button.click()
    assert heard == [True]
    furnished.chat.finish()
    await until(lambda: not furnished.chat.answering_chats)
    leave()
    assert heard == [True, True]


async def test_escape_before_the_first_word_ends_what_the_strip_tells(
    furnished: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    await settled(window, furnished)
    window.chat.send_controller.send("What about chapter 4?")
    await until(lambda: furnished.chat.is_answering("thesis"), "the turn")
    furnished.events.publish(Prefilling("thesis", 0, 559))
    assert window.status_strip.progress.isVisible()
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_Escape)
    await until(lambda: not window.status_strip.progress.isVisible(), "the end of the reading")
    assert not furnished.chat.answering_chats
    assert "processing" not in window.status_strip.remarks.text


async def test_a_chat_that_waits_says_for_which_and_can_go_first(furnished: StagedRuntime, window: MainWindow) -> None:
    await settled(window, furnished)
    furnished.chat.send("jeju", "What is it?")
    await until(lambda: "jeju" in furnished.chat.answering_chats)
    window.chat.send_controller.send("What about chapter 4?")
    pending, first = window.transcript.tail.pending_label, window.transcript.tail.prioritize_button
    await until(lambda: pending.text().startswith("Waiting for “Trip to Jeju”"))
    furnished.events.publish(Prefilling("jeju", 400, 1000))
    assert pending.text() == "Waiting for “Trip to Jeju”: processing 40%."
    furnished.chat.say("It is an island")
    await until(lambda: pending.text() == "Waiting for “Trip to Jeju”: generating its reply, 4 words so far.")
    assert first.isVisible()
    first.click()
    assert "Trip to Jeju" in question(window).findChildren(QLabel)[1].text()
    question(window).confirm_button.click()
    await until(lambda: "thesis" in furnished.chat.answering_chats)
    await until(first.isHidden)
    assert furnished.chat.said("jeju")[-1].state is MessageState.STOPPED


async def test_what_is_done_in_the_first_picture_is_kept(furnished: StagedRuntime, look: Look, qtbot: QtBot) -> None:
    newest, other = (chat.id for chat in (await furnished.chat.conversations())[:2])
    drafts = {other: "Before: ", newest: "Of another day"}
    await furnished.chat.turn_context.run(Database.store_drafts, drafts)
    window = MainWindow(look, furnished.paths.config)
    qtbot.addWidget(window)
    window.show()
    assert not window.sidebar.empty_label.isVisible(), (
        "as long as chats are not read, or cannot be, nothing is said of them"
    )
    qtbot.keyClicks(window.composer.editor, ", and more")
    window.show_initial_chats(await furnished.chat.conversations(), drafts)
    assert window.sidebar.chosen == [newest]
    assert window.composer.draft == "Of another day, and more"
    assert (window.header.model_button.isVisible(), window.status_strip.state.text()) == (
        False,
        "",
    )  # not "No model", "stopped"
    window.sidebar.show_selected(other)
    window.sidebar.selected.emit(other)
    qtbot.keyClicks(window.composer.editor, "typed early")
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_B, Qt.KeyboardModifier.ControlModifier)
    window.join(furnished)
    await window.start()
    assert window.sidebar.isHidden()
    assert (window.chat.current, window.sidebar.chosen) == (other, [other])
    assert window.composer.draft == "Before: typed early"
    assert window.composer.send_button.isEnabled()
    await window.finish()
    assert furnished.chat.draft(newest) == "Of another day, and more"


@pytest.mark.parametrize("room", ["at once", "never"])
async def test_what_cannot_be_kept_is_told_and_stays_to_be_kept(
    runtime: StagedRuntime, look: Look, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, room: str
) -> None:
    window = joined(runtime, look)
    window.show()
    await window.start()
    kept, keep = runtime.chat.draft, Database.store_drafts

    def refuse(*_: object) -> None:
        raise StorageFailed("Your chats could not be read or written", "database or disk is full")

    monkeypatch.setattr(Database, "store_drafts", refuse)
    qtbot.keyClicks(window.composer.editor, "precious")
    await until(lambda: window.notices.visible_notices, "the error")
    if room == "at once":
        monkeypatch.setattr(Database, "store_drafts", keep)
        window.chat.drafts._retry.start(0)
        await until(lambda: kept("") == "precious", "what is tried again")
        await window.finish()
    else:
        with pytest.raises(StorageFailed):  # who quits is told
            await window.finish()
    window.deleteLater()


async def test_a_first_picture_that_is_closed_ends_the_app(furnished: StagedRuntime, look: Look, qtbot: QtBot) -> None:
    window = MainWindow(look, furnished.paths.config)
    qtbot.addWidget(window)
    with qtbot.waitSignal(window.quit_requested, timeout=LONG_MS):
        window.close()
