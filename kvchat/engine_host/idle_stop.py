"""Idle handling: verifies imported memory, and stops an unused engine to free its memory."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from kvchat.chat.service import ChatService
from kvchat.engine_host.switching import SwitchingHost

LOOK_S = 10.0  # check interval
SPARE_AFTER_S = 60.0  # the user is unlikely to return at once


@dataclass
class IdleStop:
    """Stops a ready engine after idle minutes; the next message starts it and restores its save point."""

    minutes: Callable[[], int | None]  # current setting; None: never
    chat: ChatService
    host: SwitchingHost
    look_s: float = LOOK_S
    others_idle_s: Callable[[], float] = lambda: math.inf  # other programs'
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while not self._ended.is_set():
            if self._is_due():
                await self.chat.rest(self._stop)
            elif min(self.chat.idle_s, self.others_idle_s()) >= SPARE_AFTER_S:
                await self.chat.verifying.in_spare_time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.look_s):
                    await self._ended.wait()

    def end(self) -> None:
        self._ended.set()

    async def _stop(self) -> bool:
        due = self._is_due()  # a message may have arrived
        if due:
            await self.host.rest()
        return due

    def _is_due(self) -> bool:
        minutes, idle_s = self.minutes(), min(self.chat.idle_s, self.others_idle_s())
        return minutes is not None and self.host.may_rest() and idle_s >= 60 * minutes
