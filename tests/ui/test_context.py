"""The meter under the composer and the choice above it."""

from __future__ import annotations

from kvchat.chat.context import ContextUse
from kvchat.chat.messages import Role
from kvchat.ui.main_window import MainWindow
from tests.ui.fake_runtime import FakeRuntime, a_receipt
from tests.ui.waiting import until


def furnish(runtime: FakeRuntime, use: ContextUse) -> str:
    chat = runtime.chat.add("Thesis")
    for turn in range(3):
        runtime.chat.write(chat.id, Role.USER, f"Question {turn}?")
        runtime.chat.write(chat.id, Role.ASSISTANT, f"Answer {turn}.", receipt=a_receipt())
    runtime.chat.context.now = use
    return chat.id


async def test_the_meter_says_what_is_used_kept_and_left(runtime: FakeRuntime, window: MainWindow) -> None:
    furnish(runtime, ContextUse(5906, 0, 2048, 32_768))
    window.bridge.open(window.bridge.list.ids[0] if window.bridge.list.ids else "c1")
    await until(lambda: "5.9K of 32K tokens used" in window.context_meter.words.text())
    assert "2K kept for the reply" in window.context_meter.words.text()
    assert window.context_card.isHidden()
    window.composer.editor.setPlainText("word " * 1000)
    await until(lambda: "in this message" in window.context_meter.words.text())


async def test_a_nearly_full_context_offers_three_ways_out(runtime: FakeRuntime, window: MainWindow) -> None:
    chat = furnish(runtime, ContextUse(31_500, 0, 2048, 32_768))
    window.bridge.open(chat)
    card = window.context_card
    await until(card.larger.isVisible)
    assert card.larger.text() == "Raise to 64K"
    assert "take about 6.2 GB of the 11.4 GB" in card.advice.text()
    card.larger.click()
    await until(lambda: ("raise_context", 65_536) in runtime.calls)
    card.drop.click()
    await until(lambda: ("drop_middle", chat) in runtime.chat.calls)
    await until(lambda: any("4 messages were left out" in n.words[0] for n in window.notices.on_show))
    card.summarise.click()
    await until(card.stop.isVisible)
    runtime.chat.context.summary.set()
    await until(lambda: any("4 messages were summed up" in n.words[0] for n in window.notices.on_show))
    card.later.click()
    assert card.isHidden()


async def test_no_larger_context_is_offered_than_fits(runtime: FakeRuntime, window: MainWindow) -> None:
    runtime.larger = None
    window.bridge.open(furnish(runtime, ContextUse(31_500, 0, 2048, 32_768)))
    await until(window.context_card.isVisible)
    assert window.context_card.larger.isHidden()


async def test_a_chat_that_nothing_here_can_hold_says_what_could(runtime: FakeRuntime, window: MainWindow) -> None:
    runtime.larger = None
    chat = runtime.chat.add("Long")
    runtime.chat.write(chat.id, Role.USER, "Question?")
    runtime.chat.context.now = ContextUse(40_000, 0, 2048, 32_768)
    window.bridge.open(chat.id)
    await until(window.context_card.isVisible)
    assert window.context_card.drop.isHidden()
    assert "a model with a larger context" in window.context_card.advice.text()


async def test_a_summary_can_be_stopped(runtime: FakeRuntime, window: MainWindow) -> None:
    chat = furnish(runtime, ContextUse(31_500, 0, 2048, 32_768))
    window.bridge.open(chat)
    await until(window.context_card.isVisible)
    window.context_card.summarise.click()
    await until(lambda: ("summarise", chat) in runtime.chat.calls)
    window.context_card.stop.click()
    await until(window.context_card.summarise.isVisible)
    assert not window.notices.on_show


async def test_a_question_that_did_not_fit_is_answered_after_dropping(runtime: FakeRuntime, window: MainWindow) -> None:
    chat = furnish(runtime, ContextUse(33_000, 0, 2048, 32_768))
    runtime.chat.write(chat, Role.USER, "And now?")
    window.bridge.open(chat)
    await until(window.context_card.isVisible)
    window.context_card.drop.click()
    await until(lambda: ("retry", chat) in runtime.chat.calls)
