"""The engine starts with the context that is needed, and gets a larger one before a chat fills it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.events import TurnFailed
from kvchat.chat.record.messages import Attachment, MessageState
from kvchat.engine.api.connection import EngineState
from kvchat.engine_host.choice import choose_engine
from kvchat.library.memory.context_size import CHEAP_KV_BYTES
from kvchat.session.events import IncreasingContext, Restored
from kvchat.session.proof import Source
from kvchat.settings import Settings
from tests.chat.stage import Stage
from tests.engine_fixtures import FakeEngine
from tests.library.gguf_files import LLAMA, write_gguf

LONGEST = 65_536
# 16 KB of KV cache a token: 1 GB in all.
LARGE = LLAMA | {
    "context_length": LONGEST,
    "attention.key_length": 512,
    "attention.value_length": 512,
}
TURN = "It was a long way down the river, and nobody knew where it would end. " * 60  # some 4,000 tokens of the fake's


@pytest.fixture
def large(tmp_path: Path, fake_engine: FakeEngine) -> Path:
    fake_engine.set(FAKE_NO_GPU=1)
    return write_gguf(tmp_path / "large.gguf", LARGE)


@pytest.fixture
async def stage(tmp_path: Path, fake_engine: FakeEngine, large: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path / "home", fake_engine, large)
    stage.settings = replace(stage.settings, context_size=None)
    fake_engine.set(FAKE_REPLY="I see.")
    async with stage:
        yield stage


@pytest.mark.parametrize(
    ("needed", "tokens"),
    [(0, 8192), (5000, 8192), (6000, 16_384), (21_845, 32_768), (40_000, LONGEST), (10**6, LONGEST)],
)
def test_initial_context(tmp_path: Path, fake_engine: FakeEngine, large: Path, needed: int, tokens: int) -> None:
    settings = Settings(model_path=str(large), engine_path=str(fake_engine.path))
    choice = choose_engine(settings, tmp_path, initial_tokens=needed)
    assert choice.max_context.tokens == LONGEST
    assert choice.max_context.kv_bytes > CHEAP_KV_BYTES
    assert choice.context.tokens == choice.plan.context_size == tokens
    assert (f"Starts with {tokens:,} tokens" in choice.context.reason) == (tokens < LONGEST)
    assert all(smaller.context.tokens < tokens for smaller in choice.smaller_choices())


def test_initial_context_of_other_models_and_settings(tmp_path: Path, fake_engine: FakeEngine, large: Path) -> None:
    settings = Settings(model_path=str(large), engine_path=str(fake_engine.path))
    assert choose_engine(replace(settings, context_size=LONGEST), tmp_path).plan.context_size == LONGEST
    assert choose_engine(replace(settings, kv_type="q4_0"), tmp_path).plan.context_size == LONGEST
    model = write_gguf(tmp_path / "model.gguf", LARGE | {"rope.scaling.original_context_length": 10_000})
    choice = choose_engine(replace(settings, model_path=str(model)), tmp_path)
    assert (choice.plan.context_size, choice.fingerprint.rope) == (10_256, "long"), "large enough for the final factors"
    fake_engine.set(FAKE_NO_GPU=None)
    small = write_gguf(tmp_path / "small.gguf", LLAMA | {"context_length": LONGEST})
    assert choose_engine(replace(settings, model_path=str(small)), tmp_path).plan.context_size == LONGEST


async def test_growing_chat_is_restored_into_a_larger_context(stage: Stage) -> None:
    chat = await stage.chat()
    await stage.answered(chat, TURN)
    assert stage.fake.context_sizes() == [8192]
    assert stage.runtime.engine.context_size == LONGEST
    assert not stage.of(IncreasingContext)
    receipt = await stage.answered(chat, TURN)
    assert stage.fake.context_sizes() == [8192, 16_384]
    assert [event.is_finished for event in stage.of(IncreasingContext)] == [False, True]
    assert receipt.source is Source.WARM
    assert receipt.cached_tokens > 0.4 * receipt.prompt_tokens
    assert not stage.errors()


async def test_reply_continues_in_a_larger_context(stage: Stage) -> None:
    chat = await stage.chat()
    story = " ".join(f"word{number}" for number in range(1500))
    stage.fake.set(FAKE_REPLY=story)
    reply = await stage.ask(chat, "Tell me a story.")
    assert reply.content == story
    assert reply.state is MessageState.COMPLETE
    assert len(stage.fake.context_sizes()) == 2
    assert len(stage.of(Restored)) == 1
    assert reply.receipt.source is Source.COLD
    assert reply.receipt.predicted_tokens == len(story)
    assert await stage.answered(chat, "And then?")
    assert not stage.errors()


async def test_next_start_has_room_for_recent_chats(stage: Stage, large: Path) -> None:
    chat = await stage.chat()
    await stage.answered(chat, TURN * 3)
    await stage.runtime.close()
    begun = len(stage.fake.context_sizes())
    again = Stage(stage.home, stage.fake, large)
    again.settings = stage.settings
    async with again:
        receipt = await again.answered(chat, "And then?")
        assert receipt.source is Source.DISK
        assert len(stage.fake.context_sizes()) == begun + 1
        assert not again.of(IncreasingContext)


async def test_attachment_grows_the_context_before_sending(stage: Stage) -> None:
    chat = await stage.chat()
    await stage.answered(chat, "Hello")
    use = await stage.runtime.chat.context.usage(chat, "", [Attachment("long.txt", 1, "hash", TURN * 3)])
    assert use.limit == LONGEST
    await stage.until(lambda: len(stage.fake.context_sizes()) == 2)
    await stage.until(lambda: stage.runtime.engine.status.state is EngineState.READY)
    await stage.runtime.chat.wait_until_idle()
    assert [event.is_finished for event in stage.of(IncreasingContext)] == [False, True]


async def test_too_little_memory_to_grow(stage: Stage) -> None:
    stage.fake.set(FAKE_MOST_CONTEXT=9000)
    chat = await stage.chat()
    await stage.answered(chat, TURN)
    assert await stage.ask(chat, TURN * 2) is None
    assert "no longer fits" in str(stage.of(TurnFailed)[-1].error)
    assert stage.runtime.engine.context_size == 8192
    assert await stage.answered(await stage.chat(), "Hello")


async def test_stop_while_growing(stage: Stage) -> None:
    chat = await stage.chat()
    await stage.answered(chat, "Hello")
    stage.fake.set(FAKE_HOLD_DURING="load")
    future = stage.runtime.chat.send(chat, TURN * 3)
    await stage.until(lambda: len(stage.fake.context_sizes()) == 2)
    stage.runtime.chat.stop(chat)
    assert await future is None
    stage.fake.set(FAKE_HOLD_DURING=None)
    assert await stage.answered(chat, "Are you there?")
    assert len(stage.fake.context_sizes()) == 2


async def test_stop_does_not_wait_for_the_engine_to_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    chat, host = await stage.chat(), stage.runtime.engine
    await stage.answered(chat, "Hello")
    is_stopping, may_stop, stop = asyncio.Event(), asyncio.Event(), host.stop

    async def stop_slowly() -> None:
        is_stopping.set()
        await may_stop.wait()
        await stop()

    monkeypatch.setattr(host, "stop", stop_slowly)
    future = stage.runtime.chat.send(chat, TURN * 3)
    await is_stopping.wait()
    stage.runtime.chat.stop(chat)
    assert await future is None
    may_stop.set()
    assert await stage.answered(chat, "Are you there?")
    assert len(stage.fake.context_sizes()) == 2
