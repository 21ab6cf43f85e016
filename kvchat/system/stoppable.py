"""Blocking work in a thread that ends early when whoever waits for it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")

LAST_MOMENT_S = 1.0

Progress = Callable[[int, int], None]  # so much is done, of so much in all; 0 where nobody knows


class Threads(ThreadPoolExecutor):
    """A loop's threads. When it ends they have a moment to end, too: one that hangs is waited for no longer."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let nothing new begin, and wait for what goes on, within bounds."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        latest = time.monotonic() + LAST_MOMENT_S
        for thread in tuple(self._threads) if wait else ():
            thread.join(max(0.0, latest - time.monotonic()))


class Stopped(Exception):
    """The work was asked to stop."""


async def in_thread(work: Callable[[threading.Event], R]) -> R:
    """Run `work` off the loop. When cancelled, ask it to stop by the event, and wait until it has ended."""
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        while not task.done():  # cancelled again, for kvchat quits: what it cleans up is waited for all the same
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        task.exception()  # it was asked to stop: how it did so is nobody's concern
        raise


async def in_thread_with_progress(work: Callable[[Progress], R], progress: Progress) -> R:
    """Run `work` off the loop, which tells its progress there. Asked to stop, it meets Stopped where it tells it.

    What is done before it tells its progress again was cancelled too late: it counts, and this returns.
    """
    results: list[R] = []

    def stoppable(stop: threading.Event) -> R:
        def tell(done: int, total: int) -> None:
            if stop.is_set():
                raise Stopped
            progress(done, total)

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
