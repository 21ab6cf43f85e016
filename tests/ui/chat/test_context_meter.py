"""The context meter under the composer and the context card above it."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from kvchat.chat.attachments import document_from_text
from kvchat.chat.context import ContextUsage
from kvchat.chat.events import MessagesChanged, Notice, ReadAheadProgress
from kvchat.chat.record.messages import Attachment, Role
from kvchat.chat.turn.forecasts import Forecast
from kvchat.session.proof import Source
from kvchat.text.formatting import TimeRange
from kvchat.text.passages import quote_passage, split
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.attachments.chips import AttachmentView
from kvchat.ui.widgets.lists import ROW
from tests.ui.staged_runtime import StagedRuntime, a_receipt
from tests.ui.waiting import until


def furnish(runtime: StagedRuntime, window: MainWindow, used: int, *, turns: int = 3) -> str:
    """Open a chat that uses `used` of 32K tokens; return its id."""
    chat = runtime.chat.add("Thesis")
    for turn in range(turns):
        runtime.chat.write(chat.id, Role.USER, "?" * 4 * (used // turns - 13))  # four letters are a token
        runtime.chat.write(chat.id, Role.ASSISTANT, f"Answer {turn}.", receipt=a_receipt())
    window.chat.open(chat.id)
    return chat.id


async def test_the_meter_says_what_is_used_kept_and_left(runtime: StagedRuntime, window: MainWindow) -> None:
    furnish(runtime, window, 5906)
    await until(lambda: "5.9K of 32K tokens used" in window.context_meter.text.text())
    assert "2K reserved for the reply" in window.context_meter.text.text()
    assert window.context_card.isHidden()
    window.composer.editor.setPlainText("word " * 1000)
    await until(lambda: "in this message" in window.context_meter.text.text())


async def test_what_is_being_written_says_how_long_its_reply_would_take(
    runtime: StagedRuntime, window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    forecast = Forecast(Source.HOT, 2100, TimeRange(4.2, 4.2))

    async def foretell(*_: object) -> Forecast:
        return forecast

    monkeypatch.setattr(runtime.chat.forecasts, "forecast_message", foretell)
    chat, meter = furnish(runtime, window, 5906), window.context_meter
    await until(lambda: "tokens used" in meter.text.text())
    assert meter.wait_label.isHidden(), "nothing is written"
    window.composer.editor.setPlainText("word " * 1000)
    await until(meter.wait_label.isVisible)
    assert meter.wait_label.full_text == "about 4 s: 2,100 tokens to process"
    assert meter.accessibleName().endswith(
        "If sent now, the first token comes after about 4 s: 2,100 tokens to process"
    )
    forecast = Forecast(Source.HOT, 30, TimeRange(0.2, 0.2))
    runtime.events.publish(ReadAheadProgress(chat, 2000, 2000, draft=True))
    await until(meter.wait_label.isHidden)
    forecast = Forecast(Source.DISK, 30, TimeRange(1.6, 1.6))
    window.composer.editor.setPlainText("word " * 1001)
    await until(meter.wait_label.isVisible)
    assert meter.wait_label.full_text == "about 2 s: loading the chat memory, 30 tokens to process"
    window.composer.send_button.click()
    await until(meter.wait_label.isHidden)


async def test_a_nearly_full_context_offers_three_ways_out(runtime: StagedRuntime, window: MainWindow) -> None:
    furnish(runtime, window, 31_500)
    card = window.context_card
    await until(card.increase_button.isVisible)
    assert card.increase_button.text() == "Increase context to 64K"
    assert "needs about 6.2 GB" in card.advice_label.text()
    card.increase_button.click()
    await until(lambda: ("increase_context", 65_536) in runtime.calls)
    card.drop_button.click()
    await until(lambda: any("4 messages were left out" in n.texts[0] for n in window.notices.visible_notices))
    window.chat.open(furnish(runtime, window, 31_500))
    await until(card.summarize_button.isVisible)
    card.summarize_button.click()
    card.stop_button.click()
    await until(card.summarize_button.isVisible)
    card.summarize_button.click()
    await until(card.stop_button.isVisible)
    runtime.chat.say("It was about many things.")
    runtime.chat.finish()
    await until(lambda: any("4 messages were summarized" in n.texts[0] for n in window.notices.visible_notices))
    furnish(runtime, window, 31_500)
    await until(card.dismiss_button.isVisible)
    card.dismiss_button.click()
    await until(card.isHidden)


async def test_a_chat_that_nothing_here_can_hold_says_what_could(runtime: StagedRuntime, window: MainWindow) -> None:
    runtime.engine.larger, card = None, window.context_card
    runtime.chat.write(furnish(runtime, window, 0, turns=0), Role.USER, "?" * 160_000)
    await until(card.isVisible)
    assert card.drop_button.isHidden()
    assert card.increase_button.isHidden(), "no larger one fits"
    assert "a model with a longer context" in card.advice_label.text()
    assert not card.new_chat_button.isHidden()  # not only "Not now"
    card.new_chat_button.click()
    assert window.chat.current is None


async def test_a_notice_about_another_chat_names_it(runtime: StagedRuntime, window: MainWindow) -> None:
    about, other = runtime.chat.add("Tides"), runtime.chat.add("Bread")
    await window.chat.conversations.reload()
    window.chat.open(other.id)
    runtime.events.publish(Notice("The reply was cut off", "All 256 tokens of it are taken.", about.id))
    await until(lambda: window.notices.visible_notices)
    assert window.notices.visible_notices[0].texts[1] == "In “Tides”: All 256 tokens of it are taken."
    window.chat.open(about.id)
    runtime.events.publish(Notice("The reply was cut off", "All 512 tokens of it are taken.", about.id))
    assert window.notices.visible_notices[1].texts[1] == "All 512 tokens of it are taken."


async def test_a_question_that_did_not_fit_is_answered_after_dropping(
    runtime: StagedRuntime, window: MainWindow
) -> None:
    chat = furnish(runtime, window, 33_000)
    runtime.chat.write(chat, Role.USER, "And now?")
    await until(window.context_card.isVisible)
    window.context_card.drop_button.click()
    await until(lambda: ("retry", chat) in runtime.chat.calls)


async def test_a_refusal_leaves_one_card_and_nobody_answering(runtime: StagedRuntime, window: MainWindow) -> None:
    furnish(runtime, window, 33_000)
    window.chat.send_controller.send("One more?")
    await until(lambda: runtime.chat.said(window.chat.current or "")[-1].role is Role.USER)
    await window.chat.conversations.reload()
    await until(lambda: not window.sidebar.model.index(1).data(ROW).is_busy)
    await until(window.context_card.isVisible)
    assert window.context_card.title.text() == "The prompt exceeds the context length"
    await until(window.context_card.increase_button.isVisible)
    assert window.context_card.drop_button.isVisible()
    assert window.transcript.tail.failure_card.isHidden()
    assert window.transcript.tail.unanswered_row.isHidden()
    window.resize(400, 700)
    await until(lambda: window.centralWidget().minimumSizeHint().width() <= 400, "the buttons on several lines")
    card = window.context_card
    assert all(
        card.rect().contains(b.mapTo(card, b.rect().bottomRight())) for b in (card.increase_button, card.dismiss_button)
    )


async def test_what_cannot_fit_is_not_sent_and_part_of_it_can_be(
    runtime: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    chat = furnish(runtime, window, 5_000)
    card = window.context_card
    window.composer.set_attachments([document_from_text("words.txt", "words " * 400_000)])
    await until(lambda: "It has about 605K tokens; the context length is 32,768." in card.detail.text())
    window.composer.set_attachments([document_from_text("long.txt", "A line of words.\n" * 10_000)])
    qtbot.keyClicks(window.composer.editor, "What is in it?")
    await until(lambda: card.isVisible() and card.attach_part_button.isVisible())
    assert card.title.text() == "The prompt exceeds the context length"
    assert not window.composer.send_button.isEnabled()
    card.dismiss_button.click()
    assert card.isHidden()
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_Return)
    assert card.isVisible(), "what can be done is said again"
    assert window.composer.draft == "What is in it?"
    assert not [call for call in runtime.chat.calls if call[0] == "send"]
    card.attach_part_button.click()
    await until(lambda: window.composer.send_button.isEnabled())
    (part,) = window.composer.chips.attachments
    assert part.name == "Beginning of long.txt"
    assert 50_000 < len(part.text) < 170_000
    assert part.text.endswith("A line of words.")
    await until(card.isHidden)
    qtbot.keyClick(window.composer.editor, Qt.Key.Key_Return)
    await until(lambda: ("send", chat, "What is in it?") in runtime.chat.calls)


@pytest.mark.parametrize("has_document", [True, False])
async def test_text_typed_while_a_document_is_shortened_is_kept(
    runtime: StagedRuntime, window: MainWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, has_document: bool
) -> None:
    furnish(runtime, window, 5_000)
    card, composer, text = window.context_card, window.composer, "A line of words.\n" * 10_000
    shorten, shortened = runtime.chat.context.truncate_longest, asyncio.Event()

    async def type_and_shorten(
        chat: str | None, draft: str, attachments: Sequence[Attachment]
    ) -> tuple[Attachment, ...]:
        qtbot.keyClicks(composer.editor, "Why?")
        try:
            return await shorten(chat, draft, attachments)
        finally:
            shortened.set()

    monkeypatch.setattr(runtime.chat.context, "truncate_longest", type_and_shorten)
    if has_document:
        composer.set_attachments([document_from_text("long.txt", text)])
    else:
        composer.set_draft(text)
    await until(lambda: card.isVisible() and card.attach_part_button.isVisible())
    card.attach_part_button.click()
    await shortened.wait()
    await until(lambda: not window.runner._tasks)
    names = [attachment.name for attachment in composer.chips.attachments]
    expected = ("Why?", ["Beginning of long.txt"]) if has_document else (f"{text}Why?", [])
    assert (composer.draft, names) == expected


async def test_long_document_is_looked_up_in_and_its_passages_open_in_it(
    runtime: StagedRuntime, window: MainWindow, qtbot: QtBot
) -> None:
    chat = furnish(runtime, window, 5_000)
    card, text = window.context_card, "A line of words.\n\n" * 10_000 + "Herons stand here.\n\n" + "And so on.\n\n" * 9
    window.composer.set_attachments([document_from_text("long.txt", text)])
    await until(lambda: card.isVisible() and card.quote_button.isVisible())
    card.quote_button.click()
    await until(card.isHidden)
    (document,) = window.composer.chips.attachments
    assert (document.name, document.whole) == ("long.txt", text)
    await until(lambda: window.composer.chips.chips[0].count.text() == "passages only")
    passages = [passage for passage in split(text) if "Herons" in text[passage.start : passage.end]]
    quotes = replace(document_from_text("1 passage", quote_passage(text, passages[0])), source=document.hash)
    runtime.chat.write(chat, Role.USER, "Where are herons?", attachments=(document, quotes))
    place = f"[{passages[0].place}]"
    runtime.chat.write(chat, Role.ASSISTANT, f"Here: {place}, not [lines 1-2].", receipt=a_receipt())
    runtime.events.publish(MessagesChanged(chat))
    await until(lambda: len(window.transcript.messages) == 8)
    view, reply = (window.transcript.views[message.id] for message in window.transcript.messages[-2:])
    await until(lambda: view.chips is not None and reply.texts)
    view.chips.chips[1].name.click()
    (shown,) = window.findChildren(AttachmentView)
    assert shown.text.toPlainText() == text
    assert shown.text.textCursor().position() == passages[0].start
    assert shown.position_label.text() == "1 of 1"
    shown.close()
    assert place in reply.texts[0].toPlainText()
    links = re.findall('href="(place:[0-9]+)"', reply.texts[0].toHtml())
    assert links == [f"place:{passages[0].first_line}", "place:1"]
    await until(lambda: not window.findChildren(AttachmentView))
    for link in links:
        reply.link_activated.emit(link)
    (shown,) = window.findChildren(AttachmentView)
    assert shown.text.textCursor().position() == passages[0].start
    shown.close()
    await until(lambda: not window.findChildren(AttachmentView))
    first = split(text)[0]  # looked up by the model's tool
    runtime.chat.write(chat, Role.TOOL, f"[long.txt, {first.place}]\n{text[first.start : first.end]}")
    runtime.events.publish(MessagesChanged(chat))
    await until(lambda: len(window.transcript.messages) == 9)
    reply.link_activated.emit(links[1])
    (shown,) = window.findChildren(AttachmentView)
    assert shown.text.textCursor().position() == 0
    shown.close()


async def test_a_late_count_of_what_was_removed_is_dropped(
    runtime: StagedRuntime, window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, late = asyncio.Event(), []

    async def usage(_id: str | None, draft: str = "", attachments: Sequence[Attachment] = ()) -> ContextUsage:
        if attachments:
            late.append(await waits.wait())
            return ContextUsage(0, 90_000, 2048, 32_768)
        return ContextUsage(0, len(draft), 2048, 32_768)

    monkeypatch.setattr(runtime.chat.context, "usage", usage)
    composer = window.composer
    composer.set_attachments([document_from_text("large.txt", "words")])
    counting = asyncio.ensure_future(window.context._count())
    await asyncio.sleep(0)
    composer.set_attachments(())
    composer.editor.setPlainText("Hi")
    await window.context._count()
    assert composer.send_button.isEnabled()
    waits.set()
    await counting
    assert late
    assert composer.send_button.isEnabled()
    assert not window.context_card.isVisible()
