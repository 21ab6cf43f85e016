"""Timer that stops an idle engine."""

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from kvchat.chat.service import ChatService
from kvchat.engine_host.host import SwitchingEngineHost

CHECK_INTERVAL_S = 10.0
VERIFY_AFTER_IDLE_S = 60.0  # the user is unlikely to return at once


@dataclass
class IdleStop:
    """Stops kvchat's engine after some idle minutes. The next message starts it again and restores the chat."""

    minutes: Callable[[], int | None]  # returns the setting; None: never stop the engine
    chat: ChatService
    host: SwitchingEngineHost
    check_interval_s: float = CHECK_INTERVAL_S
    api_idle_s: Callable[[], float] = lambda: math.inf  # seconds since the last API request
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while not self._ended.is_set():
            if self._is_due():
                await self.chat.save_and_stop(self._stop)
            elif min(self.chat.idle_s, self.api_idle_s()) >= VERIFY_AFTER_IDLE_S:
                await self.chat.memory_verifier.verify_when_idle()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.check_interval_s):
                    await self._ended.wait()

    def end(self) -> None:
        self._ended.set()

    async def _stop(self) -> bool:
        is_due = self._is_due()  # a message may have arrived
        if is_due:
            await self.host.unload()
        return is_due

    def _is_due(self) -> bool:
        minutes, idle_s = self.minutes(), min(self.chat.idle_s, self.api_idle_s())
        is_own = not self.host.is_external and self.host.is_ready()
        return minutes is not None and is_own and idle_s >= 60 * minutes
