"""Options and limits with the real engine: output formats, models per chat, and a full context."""

import json

import pytest

from kvchat.chat.context import SUMMARY_REQUEST, NothingToDrop
from kvchat.chat.events import Event, Notice, TurnFailed
from kvchat.chat.options import ChatOptions, InvalidOptions, OutputFormatRejected
from kvchat.chat.record.messages import Role
from kvchat.engine.api.wire import Sampling
from kvchat.session.exchange import PromptTooLong
from kvchat.session.proof import Source
from tests.e2e.restarts import settings
from tests.models import tiny_model
from tests.running import opened

pytestmark = pytest.mark.e2e

SHORT = Sampling(max_tokens=12, temperature=0.0)
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
WORDS = "The river runs past the old garden wall and the heron stands there all morning. " * 10


async def test_formats_are_followed_and_models_switch(tmp_path, smollm2):
    async with opened(tmp_path, settings(smollm2, "llama-server", context_size=2048)) as runtime:
        chat, events = runtime.chat, list[Event]()
        runtime.events.subscribe(events.append)
        conversation = (await chat.new_conversation()).id
        await chat.options.change(conversation, ChatOptions(Sampling(json_schema=json.dumps(SCHEMA), max_tokens=40)))
        reply = await chat.send(conversation, "How old is the heron?")
        assert reply is not None
        assert isinstance(json.loads(reply.content)["age"], int)
        with pytest.raises(InvalidOptions, match="unrecognized type nonsense"):
            await chat.options.change(conversation, ChatOptions(Sampling(json_schema='{"type": "nonsense"}')))
        await chat.options.change(conversation, ChatOptions(Sampling(grammar='root ::= "heron" | "crane"')))
        reply = await chat.send(conversation, "Which bird?")
        assert reply is not None
        assert reply.content in ("heron", "crane")
        await chat.options.change(conversation, ChatOptions(Sampling(grammar="root ::= (")))
        assert await chat.send(conversation, "Which bird?") is None
        (failed,) = [event for event in events if isinstance(event, TurnFailed)]
        assert isinstance(failed.error, OutputFormatRejected)
        assert "failed to parse grammar" in failed.error.detail
        assert (await chat.messages(conversation))[-1].content == "Which bird?", "kept"
        await chat.options.change(conversation, ChatOptions(Sampling(grammar='root ::= "gull"')))
        reply = await chat.retry(conversation)
        assert reply is not None
        assert reply.content == "gull"

        first = (await chat.new_conversation()).id
        assert await chat.send(first, WORDS, SHORT)
        await chat.wait_until_idle()
        second = (await chat.new_conversation()).id
        await chat.use_model(second, str(tiny_model("llama")))
        assert await chat.send(second, "Hello", SHORT)
        await chat.wait_until_idle()
        reply = await chat.send(first, "And then?", SHORT)
        assert reply is not None
        assert reply.receipt is not None
        assert reply.receipt.source in (Source.WARM, Source.DISK)
        assert reply.receipt.cached_tokens > 150


async def test_a_draft_model_is_used_after_a_restart(tmp_path):
    model = tiny_model("llama")
    draft = settings(model, "llama-server", engine_arguments=f"-md {model} --spec-type draft-simple")
    async with opened(tmp_path, draft) as runtime:
        conversation = (await runtime.chat.new_conversation()).id
        assert await runtime.chat.send(conversation, WORDS, SHORT)
    async with opened(tmp_path, draft) as runtime:
        reply = await runtime.chat.send(conversation, "And then?", SHORT)
        assert reply is not None
        assert reply.receipt is not None
        assert reply.receipt.source is Source.DISK
        assert any("draft acceptance" in line for line in runtime.engine.log_lines)
        assert "draft model" in runtime.engine.restore_description


async def test_a_full_context_is_refused_then_dropped_or_summarised(tmp_path, smollm2):
    async with opened(tmp_path, settings(smollm2, "llama-server", context_size=1024)) as runtime:
        chat, events = runtime.chat, list[Event]()
        runtime.events.subscribe(events.append)
        conversation = (await chat.new_conversation("You are terse.")).id
        for number in range(4):
            assert await chat.send(conversation, f"{number}. {WORDS}", SHORT)
        with pytest.raises(NothingToDrop):
            await chat.context.drop_middle((await chat.new_conversation()).id)
        use = await chat.context.usage(conversation, WORDS)
        assert use is not None
        assert use.is_tight
        assert await chat.send(conversation, WORDS * 2, SHORT) is None
        assert isinstance([e for e in events if isinstance(e, TurnFailed)][-1].error, PromptTooLong)

        before = await chat.messages(conversation)
        left_out = await chat.context.drop_middle(conversation)
        after = await chat.messages(conversation)
        assert len(after) == len(before) - left_out
        assert after[0] == before[0]
        assert [m.content for m in after[1:]] == [m.content for m in before[-len(after) + 1 :]]
        answered = await chat.retry(conversation, SHORT)
        assert answered is not None
        assert answered.receipt is not None
        whole = await chat.context.usage(conversation)
        assert whole is not None
        assert whole.used >= answered.receipt.prompt_tokens  # the reply's own tokens beside it

        await chat.send(conversation, "And the heron?", SHORT)
        await chat.wait_until_idle()
        stands_for = await chat.context.summarise(conversation)
        summed = await chat.messages(conversation)
        assert stands_for >= 2
        assert [m.role for m in summed[:3]] == [Role.SYSTEM, Role.USER, Role.ASSISTANT]
        assert summed[1].content == SUMMARY_REQUEST
        assert summed[2].content
        assert summed[-1].content == (await chat.messages(conversation))[-1].content
        shorter = await chat.context.usage(conversation)
        assert shorter is not None
        assert shorter.used < whole.used
        filler = " river" * (shorter.limit - shorter.used - 60)
        assert await chat.send(conversation, f"Tell me a long story.{filler}", Sampling(grammar="root ::= [a-z ]{900}"))
        assert any("cut off" in e.title and e.conversation_id == conversation for e in events if isinstance(e, Notice))
