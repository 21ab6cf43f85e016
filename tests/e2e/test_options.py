"""Options and models with the real engine: replies that follow a schema, no loops by default, a model's chat warm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvchat.chat.events import Event, TurnFailed
from kvchat.chat.options import BadOptions, ChatOptions, FormatRefused
from kvchat.engine.speaking.wire import Sampling
from kvchat.session.proof import Source
from tests.e2e.restarts import settings
from tests.models import tiny_model
from tests.running import opened

pytestmark = pytest.mark.e2e

QUESTIONS = (
    "What is a river?",
    "How do I cook rice?",
    "Tell me a short story about a dog.",
    "Explain why the sky is blue.",
    "Give me tips for learning to play the guitar.",
)
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
WORDS = "The river runs past the old garden wall and the heron stands there all morning. " * 10


def repeated(text: str, length: int = 6) -> float:
    """The share of word runs of that length that were said before."""
    words = text.split()
    runs = [tuple(words[i : i + length]) for i in range(len(words) - length + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


async def test_the_starter_does_not_loop_formats_are_followed_and_a_chat_comes_back_to_its_model_warm(
    tmp_path: Path, smollm2: Path
) -> None:
    async with opened(tmp_path, settings(smollm2, "llama-server", context_size=2048)) as runtime:
        chat, told = runtime.chat, list[Event]()
        runtime.events.subscribe(told.append)
        for question in QUESTIONS:
            conversation = (await chat.new_conversation()).id
            reply = await chat.send(conversation, question, Sampling(max_tokens=200, seed=1), keep=False)
            assert reply is not None
            assert repeated(reply.content) < 0.2, reply.content

        conversation = (await chat.new_conversation()).id
        await chat.options.change(conversation, ChatOptions(Sampling(json_schema=json.dumps(SCHEMA), max_tokens=40)))
        reply = await chat.send(conversation, "How old is the heron?")
        assert reply is not None
        assert isinstance(json.loads(reply.content)["age"], int)
        with pytest.raises(BadOptions, match="unrecognized type nonsense"):
            await chat.options.change(conversation, ChatOptions(Sampling(json_schema='{"type": "nonsense"}')))
        await chat.options.change(conversation, ChatOptions(Sampling(grammar='root ::= "heron" | "crane"')))
        reply = await chat.send(conversation, "Which bird?")
        assert reply is not None
        assert reply.content in ("heron", "crane")
        await chat.options.change(conversation, ChatOptions(Sampling(grammar="root ::= (")))
        assert await chat.send(conversation, "Which bird?") is None
        (failed,) = [event for event in told if isinstance(event, TurnFailed)]
        assert isinstance(failed.error, FormatRefused)
        assert "failed to parse grammar" in failed.error.detail
        assert (await chat.messages(conversation))[-1].content == "Which bird?", "kept"
        await chat.options.change(conversation, ChatOptions(Sampling(grammar='root ::= "gull"')))
        reply = await chat.retry(conversation)
        assert reply is not None
        assert reply.content == "gull"

        short = Sampling(max_tokens=8, temperature=0.0)
        first = (await chat.new_conversation()).id
        assert await chat.send(first, WORDS, short)
        await chat.idle()
        second = (await chat.new_conversation()).id
        await chat.use_model(second, str(tiny_model("llama")))
        assert await chat.send(second, "Hello", short)
        await chat.idle()
        reply = await chat.send(first, "And then?", short)
        assert reply is not None
        assert reply.receipt is not None
        assert reply.receipt.source in (Source.WARM, Source.DISK)
        assert reply.receipt.cached_tokens > 150
