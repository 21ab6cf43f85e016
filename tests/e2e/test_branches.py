"""Continue, regenerate, edit, branch and titles on real engines: warm, with the replies of a cold engine."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from kvchat.chat.options import ChatOptions
from kvchat.chat.record.messages import Message, MessageState, prompt_messages
from kvchat.chat.turn.titles import is_title_due
from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.wire import ChatMessage, Sampling, Timings, chat_body, prompt_body
from kvchat.runtime import Runtime
from kvchat.session.exchange import Exchange
from kvchat.session.proof import Source
from tests.e2e.home import notes
from tests.e2e.restarts import SYSTEM, receipt, settings
from tests.models import tiny_model
from tests.running import opened
from tests.store_contents import StoreContents

pytestmark = pytest.mark.e2e

SAME, TIE, DIFFERS = "the same", "the same up to a tie", "different"
MAX_TIE = 0.1  # difference of natural logarithms
END = ("", "<|im_end|>")  # the last token of a finished reply
# So short that a position 8 tokens before the turn boundary precedes the end of the reply.
GREEDY = Sampling(max_tokens=6, temperature=0.0, seed=1)
ENDS = Sampling(temperature=0.0, grammar='root ::= "The bridge over the river is the longest."')


@dataclass(frozen=True)
class Step:
    """An action of the user, the reply, and its prompt."""

    name: str
    reply: Message
    added: str  # what a continuation added
    prompt: list[ChatMessage]

    @property
    def share(self) -> float:
        return receipt(self.reply).cached_tokens / receipt(self.reply).prompt_tokens


class Branches:
    """A conversation whose engine is restarted before every step."""

    def __init__(self, runtime: Runtime, chat: str) -> None:
        self.runtime, self.chat = runtime, chat
        self.steps: list[Step] = []

    async def do(self, name: str, act: Callable[[], Awaitable[Message | None]], before: Message | None = None) -> None:
        await self.runtime.stop_engine()
        await self.runtime.engine.ready()  # another process, with an empty slot
        reply = await act()
        await self.runtime.chat.wait_until_idle()
        assert reply is not None
        messages = await self.path()
        assert messages[-1].id == reply.id
        history = [*messages[:-1], before] if before else messages[:-1]
        prompt = prompt_messages(history, continues_reply=before is not None)
        self.steps.append(Step(name, reply, reply.content[len(before.content) :] if before else reply.content, prompt))

    async def path(self) -> list[Message]:
        return await self.runtime.chat.messages(self.chat)


@pytest.mark.parametrize(
    ("architecture", "engine"),
    [
        ("llama", "embedded"),  # full attention
        ("qwen35", "embedded"),  # hybrid
        ("gemma3", "llama-server"),  # sliding windows
    ],
)
async def test_every_branch_of_a_chat_gets_a_cold_engines_replies(tmp_path, architecture, engine):
    async with opened(tmp_path, settings(tiny_model(architecture), engine)) as runtime:
        chat = runtime.chat
        branches = Branches(runtime, (await chat.new_conversation(SYSTEM)).id)
        for text in ("How many notes are there?", "Which is the longest bridge?"):
            await chat.send(branches.chat, text, GREEDY)
            await chat.wait_until_idle()
        second = await chat.send(branches.chat, "And who wrote it down?", GREEDY)
        await chat.wait_until_idle()
        assert second is not None
        assert second.state is MessageState.LIMITED
        *_, question, first, next_question, _ = await branches.path()
        await branches.do("continue", lambda: chat.continue_reply(second, GREEDY), second)
        await branches.do("regenerate", lambda: chat.regenerate(second, GREEDY))
        await branches.do("edit", lambda: chat.edit(next_question, "And who read it?", GREEDY))
        await branches.do("branch", lambda: chat.edit(question, "Which is the shortest bridge?", GREEDY))
        await chat.switch(branches.chat, second.id)
        assert (await branches.path())[-1].content == branches.steps[0].reply.content
        await branches.do("back, and on", lambda: chat.send(branches.chat, "Why?", GREEDY))
        await chat.edit_reply(first, "The one over the river.")
        await branches.do("after an edited reply", lambda: chat.send(branches.chat, "How long is it?", GREEDY))

        cold = (await runtime.engine.ready()).engine
        assert isinstance(cold, LlamaServerClient)
        for step in branches.steps:
            tokens = await cold_tokens(cold, step.prompt)
            print(f"{architecture:<9}{engine:<13}{step.name:<22}{step.share:7.1%}  {verdict(step.added, tokens)}")
            assert verdict(step.added, tokens) != DIFFERS, (step.name, step.added, tokens)
            assert receipt(step.reply).source in (Source.WARM, Source.DISK), step.name
            assert step.share >= 0.95, step.name
        await check_turn_after_title(runtime, tmp_path)


async def check_turn_after_title(runtime: Runtime, home: Path) -> None:
    chat = runtime.chat
    conversation = (await chat.new_conversation(SYSTEM)).id
    assert await chat.send(conversation, "Which is the longest bridge?", ENDS)
    await chat.wait_until_idle()
    boundary = max(
        point.n_tokens for point in StoreContents(home).save_points() if point.conversation_id == conversation
    )

    chat.title_generator.enable(lambda: True)
    chat.title_generator.generate_due()
    await chat.wait_until_idle()
    assert not await runtime._worker.run(is_title_due, runtime._database, conversation), "the title was generated"
    reply = await chat.send(conversation, "And the shortest?", GREEDY)
    await chat.wait_until_idle()
    assert reply is not None
    print(f"after a title {receipt(reply).cached_tokens} of {receipt(reply).prompt_tokens}")
    assert receipt(reply).cached_tokens >= boundary
    assert receipt(reply).cached_tokens >= 0.98 * receipt(reply).prompt_tokens

    cold = (await runtime.engine.ready()).engine
    assert isinstance(cold, LlamaServerClient)
    tokens = await cold_tokens(cold, prompt_messages((await chat.messages(conversation))[:-1]))
    assert verdict(reply.content, tokens) != DIFFERS, (reply.content, tokens)


@pytest.mark.parametrize("architecture", ["llama", "qwen35", "gemma3"])
async def test_a_summary_reprocesses_its_instruction_and_the_new_branch_is_read_ahead(
    tmp_path, monkeypatch, architecture
):
    requests, prove = list[Timings](), Exchange.prove

    async def record(exchange, timings):
        requests.append(timings)
        return await prove(exchange, timings)

    monkeypatch.setattr(Exchange, "prove", record)
    model = settings(tiny_model(architecture), "llama-server", context_size=8192, slots=1)
    async with opened(tmp_path, model) as runtime:
        chat = runtime.chat
        conversation = (await chat.new_conversation("You are terse.")).id
        await chat.options.change(conversation, ChatOptions(Sampling(max_tokens=30, temperature=0.0)))
        for number in range(8):
            assert await chat.send(conversation, f"{number}. {notes(32)}", GREEDY)
            await chat.wait_until_idle()
        before = await chat.context.usage(conversation)
        chat.select(conversation)
        assert await chat.context.summarise(conversation) >= 2
        summary = requests[-1]
        await chat.wait_until_idle()
        reply = await chat.send(conversation, "And then?", GREEDY)
        await chat.wait_until_idle()
    assert before is not None
    assert reply is not None
    turn = receipt(reply)
    print(f"{architecture:<9}chat {before.used}, summary: {summary.cache_n} cached, {summary.prompt_n} processed;")
    print(f"next turn: {turn.cached_tokens} of {turn.prompt_tokens} cached, {turn.read_ahead_tokens} read ahead")
    assert before.used > 3800
    assert summary.cache_n > 1000
    assert summary.prompt_n < 40
    assert turn.read_ahead_tokens > 1000
    assert turn.cached_tokens >= 0.98 * turn.prompt_tokens


async def cold_tokens(cold: LlamaServerClient, prompt: list[ChatMessage]) -> list[dict[str, Any]]:
    """Return the reply's tokens with their alternatives, generated from an empty slot."""
    await cold.erase_slot()
    body = chat_body(prompt_body(prompt), GREEDY) | {"stream": False, "logprobs": True, "top_logprobs": 5}
    async with httpx2.AsyncClient(base_url=cold.base_url, headers={"Authorization": f"Bearer {cold.key}"}) as http:
        answer = (await http.post("/v1/chat/completions", json=body, timeout=120)).json()
    assert not answer["timings"]["cache_n"]
    tokens: list[dict[str, Any]] = answer["choices"][0]["logprobs"]["content"]
    return tokens


def verdict(warm: str, cold: list[dict[str, Any]], max_tie: float = MAX_TIE) -> str:
    """Compare replies: the same, or different where two tokens are equally likely (a tie), or otherwise.

    Rounding decides ties: an engine that processes the prompt in other pieces may choose the other (measured).
    """
    text = ""
    for token in cold:
        if text == warm:
            return SAME if token["token"] in END else DIFFERS
        if not warm.startswith(text + token["token"]):
            others = [other for other in token["top_logprobs"] if warm.startswith(text + other["token"])]
            return TIE if any(token["logprob"] - other["logprob"] < max_tie for other in others) else DIFFERS
        text += token["token"]
    return SAME if text == warm else DIFFERS
