"""What there is to know of an engine while it comes and goes, for those who wait for it and those who watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from kvchat.engine.speaking.client import LlamaServerClient
from kvchat.engine.speaking.errors import EngineError
from kvchat.engine.speaking.status import EngineFailure, EngineState, EngineStatus


class EngineFailed(EngineError):
    """The engine is not running and is not going to: the failure's words."""

    def __init__(self, reason: EngineFailure) -> None:
        super().__init__(reason.title, reason.detail, reason.advice)
        self.failure = reason


class EngineConnection:
    """Status, listeners, and the connection to a ready engine. Everything belongs to the thread of one asyncio loop.

    `generation` grows with each engine met: whoever remembers what the slot holds compares it.
    """

    def __init__(self, generations: Iterator[int]) -> None:
        """`generations` are shared by all who bring engines to the same chat."""
        self.generation = 0
        self._generations = generations
        self._status = EngineStatus(EngineState.STOPPED)
        self._listeners: list[Callable[[EngineStatus], None]] = []
        self._changed = asyncio.Event()
        self._client: LlamaServerClient | None = None

    @property
    def status(self) -> EngineStatus:
        """What the engine is doing."""
        return self._status

    @property
    def client(self) -> LlamaServerClient | None:
        """The connection to a ready engine, None without one."""
        return self._client

    def subscribe(self, listener: Callable[[EngineStatus], None]) -> Callable[[], None]:
        """Call `listener` with each new status, on the loop's thread; returns the function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    async def ready(self) -> LlamaServerClient:
        """The engine, as soon as it is ready. Raises EngineFailed with the reason, EngineError when it is stopped."""
        while True:
            state = self._status.state
            if state is EngineState.READY and self._client is not None:
                return self._client
            if state is EngineState.FAILED and self._status.failure is not None:
                raise EngineFailed(self._status.failure)
            if state in (EngineState.STOPPED, EngineState.STOPPING):
                raise EngineError("The engine is stopped", "", "Start the engine, then try again.")
            await self._changed.wait()

    def _publish(self, status: EngineStatus) -> None:
        if status == self._status:
            return
        self._status = status
        self._changed.set()
        self._changed = asyncio.Event()
        for listener in tuple(self._listeners):
            listener(status)
