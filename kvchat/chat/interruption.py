"""Work that someone else may end early, and work that nobody may."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

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
        """End the work now; whether there was any."""
        return self.task is not None and self.task.cancel()


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
