"""Work that nobody waits for, and that must be over before kvchat ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any


class Background:
    """Keeps the work alive until it is over. It tells KvchatErrors itself; what it raises all the same is a bug."""

    def __init__(self, hear: Callable[[bool], None] = lambda busy: None) -> None:
        """`hear` is told whether there is work, whenever some begins and when all of it is over."""
        self._hear = hear
        self._tasks: set[asyncio.Task[None]] = set()
        self._used_at = time.monotonic()

    @property
    def idle_s(self) -> float:
        """For how long there has been no work, in seconds."""
        return 0.0 if self._tasks else time.monotonic() - self._used_at

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it, beside whatever else is done."""
        self._hear(True)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def used(self) -> None:
        """Count the idle time from now on."""
        self._used_at = time.monotonic()

    async def idle(self) -> None:
        """Wait until all of it is over, with what it has begun meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.used()
        if not self._tasks:
            self._hear(False)
        if not task.cancelled() and (error := task.exception()):
            context = {"message": "Work in the background ended in a bug", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)
