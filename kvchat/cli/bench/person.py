"""`kvchat bench --person`: what is left of each wait when what comes next is prepared while a person looks and writes.

A chat of N tokens, and a short one, into which long texts are pasted. Times to the first token, each beside the same in
the same round with the chat hot.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from kvchat.chat.events import Event, ReadingAhead
from kvchat.chat.record.messages import Receipt
from kvchat.cli.bench.home import PEOPLE, THINGS, BenchHome, bench_home, say
from kvchat.cli.options import BenchOptions
from kvchat.cli.terminal import columns
from kvchat.words.wording import duration

TYPING_S = 2.0  # so long a person writes before Send
ROUNDS = 3
PASTE = 2000  # tokens
REPLY_TOKENS = 12


@dataclass(frozen=True)
class Person:
    """One run's figures. Times in ms, medians of all rounds. `--json` prints these names as keys."""

    prompt_tokens: int  # of the chat
    hot_ttft_ms: float
    switch_ttft_ms: float  # another chat was in the slot, the save point is on disk; written for two seconds
    switch_ratio: float  # median of the rounds' own ratios to the hot one
    at_once_ttft_ms: float  # the same, sent at once
    at_once_restore_ms: float  # of that
    at_once_ratio: float  # to restore and hot together
    paste_tokens: int
    paste_unread_ttft_ms: float  # with a long text pasted, sent at once
    paste_ttft_ms: float  # the same after it was read ahead
    paste_ratio: float
    interrupted_ttft_ms: float  # another message, sent in the middle of reading a paste ahead
    interrupted_wait_ms: float  # more than the next one, hot
    longest_step_ms: float  # of all that was read ahead
    prediction_error: float | None  # median of what was told before Send, off by this share; None: nothing was told


@dataclass
class _Steps:
    """Listens to what is read ahead."""

    longest_ms: float = 0.0
    begun: asyncio.Event = field(default_factory=asyncio.Event)  # a step of it is over
    _times: list[float] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        if not isinstance(event, ReadingAhead):
            return
        now = time.perf_counter()
        self._times = [now] if not event.done else [*self._times, now]
        self.longest_ms = max([self.longest_ms, *(1000 * (b - a) for a, b in pairwise(self._times))])
        if event.draft and 0 < event.done < event.total:
            self.begun.set()


class _Sender:
    """Sends, and compares what was told before with how long it took."""

    def __init__(self, home: BenchHome) -> None:
        self._home = home
        self.errors: list[float] = []

    async def ask(self, chat: str, text: str) -> Receipt:
        """What the reply to this message cost. What was being written there is sent, or gone."""
        told = await self._home.runtime.chat.forecasts.of_message(chat, text)
        self._home.runtime.chat.prepare(chat, "")
        receipt = (await self._home.ask(chat, text)).receipt
        if told is not None and told.ms is not None:
            self.errors.append(abs(told.ms - receipt.ttft_ms) / receipt.ttft_ms)
        return receipt

    async def write(self, chat: str, text: str) -> Receipt:
        """The same in a chat that is opened, of a text that is written for two seconds and then sent."""
        self._home.runtime.chat.select(chat)
        words = text.split()
        for count in range(1, len(words) + 1):
            self._home.runtime.chat.prepare(chat, " ".join(words[:count]))
            await asyncio.sleep(TYPING_S / len(words))
        return await self.ask(chat, text)


async def measure(options: BenchOptions) -> Person:
    """Build the chats, then go from one to the other and write. Raises KvchatError."""
    async with bench_home(options, reply_tokens=REPLY_TOKENS) as home:
        return await _measure(home, options.tokens)


async def _measure(home: BenchHome, tokens: int) -> Person:
    chat = (await home.runtime.chat.new_conversation(await home.notes(tokens))).id
    other = (await home.runtime.chat.new_conversation()).id
    say(f"Building a chat of about {tokens:,} tokens …")
    await home.ask(chat, _question(0))
    await home.ask(other, _question(1))
    hot, switched, at_once = list[Receipt](), list[Receipt](), list[Receipt]()
    sender = _Sender(home)
    for number in range(2, 2 + 4 * ROUNDS, 4):
        say(f"Round {len(hot) + 1} of {ROUNDS}: hot, after a switch, and after one at once …")
        home.runtime.chat.select(chat)
        await home.runtime.chat.idle()
        hot.append(await sender.write(chat, _question(number)))
        await home.restart()
        await home.ask(other, _question(number + 1))
        switched.append(await sender.write(chat, _question(number + 2)))
        await home.restart()
        await home.ask(other, _question(number + 1))
        at_once.append(await sender.ask(chat, _question(number + 3)))
    usual = median(one.ttft_ms for one in hot)

    steps = _Steps()
    home.runtime.events.subscribe(steps.hear)
    say(f"A paste of {PASTE:,} tokens: sent at once, after it was read ahead, and in the middle of that …")
    home.runtime.chat.select(other)
    await home.runtime.chat.idle()
    unread = await sender.ask(other, await home.notes(PASTE, 10_000))
    pasted = await home.notes(PASTE, 20_000)
    home.runtime.chat.prepare(other, pasted)
    await home.runtime.chat.idle()
    read = await sender.ask(other, pasted)
    steps.begun.clear()
    home.runtime.chat.prepare(other, await home.notes(PASTE, 30_000))
    await steps.begun.wait()
    interrupted = await sender.ask(other, _question(3))
    beside = await sender.ask(other, _question(4))

    return Person(
        prompt_tokens=hot[-1].prompt_tokens,
        hot_ttft_ms=usual,
        switch_ttft_ms=median(one.ttft_ms for one in switched),
        switch_ratio=median(one.ttft_ms / other.ttft_ms for one, other in zip(switched, hot, strict=True)),
        at_once_ttft_ms=median(one.ttft_ms for one in at_once),
        at_once_restore_ms=median(one.restore_ms for one in at_once),
        at_once_ratio=median(
            one.ttft_ms / (one.restore_ms + other.ttft_ms) for one, other in zip(at_once, hot, strict=True)
        ),
        paste_tokens=unread.prompt_tokens - unread.cached_tokens,
        paste_unread_ttft_ms=unread.ttft_ms,
        paste_ttft_ms=read.ttft_ms,
        paste_ratio=read.ttft_ms / unread.ttft_ms,
        interrupted_ttft_ms=interrupted.ttft_ms,
        interrupted_wait_ms=max(0.0, interrupted.ttft_ms - beside.ttft_ms),
        longest_step_ms=steps.longest_ms,
        prediction_error=median(sender.errors) if sender.errors else None,
    )


def _question(number: int) -> str:
    """No two are alike, and each takes some writing."""
    who, what = PEOPLE[number % len(PEOPLE)], THINGS[number % len(THINGS)]
    return f"In note {number} and after it: on which day did {who} leave the {what} behind, and what was written there?"


def lines(result: Person) -> list[str]:
    """The figures for a reader."""
    rows = [
        ("Time to first token, hot", duration(result.hot_ttft_ms)),
        ("  after a switch", f"{duration(result.switch_ttft_ms)}   ({result.switch_ratio:.2f} times hot)"),
        (
            "  the same, sent at once",
            f"{duration(result.at_once_ttft_ms)}   ({result.at_once_ratio:.2f} times restore and hot together)",
        ),
        (f"  with {result.paste_tokens:,} tokens pasted", duration(result.paste_unread_ttft_ms)),
        ("    read ahead", f"{duration(result.paste_ttft_ms)}   ({result.paste_ratio:.3f} times that)"),
        (
            "  sent while a paste is read ahead",
            f"{duration(result.interrupted_ttft_ms)}   ({duration(result.interrupted_wait_ms)} more than hot)",
        ),
        ("Longest step of reading ahead", duration(result.longest_step_ms)),
        ("Told beforehand, off by", "—" if result.prediction_error is None else f"{result.prediction_error:.0%}"),
    ]
    return [f"A chat of {result.prompt_tokens:,} tokens, with two seconds of writing before Send:", *columns(rows)]
