"""A context that fills up, with the real engine: refused in words, then dropped or summarised, never cut silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvchat.chat.context import SUMMARY_REQUEST, NothingToDrop
from kvchat.chat.events import Event, Notice, TurnFailed
from kvchat.chat.record.messages import Role
from kvchat.engine.speaking.wire import Sampling
from kvchat.session.exchange import PromptTooLong
from tests.e2e.restarts import settings
from tests.running import opened

pytestmark = pytest.mark.e2e

SHORT = Sampling(max_tokens=12, temperature=0.0)
WORDS = "The river runs past the old garden wall and the heron stands there all morning. " * 10


async def test_a_full_context_is_refused_then_dropped_or_summarised(tmp_path: Path, smollm2: Path) -> None:
    async with opened(tmp_path, settings(smollm2, "llama-server", context_size=1024)) as runtime:
        chat, told = runtime.chat, list[Event]()
        runtime.events.subscribe(told.append)
        conversation = (await chat.new_conversation("You are terse.")).id
        for number in range(4):
            assert await chat.send(conversation, f"{number}. {WORDS}", SHORT)
        with pytest.raises(NothingToDrop):
            await chat.context.drop_middle((await chat.new_conversation()).id)
        use = await chat.context.use(conversation, WORDS)
        assert use is not None
        assert use.tight
        assert await chat.send(conversation, WORDS * 2, SHORT) is None
        assert isinstance([e for e in told if isinstance(e, TurnFailed)][-1].error, PromptTooLong)

        before = await chat.messages(conversation)
        left_out = await chat.context.drop_middle(conversation)
        after = await chat.messages(conversation)
        assert len(after) == len(before) - left_out
        assert after[0] == before[0]
        assert [m.content for m in after[1:]] == [m.content for m in before[-len(after) + 1 :]]
        answered = await chat.retry(conversation, SHORT)
        assert answered is not None
        assert answered.receipt is not None
        whole = await chat.context.use(conversation)
        assert whole is not None
        assert whole.used >= answered.receipt.prompt_tokens  # the reply's own tokens beside it

        await chat.send(conversation, "And the heron?", SHORT)
        await chat.idle()
        stands_for = await chat.context.summarise(conversation)
        summed = await chat.messages(conversation)
        assert stands_for >= 2
        assert [m.role for m in summed[:3]] == [Role.SYSTEM, Role.USER, Role.ASSISTANT]
        assert summed[1].content == SUMMARY_REQUEST
        assert summed[2].content
        assert summed[-1].content == (await chat.messages(conversation))[-1].content
        shorter = await chat.context.use(conversation)
        assert shorter is not None
        assert shorter.used < whole.used
        filler = " river" * (shorter.limit - shorter.used - 60)
        assert await chat.send(conversation, f"Tell me a long story.{filler}", Sampling(grammar="root ::= [a-z ]{900}"))
        assert any("cut off" in e.title and e.conversation_id == conversation for e in told if isinstance(e, Notice))
