"""How much of the prompt comes back after a restart, whatever the user does next."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kvchat.chat.record.messages import Message, Role
from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import BenchHome, Reply, bench_home
from kvchat.cli.terminal import remark

REPLY_TOKENS = 12
QUESTIONS = ("Who was first?", "And who came after that?", "Was it a long day?")
EDITED, BRANCHED = "Was it a short day?", "And who was last?"


@dataclass(frozen=True)
class Step:
    """What the user did after a restart, and what of the prompt the engine did not have to read for it."""

    name: str
    cached_tokens: int
    prompt_tokens: int
    source: str  # a messages.Source
    miss_reason: str | None

    @property
    def share(self) -> float:
        return self.cached_tokens / self.prompt_tokens


@dataclass(frozen=True)
class AfterRestart:
    hot: Step  # the next turn once more, before any restart: what the engine makes of its own slot
    steps: tuple[Step, ...]
    outputs_agree: bool  # the next turn and its regeneration are greedily answered as it was hot


async def measure(options: BenchOptions) -> AfterRestart:
    """Two turns on a system prompt; then a third one, hot, and everything that can follow, each after a restart.

    Raises KvchatError.
    """
    async with bench_home(options, reply_tokens=REPLY_TOKENS) as home:
        return await _measure(home, options.tokens)


async def _measure(home: BenchHome, tokens: int) -> AfterRestart:
    chat = await home.runtime.chat.new_conversation(await home.notes(tokens))
    remark(f"Building a chat of about {tokens:,} tokens …")
    for question in QUESTIONS[:2]:
        await home.ask(chat.id, question)
    hot = await home.ask(chat.id, QUESTIONS[2], keep=False)

    remark("The next turn, after a restart …")
    await home.restart()
    following = await home.ask(chat.id, None)
    remark("Regenerating it, after a restart …")
    await home.restart()
    again = await home.ask(chat.id, None)
    remark("Editing its question, after a restart …")
    await home.restart()
    asked = await _questions(home, chat.id)
    edited = await home.reply(home.runtime.chat.edit(asked[2], EDITED, home.greedy))
    remark("A branch from an earlier turn, after a restart …")
    await home.restart()
    branch = await home.reply(home.runtime.chat.edit(asked[1], BRANCHED, home.greedy))

    named = {"next turn": following, "regenerate": again, "edit": edited, "branch": branch}
    steps = tuple(_step(name, reply) for name, reply in named.items())
    return AfterRestart(_step("hot", hot), steps, outputs_agree=hot.text == following.text == again.text)


async def _questions(home: BenchHome, chat_id: str) -> list[Message]:
    return [message for message in await home.runtime.chat.messages(chat_id) if message.role is Role.USER]


def _step(name: str, reply: Reply) -> Step:
    receipt = reply.receipt
    why = receipt.miss_reason.english if receipt.miss_reason else None
    return Step(name, receipt.cached_tokens, receipt.prompt_tokens, receipt.source.value, why)


def lines(result: AfterRestart) -> list[str]:
    told = ["Tokens of the prompt that did not have to be read again, after a restart of everything:"]
    for step in (*result.steps, dataclasses.replace(result.hot, name="(next turn, no restart)")):
        count = f"{step.cached_tokens:,} of {step.prompt_tokens:,}"
        told.append(f"  {step.name:<24}{count:<18}{step.share:7.1%}  {step.miss_reason or step.source}")
    return [*told, f"Same greedy reply restored as hot: {'yes' if result.outputs_agree else 'NO'}"]
