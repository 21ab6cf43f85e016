"""Work that someone else may end early, and work that nobody may."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

R = TypeVar("R")


@dataclass
class Interruption:
    """Work that someone else may end early, without cancelling whoever waits for it."""

    task: asyncio.Task[Any] | None = None

    async def run(self, work: Coroutine[Any, Any, R]) -> R | None:
        """Run the work; None when `interrupt` ended it. A cancelled caller takes the work down too."""
        self.task = task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            self.task = None
        return None if task.cancelled() else task.result()

    def interrupt(self) -> bool:
        """End the work now; whether there was any. Once is enough: a second time would end what it does to end well."""
        return self.task is not None and (self.task.cancelling() > 0 or self.task.cancel())


class YieldingLock(asyncio.Lock):
    """A lock whose holder may do something in its spare time: that ends as soon as somebody else asks for the lock."""

    def __init__(self) -> None:
        super().__init__()
        self._spare = Interruption()

    async def acquire(self) -> Literal[True]:
        """Take the lock, from whoever has it for spare-time work only."""
        self.end_spare_time()
        return await super().acquire()

    async def in_spare_time(self, work: Coroutine[Any, Any, R]) -> R | None:
        """Run the work with the lock held; None if the lock is not free, or somebody else asked for it meanwhile."""
        if self.locked():
            work.close()
            return None
        async with self:
            return await self._spare.run(work)

    def end_spare_time(self) -> None:
        """End what is done in spare time, if anything is."""
        self._spare.interrupt()


async def to_its_end(work: Coroutine[Any, Any, R]) -> R:
    """Await work that goes on although the caller is cancelled; the cancellation comes through when it is over."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # whatever it was, the caller has gone
        raise
