"""One engine process from when it is ready to its end, or one stretch of time in which the user's server answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvchat.engine.speaking.errors import EngineFailure, FailureKind

LOSS_NOTICED_S = 10.0  # how long it may take to be seen that a process died
# Kinds of failure that no request causes: the process was killed, or other hardware failed.
_FROM_OUTSIDE = (FailureKind.KILLED, FailureKind.GPU_LOST, FailureKind.WORKER_LOST)


class Life:
    """Ends once, with the reason. Belongs to the event loop's thread.

    Each EngineGone carries the life it was raised in, so that it is explained by that one's end whatever runs by then.
    """

    def __init__(self) -> None:
        self.failure: EngineFailure | None = None  # why it ended; None if it was stopped on purpose
        self.seen_at: float | None = None  # time.monotonic() of the last question that its own loop has answered
        self._ended = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    @property
    def crashed(self) -> bool:
        """True if it ended, and a request or a restored state may be the cause."""
        return self.failure is not None and self.failure.kind not in _FROM_OUTSIDE

    def end(self, failure: EngineFailure | None) -> None:
        """Note the end, and call those who wait for it. A second end is ignored."""
        if self._ended.is_set():
            return
        self.failure = failure
        self._ended.set()
        for listener in self._listeners:
            listener()

    def on_end(self, listener: Callable[[], None]) -> None:
        """Call `listener` when it ends; at once if it has."""
        if self._ended.is_set():
            listener()
        else:
            self._listeners.append(listener)

    async def ends_soon(self) -> bool:
        """Wait for the end, up to LOSS_NOTICED_S; False if it goes on."""
        try:
            async with asyncio.timeout(LOSS_NOTICED_S):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True
