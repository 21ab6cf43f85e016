"""How the person benchmark types and sends, and what it listens to."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from itertools import pairwise

from kvchat.chat.events import Event, ReadingAhead
from kvchat.chat.record.messages import Receipt
from kvchat.cli.bench import PEOPLE, THINGS, BenchHome

TYPING_S = 2.0  # so long a person writes before Send


@dataclass
class Steps:
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


class Sender:
    """Sends, and compares what was told before with how long it took."""

    def __init__(self, home: BenchHome) -> None:
        self._home = home
        self.errors: list[float] = []  # by what share each was off

    async def ask(self, chat: str, text: str) -> Receipt:
        """What the reply to this message cost. What was being written there is sent, or gone."""
        told = await self._home.runtime.chat.forecasts.of_message(chat, text)
        self._home.runtime.chat.prepare(chat, "")
        receipt = (await self._home.ask(chat, text)).receipt
        if told is not None and told.wait is not None:
            least, most = 1000 * told.wait.least, 1000 * told.wait.most
            self.errors.append(max(least - receipt.ttft_ms, receipt.ttft_ms - most, 0.0) / receipt.ttft_ms)
        return receipt

    async def write(self, chat: str, text: str) -> Receipt:
        """The same in a chat that is opened, of a text that is written for two seconds and then sent."""
        self._home.runtime.chat.select(chat)
        words = text.split()
        for count in range(1, len(words) + 1):
            self._home.runtime.chat.prepare(chat, " ".join(words[:count]))
            await asyncio.sleep(TYPING_S / len(words))
        return await self.ask(chat, text)


def question(number: int) -> str:
    who, what = PEOPLE[number % len(PEOPLE)], THINGS[number % len(THINGS)]
    return f"In note {number} and after it: on which day did {who} leave the {what} behind, and what was written there?"
