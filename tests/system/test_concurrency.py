"""Threads and tasks when their caller is cancelled."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from kvchat.system.concurrency import InterruptibleTask, OnProgress, Stopped, Worker, in_thread, in_thread_with_progress


async def test_in_thread_stops_and_waits_on_repeated_cancel() -> None:
    loop, begun, stopping = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    may_end, done = threading.Event(), []

    def work(stop: threading.Event) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert stop.wait(240)
        loop.call_soon_threadsafe(stopping.set)
        assert may_end.wait(240)
        done.append("cleaned up")

    waiting = asyncio.create_task(in_thread(work))
    await begun.wait()
    waiting.cancel()
    await stopping.wait()
    waiting.cancel()
    assert not (await asyncio.wait([waiting], timeout=0.05))[0]
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done == ["cleaned up"]


class SlowThreads(ThreadPoolExecutor):
    """Threads that release their work a moment after its result is set, as on a busy machine."""

    def __init__(self) -> None:
        super().__init__()
        self.may_release = threading.Event()

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        result: Future[Any] = Future()
        pending = [partial(work, *args, **kwargs)]

        def run() -> None:
            current = pending.pop()
            result.set_result(current())
            assert self.may_release.wait(240)

        super().submit(run)
        return result


async def test_progress_listener_is_freed_on_the_loops_thread() -> None:
    """It may be a dialog, and Qt objects must not be freed on another thread."""

    class Listener:
        def report(self, done: int, total: int) -> None:
            reports.append((done, total))

        def __del__(self) -> None:
            freed_on.append(threading.current_thread())

    reports: list[tuple[int, int]] = []
    freed_on: list[threading.Thread] = []
    threads = SlowThreads()
    asyncio.get_running_loop().set_default_executor(threads)
    try:
        assert await in_thread_with_progress(lambda report: (report(1, 2), "yes")[1], Listener().report) == "yes"
        gc.collect()
        assert freed_on == [threading.current_thread()]
    finally:
        threads.may_release.set()
        threads.shutdown()
    assert reports == [(1, 2)]


@pytest.mark.parametrize("goes_on", [True, False])
async def test_cancel_takes_effect_at_the_next_progress_report(goes_on: bool) -> None:
    """Work that reports no more progress was cancelled too late: its result counts."""
    loop, begun, cancelled = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    stopped: list[BaseException] = []

    def work(report: OnProgress) -> str:
        try:
            report(0, 0)
            while goes_on:
                report(0, 0)
        except Stopped as error:
            stopped.append(error)
            raise
        return "done"

    def progress(done: int, total: int) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert cancelled.wait(240)

    waiting = asyncio.create_task(in_thread_with_progress(work, progress))
    await begun.wait()
    waiting.cancel()
    cancelled.set()
    if goes_on:
        with pytest.raises(asyncio.CancelledError):
            await waiting
    else:
        assert await waiting == "done"
    assert len(stopped) == goes_on


async def test_worker_error_after_cancel_is_ignored() -> None:
    worker, goes_on, bugs = Worker("alone"), threading.Event(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: bugs.append(context))

    def fail() -> None:
        goes_on.wait()
        raise OSError("full")

    waiting = asyncio.create_task(worker.run(fail))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    goes_on.set()
    with pytest.raises(OSError, match="full"):
        await worker.run(fail)  # behind it
    gc.collect()
    await asyncio.sleep(0)
    assert not bugs
    worker.close()


async def test_interrupt_ends_a_task_whose_timeout_is_just_expiring() -> None:
    interruption, begun = InterruptibleTask(), asyncio.Event()

    async def work() -> None:
        with contextlib.suppress(TimeoutError):
            async with limit:
                begun.set()
                await asyncio.Event().wait()
        await asyncio.Event().wait()

    loop, limit = asyncio.get_running_loop(), asyncio.timeout(3600)
    caller = asyncio.ensure_future(interruption.run(work()))
    await begun.wait()
    limit.reschedule(loop.time())
    loop.call_soon(interruption.interrupt)  # after the timeout, before the task runs
    async with asyncio.timeout(10):
        assert await caller is None


async def test_interrupted_task_cleans_up_when_its_caller_is_cancelled() -> None:
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), []

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            ended.append("well")

    interruption = InterruptibleTask()
    caller = asyncio.ensure_future(interruption.run(work()))
    await begun.wait()
    assert interruption.interrupt()
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == ["well"]
