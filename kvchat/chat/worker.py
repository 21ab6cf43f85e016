"""One thread that does blocking work in order, for a resource that must be used from one thread at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Worker:
    """A single-thread executor spoken to from asyncio."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` on the worker's thread; what it raises is raised here.

        Cancelling the caller does not cancel a call that has begun or is queued: a write asked for is a write done.
        """
        return await asyncio.shield(
            asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))
        )

    def close(self) -> None:
        """Finish what is queued, then end the thread."""
        self._executor.shutdown(wait=True)
