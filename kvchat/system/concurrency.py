"""Background tasks and worker threads."""

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

SHUTDOWN_TIMEOUT_S = 1.0
OnProgress = Callable[[int, int], None]  # gets the done and the total amount, which is 0 if unknown


class BackgroundTasks:
    """Keeps references to tasks until they end, and reports their exceptions as bugs."""

    def __init__(self, on_busy: Callable[[bool], None] = lambda busy: None) -> None:
        """`on_busy` is called with True when a task starts, and with False when the last one has ended."""
        self._on_busy = on_busy
        self._tasks: set[asyncio.Task[object]] = set()
        self._used_at = time.monotonic()

    @property
    def idle_s(self) -> float:
        return 0.0 if self._tasks else time.monotonic() - self._used_at

    def start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        self._on_busy(True)
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def mark_used(self) -> None:
        self._used_at = time.monotonic()

    async def wait_until_idle(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _end(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        self.mark_used()
        if not self._tasks:
            self._on_busy(False)
        if not task.cancelled() and (error := task.exception()):
            context = {"message": _("A background task failed"), "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)


async def run_in_thread_if_large(is_large: bool, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return await asyncio.to_thread(function, *args, **kwargs) if is_large else function(*args, **kwargs)


class Worker:
    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` on the worker's thread. Cancelling the caller does not prevent the call."""
        call = asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))
        call.add_done_callback(lambda done: done.cancelled() or done.exception())  # or asyncio would log it
        return await asyncio.shield(call)

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` on the worker's thread and block the calling thread until it returns."""
        return self._executor.submit(function, *args, **kwargs).result()

    def close(self) -> None:
        self._executor.shutdown(wait=True)


class LoopThreads(ThreadPoolExecutor):
    """The thread pool of an event loop. `shutdown` waits only briefly, because a thread may hang."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        latest = time.monotonic() + SHUTDOWN_TIMEOUT_S
        for thread in tuple(self._threads) if wait else ():
            thread.join(max(0.0, latest - time.monotonic()))


class Stopped(Exception):
    """Raised inside a function running in a thread after its caller was cancelled."""


async def in_thread(function: Callable[[threading.Event], R]) -> R:
    """Call `function` in a thread, passing an event. If cancelled, set the event and wait until `function` returns."""
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(function, stop))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        while not task.done():  # also if cancelled once more, because the function may be cleaning up
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        task.exception()  # or asyncio would log it
        raise


async def in_thread_with_progress(function: Callable[[OnProgress], R], progress: OnProgress) -> R:
    """Call `function` in a thread, passing a progress callback that raises Stopped once this coroutine is cancelled.

    If `function` returns without calling it again, the cancellation came too late and the result is returned.
    """
    results: list[R] = []
    listeners = [progress]  # cleared below: freeing a listener of the window in another thread crashed Qt

    def run(stop: threading.Event) -> None:
        def report(done: int, total: int) -> None:
            if stop.is_set():
                raise Stopped
            listeners[0](done, total)

        results.append(function(report))

    try:
        await in_thread(run)
    except asyncio.CancelledError:
        if not results:
            raise
        if task := asyncio.current_task():
            task.uncancel()
    finally:
        listeners.clear()
    return results[0]


@dataclass
class InterruptibleTask:
    """A task that can be interrupted without cancelling the caller that awaits it."""

    task: asyncio.Task[Any] | None = None
    _is_interrupted: bool = False  # `Task.cancelling` also counts a timeout that is just expiring

    async def run(self, coroutine: Coroutine[Any, Any, R]) -> R | None:
        """Run a coroutine; return None if `interrupt` ended it. Cancelling the caller cancels the coroutine."""
        self.task = task = asyncio.ensure_future(coroutine)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            self.interrupt()
            await asyncio.wait([task])
            raise
        finally:
            self.task, self._is_interrupted = None, False
        return None if task.cancelled() else task.result()

    def interrupt(self) -> bool:
        """Cancel the running task, at most once so that it can clean up. Return False if no task is running."""
        self._is_interrupted = self._is_interrupted or (self.task is not None and self.task.cancel())
        return self._is_interrupted


async def shielded(coroutine: Coroutine[Any, Any, R]) -> R:
    """Await a coroutine to its end. If the caller is cancelled meanwhile, raise CancelledError afterwards."""
    task = asyncio.ensure_future(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # or asyncio would log it
        raise
