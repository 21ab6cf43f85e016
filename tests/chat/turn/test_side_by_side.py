"""Several chats in one engine: answered concurrently, and sharing its context."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.attachments import document_from_text
from kvchat.chat.events import WaitingForChat
from kvchat.session.events import Restoring
from kvchat.session.proof import Source
from kvchat.text.reasons import Reason, ReasonCode
from tests.chat.stage import QUESTION, Stage
from tests.engine_fixtures import FakeEngine
from tests.systems import WARM, needs_links

# Without a common prefix, so that no save point serves another chat.
TOPICS = (
    QUESTION,
    "A letter from the harbour came this morning, and it says: " * 2,
    "Nine lamps were lit for the clock. " * 3,
)
OTHER = "Something quite different about a violin, a lamp and a clock, and what became of all three of them."
pytestmark = pytest.mark.long


@pytest.fixture
async def two(tmp_path: Path, fake_engine: FakeEngine, smollm2: Path) -> AsyncIterator[Stage]:
    """Stage whose engine has two slots of together 4,096 tokens."""
    async with Stage(tmp_path / "home", fake_engine, smollm2, slots=2) as stage:
        yield stage


async def start_chats(stage: Stage, count: int) -> list[str]:
    return [await stage.answered_chat(topic) for topic in TOPICS[:count]]


@pytest.mark.parametrize("busy_with", ["a chat", "a program"])
async def test_stop_does_not_wait_for_others(stage: Stage, busy_with: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if busy_with == "a chat":
            other = await stage.writing(await stage.chat())
        else:
            await stack.enter_async_context(stage.slots.acquire("program", from_window=False))
        chat = await stage.chat()
        reply = stage.service.send(chat, QUESTION)
        await stage.until(lambda: stage.of(WaitingForChat) or stage.slots.is_window_blocked)
        stage.service.stop(chat)
        assert await reply is None
        assert [message.content for message in await stage.messages(chat)] == [QUESTION]
    if busy_with == "a chat":
        assert await stage.resume(other)
    assert await stage.ask(chat, "And now?") is not None, stage.errors()


async def test_two_alternating_chats_are_hot(two: Stage) -> None:
    chats = [await two.chat(), await two.chat()]
    sources = [(await two.answered(chats[n % 2], f"{TOPICS[n % 2]} {n}")).source for n in range(6)]
    assert sources == [Source.COLD, Source.COLD, *[Source.HOT] * 4]
    assert not two.requests("/slots/0?action=restore")
    assert not two.requests("/slots/1?action=restore")
    assert {body["id_slot"] for body in two.requests("/v1/chat/completions")} == {0, 1}
    for chat in chats * 2:
        await two.show(chat)
    assert not two.of(Restoring)
    assert {*two.slots.owners()} == {*chats}


async def test_two_chats_are_answered_concurrently(two: Stage) -> None:
    chats = [await two.answered_chat(), await two.chat()]
    two.fake.set(FAKE_HOLD_DURING="stream")
    replies = [two.service.send(chat, OTHER) for chat in chats]
    await two.until(lambda: len(two.service.answering_chats) == 2)
    third = two.service.send(await two.chat(), QUESTION)
    await two.until(lambda: two.of(WaitingForChat))
    two.fake.set(FAKE_HOLD_DURING=None)
    assert all(await asyncio.gather(*replies, third))


@needs_links
@pytest.mark.parametrize("work", ["a reply", "fitting a document"])
async def test_another_model_waits_for_running_replies(two: Stage, tmp_path: Path, work: str) -> None:
    chats = [await two.answered_chat(), await two.chat()]
    other = tmp_path / "other.gguf"
    other.symlink_to(str(two.settings.model_path))
    await two.service.use_model(chats[1], str(other))
    two.fake.set(FAKE_HOLD_DURING="stream")
    reply = two.service.send(chats[0], OTHER)
    await two.until(lambda: two.service.answering_chats)
    if work == "a reply":
        waiting: asyncio.Future[Any] = two.service.send(chats[1], OTHER)
        await two.until(lambda: two.slots.blocking_chat(chats[1]) == chats[0])
    else:
        document = document_from_text("a.txt", "word " * 50)
        fit = two.service.context.quote_longest(chats[1], "Why?", (document,), start_engine=True)
        waiting = asyncio.create_task(fit)
        await two.until(lambda: two.slots._engine_changes)
    assert len(two.fake.launches()) == 1, "the engine does not change during a reply"
    two.fake.set(FAKE_HOLD_DURING=None)
    assert await reply
    assert await waiting
    assert len(two.fake.launches()) == 2


async def test_room_is_made_before_reading_or_restoring(two: Stage) -> None:
    """Otherwise the engine purges any slot, fails both, or a good save point seems bad."""
    first = await two.answered_chat(QUESTION * 25)  # 1,800 tokens, and the echo as many
    second = await two.answered_chat(OTHER * 6)
    assert (await two.answered(second, OTHER * 12)).source == Source.HOT
    assert two.slots.owners() == [second], "the other is erased"
    assert (await two.answered(first, "Go on.")).source in WARM
    assert not two.errors()


async def test_reply_crowded_out_by_another_continues_after_it(two: Stage) -> None:
    chats = [await two.answered_chat(), await two.chat()]
    long = " ".join(f"word {n}" for n in range(200))  # 1,700 tokens, and the question's 100
    two.fake.set(FAKE_REPLY=long, FAKE_TOKEN_DELAY=0.002)
    replies = await asyncio.gather(*(two.service.send(chat, OTHER * 8) for chat in chats))
    assert [message.content for message in replies if message] == [long, long], two.errors()
    await two.idle()


async def test_state_purged_by_the_engine_is_a_miss_with_a_reason(two: Stage) -> None:
    first, _ = await start_chats(two, 2)
    engine = await two.engine.ready()
    await engine.for_slot(two.slots.slot_of(first).number).engine.erase_slot()
    receipt = await two.answered(first, "Go on.")
    assert (receipt.source, receipt.cached_tokens) == (Source.COLD, 0)
    assert receipt.miss_reason == Reason(ReasonCode.PURGED)


async def test_engine_restart_serves_all_waiting_chats(two: Stage) -> None:
    async def stop() -> bool:
        await two.engine.unload()
        return True

    chats = await start_chats(two, 2)
    await two.service.save_and_stop(stop)
    assert all(await asyncio.gather(*(two.service.send(chat, "Go on.") for chat in chats))), two.errors()
    assert {*two.slots.owners()} == {*chats}
