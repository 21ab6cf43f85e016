"""One thread that does blocking work in order, for a resource that must be used from one thread at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Caller(Protocol):
    """Calls a function where it may be called, and waits."""

    def __call__(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function returns; what it raises is raised here."""


def call_here(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """The `Caller` for who is on the right thread already."""
    return function(*args, **kwargs)


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

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The same for another thread, which waits. Between two calls the worker does what else it was asked for."""
        return self._executor.submit(function, *args, **kwargs).result()

    def close(self) -> None:
        """Finish what is queued, then end the thread."""
        self._executor.shutdown(wait=True)
