"""The engine room: chooses an engine, hands it to the supervisor, and gives turns a ready engine with its facts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kvchat.chat.room import ReadyEngine
from kvchat.engine.client import EngineError
from kvchat.engine.discovery import EngineNotFound
from kvchat.engine.extra_arguments import BadArguments, BadWorkers
from kvchat.engine.probe import EngineTooOld
from kvchat.engine.status import EngineFailure, EngineState, EngineStatus, FailureKind
from kvchat.engine.supervisor import EngineSupervisor
from kvchat.engine.vitals import Vitals, take_vitals
from kvchat.engine_choice import EngineChoice, choose_engine
from kvchat.errors import KvchatError
from kvchat.settings import Settings

LOSS_NOTICED_S = 3.0  # how long the supervisor may take to see that a process died


class SupervisedRoom:
    """Joins settings, choice and supervisor. An `EngineRoom` for the chat."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        slot_path: Path,
        supervisor: EngineSupervisor,
        publish: Callable[[EngineStatus], None],
    ) -> None:
        self.choice: EngineChoice | None = None  # of the engine that runs, or ran last
        self.started_with: Settings | None = None  # the settings it was chosen by
        self._settings = settings
        self._slot_path = slot_path
        self._supervisor = supervisor
        self._publish = publish
        self._preparing: EngineStatus | None = None  # overrides the supervisor's status before there is a process
        self._changed = asyncio.Event()
        self._ready: ReadyEngine | None = None
        self._starting = asyncio.Lock()
        supervisor.subscribe(self._supervisor_changed)

    @property
    def status(self) -> EngineStatus:
        """What the engine is doing, preparation included."""
        return self._preparing or self._supervisor.status

    @property
    def context_size(self) -> int | None:
        """The context size the running engine reported, in tokens."""
        return self._ready.context_size if self._ready and self.is_ready() else None

    @property
    def engine_pid(self) -> int | None:
        """The running engine process, None without one."""
        return self._supervisor.pid

    async def vitals(self) -> Vitals | None:
        """How the running engine is doing; None without a ready one."""
        client = self._supervisor.client
        return await take_vitals(self._supervisor.pid, client) if client is not None else None

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown to anybody: the running engine's key."""
        client = self._supervisor.client
        return (client.key,) if client is not None else ()

    def is_ready(self) -> bool:
        """Whether `ready` would answer at once."""
        return self.status.state is EngineState.READY

    async def start(self) -> None:
        """Choose an engine and start it, unless an engine runs. What goes wrong ends up in the status."""
        async with self._starting:
            if self.status.state not in (EngineState.STOPPED, EngineState.RESTING, EngineState.FAILED):
                return
            self._set_preparing(EngineStatus(EngineState.STARTING))
            self.started_with = settings = self._settings()
            try:
                choice = await asyncio.to_thread(choose_engine, settings, self._slot_path)
            except KvchatError as error:
                self._set_preparing(EngineStatus(EngineState.FAILED, failure=_failure(error)))
                return
            except BaseException:
                self._set_preparing(EngineStatus(EngineState.FAILED, failure=_BUG))
                raise
            self.choice = choice
            self._preparing = None
            await self._supervisor.start(choice.location, choice.plan)

    async def stop(self) -> None:
        """Stop the engine by the ladder."""
        async with self._starting:
            self._preparing = None
            await self._supervisor.stop()

    async def rest(self) -> None:
        """Stop the engine, or do not even start it, until somebody asks for one."""
        async with self._starting:
            self._set_preparing(EngineStatus(EngineState.RESTING))
            await self._supervisor.stop()

    async def close(self) -> None:
        """Stop for good."""
        async with self._starting:
            self._preparing = None
            await self._supervisor.close()

    async def ready(self) -> ReadyEngine:
        """Wait until an engine is ready, starting one if none runs. Raises KvchatError when there will be none."""
        while True:
            if self._preparing or self.status.state in (EngineState.STOPPED, EngineState.STOPPING, EngineState.FAILED):
                await self.start()
            if self._preparing and self._preparing.failure:
                raise _error(self._preparing.failure)
            engine, generation = await self._supervisor.ready(), self._supervisor.generation
            if self._ready and self._ready.generation == generation:
                return self._ready
            choice = self.choice
            assert choice is not None
            if await asyncio.to_thread(choice.model_changed):  # other weights than those it was fingerprinted by
                await self.stop()
                continue
            facts = await engine.facts()
            self._ready = ReadyEngine(
                engine=engine,
                generation=generation,
                slot_path=self._slot_path,
                fingerprint=choice.fingerprint,
                context_size=facts.context_size,
                kv_bytes_per_token=choice.kv_bytes_per_token,
                slides=choice.facts.sliding_window is not None,
                can_cut=choice.can_cut,
            )

    async def explain_loss(self, error: EngineError) -> EngineError:
        """After EngineGone: the reason in the supervisor's words, once it has seen the process go."""
        try:
            async with asyncio.timeout(LOSS_NOTICED_S):
                while self.is_ready():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return error
        failure = self.status.failure
        if failure:
            return _error(failure)
        stopped = self.status.state in (EngineState.STOPPED, EngineState.STOPPING, EngineState.RESTING)
        return _stopped_on_purpose() if stopped else error

    def _supervisor_changed(self, _: EngineStatus) -> None:
        self._told()

    def _set_preparing(self, status: EngineStatus | None) -> None:
        self._preparing = status
        self._told()

    def _told(self) -> None:
        self._changed.set()
        self._publish(self.status)


_BUG = EngineFailure(
    FailureKind.EXITED,
    "The engine could not be started",
    "Something unexpected went wrong while kvchat prepared it.",
    "The report says what; try again, or choose another model or engine.",
)


def _failure(error: KvchatError) -> EngineFailure:
    kinds = {
        EngineNotFound: FailureKind.NOT_FOUND,
        EngineTooOld: FailureKind.INCOMPATIBLE,
        BadArguments: FailureKind.INCOMPATIBLE,
        BadWorkers: FailureKind.INCOMPATIBLE,
    }
    kind = next((kind for of, kind in kinds.items() if isinstance(error, of)), FailureKind.BAD_MODEL)
    return EngineFailure(kind, error.title, error.detail, error.advice)


def _error(failure: EngineFailure) -> EngineError:
    return EngineError(failure.title, failure.detail, failure.advice)


def _stopped_on_purpose() -> EngineError:
    return EngineError("The engine was stopped", "", "It starts again with your next message.")
