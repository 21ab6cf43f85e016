"""Tasks and threads beside the event loop: waiting for them, stopping them, or shielding them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from kvchat.text.language import _

P = ParamSpec("P")
R = TypeVar("R")

LAST_MOMENT_S = 1.0
Progress = Callable[[int, int], None]  # done, total; total is 0 if unknown


class Background:
    """Keep work alive until it ends. It reports KvchatErrors itself; anything else it raises is a bug."""

    def __init__(self, hear: Callable[[bool], None] = lambda busy: None) -> None:
        """`hear` gets True whenever work begins, and False when all of it has ended."""
        self._hear = hear
        self._tasks: set[asyncio.Task[object]] = set()
        self._used_at = time.monotonic()

    @property
    def idle_s(self) -> float:
        return 0.0 if self._tasks else time.monotonic() - self._used_at

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        self._hear(True)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def used(self) -> None:
        self._used_at = time.monotonic()

    async def idle(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        self.used()
        if not self._tasks:
            self._hear(False)
        if not task.cancelled() and (error := task.exception()):
            context = {"message": _("A background task failed"), "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)


async def run_in_thread_if_large(much: bool, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return await asyncio.to_thread(function, *args, **kwargs) if much else function(*args, **kwargs)


class Worker:
    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` on the worker's thread, even if the caller is cancelled: a write must happen."""
        call = asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))
        call.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be gone
        return await asyncio.shield(call)

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Like `run`, but block another thread. Other calls may run in between."""
        return self._executor.submit(function, *args, **kwargs).result()

    def close(self) -> None:
        self._executor.shutdown(wait=True)


class LoopThreads(ThreadPoolExecutor):
    """A loop's threads. At the end they get a moment to finish; a hung one is abandoned."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        latest = time.monotonic() + LAST_MOMENT_S
        for thread in tuple(self._threads) if wait else ():
            thread.join(max(0.0, latest - time.monotonic()))


class Stopped(Exception):
    """The work was asked to stop."""


async def in_thread(work: Callable[[threading.Event], R]) -> R:
    """Run `work` off the loop. On cancel, set its event and wait for its end."""
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        while not task.done():  # cancelled again because kvchat quits: still wait for the cleanup
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        task.exception()  # retrieved: errors after a stop request do not matter
        raise


async def in_thread_with_progress(work: Callable[[Progress], R], progress: Progress) -> R:
    """Run `work` off the loop, reporting progress there. On cancel, its next report raises Stopped.

    Work that ends before its next report was cancelled too late: it counts, and this returns. The thread keeps no
    reference to `progress`: it may belong to the window, which must be freed on its own thread (Qt crashed).
    """
    results: list[R] = []
    hears = [progress]

    def stoppable(stop: threading.Event) -> R:
        def tell(done: int, total: int) -> None:
            if stop.is_set():
                raise Stopped
            hears[0](done, total)

        results.append(work(tell))
        return results[0]

    try:
        return await in_thread(stoppable)
    except asyncio.CancelledError:
        if not results:
            raise
        if task := asyncio.current_task():
            task.uncancel()
        return results[0]
    finally:
        hears.clear()


@dataclass
class InterruptibleTask:
    """Work that others may end early without cancelling the waiting caller."""

    task: asyncio.Task[Any] | None = None

    async def run(self, work: Coroutine[Any, Any, R]) -> R | None:
        """Run the work; None if `interrupt` ended it. Cancelling the caller cancels it."""
        self.task = task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            self.interrupt()
            await asyncio.wait([task])
            raise
        finally:
            self.task = None
        return None if task.cancelled() else task.result()

    def interrupt(self) -> bool:
        """End the work; True if there was any. Only once: a second time would end its cleanup."""
        return self.task is not None and (self.task.cancelling() > 0 or self.task.cancel())


async def shielded(work: Coroutine[Any, Any, R]) -> R:
    """Await work that continues if the caller is cancelled; re-raise the cancellation when it ends."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved: the caller is gone
        raise
