"""Work beside the event loop: what nobody waits for, and the thread for what must be used from one thread alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


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
