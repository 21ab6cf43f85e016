"""What both kinds of host do: wait for an engine that comes and goes, get to know one that is ready, tell of it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvchat.engine.speaking.connection import EngineConnection, EngineState, EngineStatus
from kvchat.engine.speaking.vitals import Vitals, take_vitals
from kvchat.errors import KvchatError
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_support import Finding, Findings, Subject
from kvchat.session.self_test import self_test
from kvchat.settings import Settings


class BaseHost(ABC):
    """Joins settings and the connection to an engine."""

    def __init__(
        self, settings: Callable[[], Settings], slot_path: Path, connection: EngineConnection, findings: Findings
    ) -> None:
        self.started_with: Settings | None = None  # the settings it was chosen by
        self.publish: Callable[[EngineStatus], None] = lambda _: None  # hears each new status
        self._settings = settings
        self._slot_path = slot_path
        self._connection = connection
        self._findings = findings
        self._override: EngineStatus | None = None  # in place of the connection's status, before there is one
        self._ready: ReadyEngine | None = None
        self._subject: Subject | None = None  # what is found out about restoring is about this
        self._inspection: asyncio.Task[None] | None = None  # with an engine that has just come up
        self._checking = False
        self._lock = asyncio.Lock()
        connection.subscribe(self._connection_changed)

    @property
    def status(self) -> EngineStatus:
        """The engine's status, preparation included. One that is not known yet is still loading."""
        status = self._override or self._connection.status
        if status.state is EngineState.READY and self.known is None:
            return replace(status, state=EngineState.LOADING, checking=self._checking)
        return status

    @property
    def known(self) -> ReadyEngine | None:
        return self._ready if self._ready and self._ready.generation == self._connection.generation else None

    @property
    def finding(self) -> Finding | None:
        return self.known.finding if self.known and self.is_ready() else None

    @property
    def context_size(self) -> int | None:
        return self.known.context_size if self.known and self.is_ready() else None

    @property
    def sees(self) -> bool:
        return self.known is not None and self.known.sees and self.is_ready()

    @property
    def secrets(self) -> tuple[str, ...]:
        client = self._connection.client
        return (client.key,) if client is not None and client.key else ()

    @property
    @abstractmethod
    def engine_pid(self) -> int | None:
        """The running engine process; None without one, or where it is not known."""

    async def vitals(self) -> Vitals | None:
        client = self._connection.client
        return await take_vitals(self.engine_pid, client) if client is not None else None

    def is_ready(self) -> bool:
        return self.status.state is EngineState.READY

    def recovers(self) -> bool:
        return self.status.state in (EngineState.STARTING, EngineState.LOADING, EngineState.READY)

    @abstractmethod
    async def start(self) -> None:
        """Start or find an engine, unless one is there. What goes wrong ends up in the status."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the engine, or let go of one that is not ours."""

    @abstractmethod
    async def check_vision(self, model: str | None) -> None:
        """Raise a KvchatError that says why a model can be shown no pictures, as far as is known."""

    @abstractmethod
    async def ready(self, *, sees: bool = False, tokens: int = 0) -> ReadyEngine:
        """See `EngineHost.ready`."""

    async def note_restore(self, *, hollow: bool) -> None:
        known, subject = self.known, self._subject
        if known is None or subject is None:
            return
        finding = known.finding.after_restore(hollow=hollow)
        if finding != known.finding:
            self._ready = replace(known, finding=finding)
            await self._findings.learn(subject, finding, known.finding)

    async def forget_finding(self) -> None:
        if self._subject is not None:
            await self._findings.forget(self._subject)

    async def _inspected(self) -> None:
        """Wait until the engine was inspected. A caller that is cancelled does not end it for the others."""
        await asyncio.shield(self._inspection if self._inspection and not self._inspection.done() else self._inspect())

    def _inspect(self) -> asyncio.Task[None]:
        """Inspect the engine that has come up, in a task of its own: whoever waits for it may go away."""
        self._inspection = asyncio.create_task(self._look_into(), name="inspecting the engine")
        self._inspection.add_done_callback(tell_bug)
        return self._inspection

    @abstractmethod
    async def _look_into(self) -> None:
        """Ask an engine for its facts and find out what restoring can do with it. Raises EngineError."""

    async def _find_out(self, ready: ReadyEngine, subject: Subject) -> Finding:
        """Return the finding of an earlier self-test, or make one. Raises EngineGone if that kills the engine."""
        if (finding := await self._findings.known(subject)) is not None:
            return finding
        self._checking = True
        self.publish(self.status)
        try:
            finding = await self_test(ready)
        finally:
            self._checking = False
        await self._findings.learn(subject, finding)
        return finding

    def _connection_changed(self, status: EngineStatus) -> None:
        if status.state is EngineState.READY:
            self._inspect()
        self.publish(self.status)

    def _set_override(self, status: EngineStatus | None) -> None:
        self._override = status
        self.publish(self.status)


def tell_bug(task: asyncio.Task[None]) -> None:
    """Report what a finished task raised, unless it is a KvchatError: those are for whoever asks for the engine."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, KvchatError):
        task.get_loop().call_exception_handler({"message": "Inspecting the engine broke", "exception": error})
