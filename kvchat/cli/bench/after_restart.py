"""`kvchat bench --after-restart`: how much of the prompt comes back after a restart, whatever the user does next."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from kvchat.chat.record.messages import Message, Role
from kvchat.cli.bench.home import BenchHome, Reply, bench_home, say
from kvchat.cli.grammar.options import BenchOptions
from kvchat.engine.speaking.wire import Sampling

GREEDY = Sampling(max_tokens=12, temperature=0.0, seed=1)
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
        """Cached tokens by prompt tokens."""
        return self.cached_tokens / self.prompt_tokens


@dataclass(frozen=True)
class AfterRestart:
    """One run's figures."""

    hot: Step  # the next turn once more, before any restart: what the engine makes of its own slot
    steps: tuple[Step, ...]
    outputs_agree: bool  # the next turn and its regeneration are greedily answered as it was hot


async def run(options: BenchOptions) -> int:
    """Measure and print. Returns the exit code. Raises KvchatError."""
    async with bench_home(options) as home:
        result = await _measure(home, options.tokens)
    print(json.dumps(dataclasses.asdict(result)) if options.as_json else table(result))
    return 0


async def _measure(home: BenchHome, tokens: int) -> AfterRestart:
    """Two turns on a system prompt; then a third one, hot, and everything that can follow, each after a restart."""
    chat = await home.runtime.chat.new_conversation(await home.notes(tokens))
    say(f"Building a chat of about {tokens:,} tokens …")
    for question in QUESTIONS[:2]:
        await home.ask(chat.id, question, GREEDY)
    hot = await home.ask(chat.id, QUESTIONS[2], GREEDY, keep=False)

    say("The next turn, after a restart …")
    await home.restart()
    following = await home.ask(chat.id, None, GREEDY)
    say("Regenerating it, after a restart …")
    await home.restart()
    again = await home.ask(chat.id, None, GREEDY)
    say("Editing its question, after a restart …")
    await home.restart()
    asked = await _questions(home, chat.id)
    edited = await home.edit(asked[2], EDITED, GREEDY)
    say("A branch from an earlier turn, after a restart …")
    await home.restart()
    branch = await home.edit(asked[1], BRANCHED, GREEDY)

    named = {"next turn": following, "regenerate": again, "edit": edited, "branch": branch}
    steps = tuple(_step(name, reply) for name, reply in named.items())
    return AfterRestart(_step("hot", hot), steps, outputs_agree=hot.text == following.text == again.text)


async def _questions(home: BenchHome, chat_id: str) -> list[Message]:
    return [message for message in await home.runtime.chat.messages(chat_id) if message.role is Role.USER]


def _step(name: str, reply: Reply) -> Step:
    receipt = reply.receipt
    return Step(name, receipt.cached_tokens, receipt.prompt_tokens, receipt.source.value, receipt.miss_reason)


def table(result: AfterRestart) -> str:
    """The figures for a reader."""
    lines = ["Tokens of the prompt that did not have to be read again, after a restart of everything:"]
    for step in (*result.steps, dataclasses.replace(result.hot, name="(next turn, no restart)")):
        count = f"{step.cached_tokens:,} of {step.prompt_tokens:,}"
        lines.append(f"  {step.name:<24}{count:<18}{step.share:7.1%}  {step.miss_reason or step.source}")
    lines.append(f"Same greedy reply restored as hot: {'yes' if result.outputs_agree else 'NO'}")
    return "\n".join(lines)
