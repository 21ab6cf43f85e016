"""Continue, regenerate, edit, branch and titles on real engines: warm, with the replies of a cold engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from kvchat.chat.record.messages import Message, MessageState
from kvchat.chat.record.prompts import prompt_messages
from kvchat.chat.turn.titles import is_title_due
from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.wire import ChatMessage, Sampling, chat_body, prompt_body
from kvchat.runtime import Runtime
from kvchat.session.proof import Source
from tests.e2e.restarts import SYSTEM, receipt, settings
from tests.models import tiny_model
from tests.running import opened
from tests.store_contents import StoreContents

pytestmark = pytest.mark.e2e

SAME, TIE, DIFFERS = "the same", "the same up to a tie", "different"
AS_GOOD = 0.1  # natural logarithm
END = ("", "<|im_end|>")  # how the end of a reply is told among its tokens
# So short that 8 tokens before the turn boundary lie before the end of the reply, see ReadyEngine.stops.
GREEDY = Sampling(max_tokens=6, temperature=0.0, seed=1)
ENDS = Sampling(temperature=0.0, grammar='root ::= "The bridge over the river is the longest."')


@dataclass(frozen=True)
class Step:
    """What the user did, the reply, and what the engine was asked for it."""

    name: str
    reply: Message
    added: str  # to what was there of the reply
    prompt: list[ChatMessage]

    @property
    def share(self) -> float:
        return receipt(self.reply).cached_tokens / receipt(self.reply).prompt_tokens


class Table:
    """One conversation whose engine is a new process before every step."""

    def __init__(self, runtime: Runtime, chat: str) -> None:
        self.runtime, self.chat = runtime, chat
        self.steps: list[Step] = []

    async def do(self, name: str, act: Callable[[], Awaitable[Message | None]], before: Message | None = None) -> None:
        await self.runtime.stop_engine()
        await self.runtime.engine.ready()  # another process, with an empty slot
        reply = await act()
        await self.runtime.chat.idle()
        assert reply is not None
        path = await self.page()
        assert path[-1].id == reply.id
        asked = [*path[:-1], before] if before else path[:-1]
        prompt = prompt_messages(asked, continues_reply=before is not None)
        self.steps.append(Step(name, reply, reply.content[len(before.content) :] if before else reply.content, prompt))

    async def page(self) -> list[Message]:
        return await self.runtime.chat.messages(self.chat)


@pytest.mark.parametrize(
    ("architecture", "engine"),
    [
        ("llama", "embedded"),  # full attention
        ("qwen35", "embedded"),  # hybrid
        ("gemma3", "llama-server"),  # sliding windows
    ],
)
async def test_what_a_steered_conversation_says_is_what_a_cold_engine_says(tmp_path, architecture, engine):
    async with opened(tmp_path, settings(tiny_model(architecture), engine)) as runtime:
        chat = runtime.chat
        table = Table(runtime, (await chat.new_conversation(SYSTEM)).id)
        for text in ("How many notes are there?", "Which is the longest bridge?"):
            await chat.send(table.chat, text, GREEDY)
            await chat.idle()
        second = await chat.send(table.chat, "And who wrote it down?", GREEDY)
        await chat.idle()
        assert second is not None
        assert second.state is MessageState.LIMITED
        *_, question, first, next_question, _ = await table.page()
        await table.do("continue", lambda: chat.continue_reply(second, GREEDY), second)
        await table.do("regenerate", lambda: chat.regenerate(second, GREEDY))
        await table.do("edit", lambda: chat.edit(next_question, "And who read it?", GREEDY))
        await table.do("branch", lambda: chat.edit(question, "Which is the shortest bridge?", GREEDY))
        await chat.switch(table.chat, second.id)
        assert (await table.page())[-1].content == table.steps[0].reply.content
        await table.do("back, and on", lambda: chat.send(table.chat, "Why?", GREEDY))
        await chat.edit_reply(first, "The one over the river.")
        await table.do("after an edited reply", lambda: chat.send(table.chat, "How long is it?", GREEDY))

        cold = (await runtime.engine.ready()).engine
        assert isinstance(cold, LlamaServerClient)
        for step in table.steps:
            said = await said_by(cold, step.prompt)
            print(f"{architecture:<9}{engine:<13}{step.name:<22}{step.share:7.1%}  {verdict(step.added, said)}")
            assert verdict(step.added, said) != DIFFERS, (step.name, step.added, said)
            assert receipt(step.reply).source in (Source.WARM, Source.DISK), step.name
            assert step.share >= 0.95, step.name
        await after_a_title_a_turn_is_as_warm_and_says_the_same(runtime, tmp_path)


async def after_a_title_a_turn_is_as_warm_and_says_the_same(runtime: Runtime, home: Path) -> None:
    chat = runtime.chat
    conversation = (await chat.new_conversation(SYSTEM)).id
    assert await chat.send(conversation, "Which is the longest bridge?", ENDS)
    await chat.idle()
    boundary = max(
        point.n_tokens for point in StoreContents(home).save_points() if point.conversation_id == conversation
    )

    chat.title_generator.enable(lambda: True)
    chat.title_generator.generate_due()
    await chat.idle()
    assert not await runtime._worker.run(is_title_due, runtime._database, conversation), "the model was asked"
    reply = await chat.send(conversation, "And the shortest?", GREEDY)
    await chat.idle()
    assert reply is not None
    print(f"after a title {receipt(reply).cached_tokens} of {receipt(reply).prompt_tokens}")
    assert receipt(reply).cached_tokens >= boundary
    assert receipt(reply).cached_tokens >= 0.98 * receipt(reply).prompt_tokens

    cold = (await runtime.engine.ready()).engine
    assert isinstance(cold, LlamaServerClient)
    said = await said_by(cold, prompt_messages((await chat.messages(conversation))[:-1]))
    assert verdict(reply.content, said) != DIFFERS, (reply.content, said)


async def said_by(cold: LlamaServerClient, prompt: list[ChatMessage]) -> list[dict[str, Any]]:
    """The tokens of an engine that has nothing of this prompt in its slot, each with what it might have been."""
    await cold.erase_slot()
    body = chat_body(prompt_body(prompt), GREEDY) | {"stream": False, "logprobs": True, "top_logprobs": 5}
    async with httpx2.AsyncClient(base_url=cold.base_url, headers={"Authorization": f"Bearer {cold.key}"}) as http:
        answer = (await http.post("/v1/chat/completions", json=body, timeout=120)).json()
    assert not answer["timings"]["cache_n"]
    tokens: list[dict[str, Any]] = answer["choices"][0]["logprobs"]["content"]
    return tokens


def verdict(warm: str, cold: list[dict[str, Any]], as_good: float = AS_GOOD) -> str:
    """Whether the replies are the same, or part where the cold engine has two tokens that are as good.

    Which of those comes first is a matter of rounding: an engine that reads the same prompt in other pieces may say
    the other one, without any restore (measured).
    """
    said = ""
    for token in cold:
        if said == warm:
            return SAME if token["token"] in END else DIFFERS
        if not warm.startswith(said + token["token"]):
            others = [other for other in token["top_logprobs"] if warm.startswith(said + other["token"])]
            return TIE if any(token["logprob"] - other["logprob"] < as_good for other in others) else DIFFERS
        said += token["token"]
    return SAME if said == warm else DIFFERS
