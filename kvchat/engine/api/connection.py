"""Status of an engine that may restart, and the client for it when it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kvchat.engine.api.errors import EngineError, EngineFailed, EngineFailure, EngineLifetime, FailureKind
from kvchat.text.language import N_, _

if TYPE_CHECKING:
    from kvchat.engine.api.client import LlamaServerClient


class EngineState(Enum):
    STOPPED = N_("stopped")
    UNLOADED = N_("unloaded")  # stopped to free its memory; the next message starts it
    STARTING = N_("starting")
    LOADING = N_("loading")
    READY = N_("ready")
    STOPPING = N_("stopping")
    FAILED = N_("failed")


DOWN_STATES = (EngineState.STOPPED, EngineState.UNLOADED, EngineState.FAILED)  # no engine runs or starts


@dataclass(frozen=True)
class EngineStatus:
    state: EngineState
    failure: EngineFailure | None = None  # why the engine failed or restarts, or that no model is chosen
    restart_attempt: int = 0  # number of automatic restarts so far
    is_testing: bool = False  # kvchat is testing whether the engine restores chats (while LOADING)

    @property
    def is_away(self) -> bool:
        """True if the engine is on a paired computer that is not available."""
        return self.failure is not None and self.failure.kind is FailureKind.AWAY

    @property
    def is_unpaired(self) -> bool:
        """True if the computers must be paired again."""
        return self.failure is not None and self.failure.kind is FailureKind.UNPAIRED


class EngineConnection:
    """The status of an engine, its listeners, and the client. Use it on the event loop's thread only."""

    def __init__(self, generations: Iterator[int]) -> None:
        """`generations`: counter shared by all connections of one host, so that no two engines have the same number."""
        self.generation = 0  # number of the engine: a slot of another number has lost its contents
        self._generations = generations
        self._status = EngineStatus(EngineState.STOPPED)
        self._listeners: list[Callable[[EngineStatus], None]] = []
        self._changed = asyncio.Event()
        self._client: LlamaServerClient | None = None
        self._lifetime: EngineLifetime | None = None  # of the ready engine

    @property
    def status(self) -> EngineStatus:
        return self._status

    @property
    def client(self) -> LlamaServerClient | None:
        return self._client

    def subscribe(self, listener: Callable[[EngineStatus], None]) -> None:
        self._listeners.append(listener)

    async def ready(self) -> LlamaServerClient:
        """Wait until the engine is ready. Raises EngineFailed if it failed, EngineError if it is stopped."""
        while True:
            state = self._status.state
            if state is EngineState.READY and self._client is not None:
                return self._client
            if state in (EngineState.FAILED, EngineState.STOPPED) and self._status.failure is not None:
                raise EngineFailed(self._status.failure)
            if state in (EngineState.STOPPED, EngineState.STOPPING, EngineState.UNLOADED):
                raise EngineError(_("The engine is stopped"), "", _("Start the engine, then try again."))
            await self._changed.wait()

    def _set_ready(self, client: LlamaServerClient, status: EngineStatus) -> None:
        self._client, self._lifetime = client, client.lifetime
        self.publish(status)

    def publish(self, status: EngineStatus) -> None:
        if status == self._status:
            return
        self._status = status
        if self._lifetime is not None and status.state is not EngineState.READY:
            is_requested = status.state in (EngineState.STOPPING, EngineState.STOPPED, EngineState.UNLOADED)
            self._lifetime.end(None if is_requested else status.failure)
            self._lifetime = None
        self._changed.set()
        self._changed = asyncio.Event()
        for listener in tuple(self._listeners):
            listener(status)
