"""Several chats in one real engine: hot side by side, restored into whichever slot, and saying what a cold one says."""

from __future__ import annotations

import asyncio

import pytest

from kvchat.chat.record.messages import Message
from kvchat.session.proof import Source
from tests.e2e.home import engine_path, notes
from tests.e2e.restarts import receipt, settings
from tests.models import tiny_model
from tests.running import opened
from tests.soak.person import GREEDY, compared, replies_of

pytestmark = pytest.mark.e2e

TOPICS = [notes(20, start=1000 * n) for n in range(4)]  # they share no beginning


@pytest.mark.parametrize(
    ("architecture", "engine"), [("llama", "embedded"), ("gemma3", "llama-server"), ("qwen35", "llama-server")]
)
async def test_chats_side_by_side(tmp_path, architecture, engine):
    model = tiny_model(architecture, heeds=True)
    chosen = settings(model, engine, slots=2, kv_type="f32", model_titles=False)
    async with opened(tmp_path / "home", chosen) as runtime:
        chat, slots = runtime.chat, runtime.chat.slots

        async def said(where: str, text: str) -> Message:
            reply = await chat.send(where, text, GREEDY)
            await chat.idle()
            assert reply is not None
            return reply

        chats = [(await chat.new_conversation()).id for _ in range(4)]
        for where, topic in zip(chats[:2], TOPICS, strict=False):
            await said(where, topic)
        for where in chats[:2] * 3:
            told = receipt(await said(where, "Which is the longest?"))
            assert told.source is Source.HOT
            assert told.cached_tokens >= 0.9 * told.prompt_tokens
        assert [slots.of(where) for where in chats[:2]] == slots.all[:2]

        for where, topic in zip(chats[2:], TOPICS[2:], strict=True):  # the first two are put out of their slots
            await said(where, topic)
        into = set()
        for where in [chats[0], chats[2], chats[3], chats[1], chats[0], *reversed(chats)]:
            told = receipt(await said(where, "And the shortest?"))
            assert told.source in (Source.HOT, Source.WARM, Source.DISK), told.miss_reason
            assert told.cached_tokens >= 0.9 * told.prompt_tokens
            if told.source is not Source.HOT:
                into.add(slots.of(where))
        assert into == {*slots.all}, "each slot was restored into"

        both = [chat.send(where, "Tell me more.", GREEDY) for where in chats[:2]]
        assert all(await asyncio.gather(*both))
        await chat.idle()
        replies = [path for where in chats for path in await replies_of(runtime, where)]
    assert len(replies) == 21
    assert not await compared(tmp_path, model, engine_path(engine), replies)
