"""Runs the coroutines that user actions start, and reports their errors."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kvchat.errors import KvchatError

ErrorHandler = Callable[[KvchatError], None]
_CLOSE_TIMEOUT_S = 2.0


class TaskRunner:
    """Runs coroutines as tasks. KvchatErrors go to `on_error`, anything else to `on_bug`. Create it on a running loop.

    Qt event handlers can then start tasks even while asyncio considers the loop not running.
    """

    def __init__(self, on_error: ErrorHandler, on_bug: Callable[[BaseException], None]) -> None:
        self.on_error = on_error
        self._on_bug = on_bug
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Future[Any]] = set()

    def start(self, coroutine: Coroutine[Any, Any, Any], on_error: ErrorHandler | None = None) -> asyncio.Task[Any]:
        task = self._loop.create_task(coroutine)
        self.watch(task, on_error or self.on_error)
        return task

    def watch(self, task: asyncio.Future[Any], on_error: ErrorHandler) -> None:
        self._tasks.add(task)

        def done(finished: asyncio.Future[Any]) -> None:
            self._tasks.discard(finished)
            if finished.cancelled():
                return
            error = finished.exception()
            if isinstance(error, KvchatError):
                on_error(error)
            elif error is not None:
                self._on_bug(error)

        task.add_done_callback(done)

    async def close(self) -> None:
        """Cancel all tasks and wait a limited time for them to end."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT_S)
