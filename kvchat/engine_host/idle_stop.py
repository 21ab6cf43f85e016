"""An engine that nobody has used for a while verifies imported memory, then stops to free its own."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from kvchat.chat.service import ChatService
from kvchat.engine_host.switching import SwitchingHost

LOOK_S = 10.0  # how often to look
SPARE_AFTER_S = 60.0  # nobody is likely to come back in the next moment


class IdleStop:
    """Stops a ready engine after so many idle minutes; the next message starts it and restores from its save point."""

    def __init__(
        self,
        minutes: Callable[[], int | None],
        chat: ChatService,
        host: SwitchingHost,
        look_s: float = LOOK_S,
        others_idle_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`minutes` are those in the settings at this moment; None: never. `others_idle_s`: other programs'."""
        self._minutes, self._chat, self._host = minutes, chat, host
        self._look_s, self._others_idle_s = look_s, others_idle_s
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Look now and then, until `end`."""
        while not self._ended.is_set():
            if self._is_due():
                await self._chat.rest(self._stop)
            elif min(self._chat.idle_s, self._others_idle_s()) >= SPARE_AFTER_S:
                await self._chat.verifying.in_spare_time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._ended.wait()

    def end(self) -> None:
        self._ended.set()

    async def _stop(self) -> bool:
        due = self._is_due()  # a message may have come meanwhile
        if due:
            await self._host.rest()
        return due

    def _is_due(self) -> bool:
        minutes, idle_s = self._minutes(), min(self._chat.idle_s, self._others_idle_s())
        return minutes is not None and self._host.may_rest() and idle_s >= 60 * minutes
