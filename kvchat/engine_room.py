"""The engine room: chooses an engine, hands it to the supervisor, and gives turns a ready engine with its facts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

from kvchat.chat.room import ReadyEngine
from kvchat.engine.allocations import read_allocations
from kvchat.engine.client import EngineError
from kvchat.engine.discovery import EngineNotFound
from kvchat.engine.extra_arguments import BadArguments, BadWorkers
from kvchat.engine.plan import LaunchPlan
from kvchat.engine.probe import EngineTooOld
from kvchat.engine.status import EngineFailure, EngineState, EngineStatus, FailureKind
from kvchat.engine.supervisor import EngineSupervisor
from kvchat.engine.vitals import Vitals, take_vitals
from kvchat.engine_choice import EngineChoice, choose_engine
from kvchat.errors import KvchatError
from kvchat.library.corrections import CorrectionBook
from kvchat.library.measured import learn, measured_bars
from kvchat.library.memory_bar import MemoryBar
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
        notify: Callable[[str, str], None],
        book: CorrectionBook,
    ) -> None:
        """`notify` tells the user something in two parts, a title and a detail; `book` is what earlier loads taught."""
        self.choice: EngineChoice | None = None  # of the engine that runs, or ran last
        self.memory_bars: tuple[MemoryBar, ...] = ()  # estimated as it loads, measured when it is ready
        self.started_with: Settings | None = None  # the settings it was chosen by
        self._settings = settings
        self._slot_path = slot_path
        self._supervisor = supervisor
        self._publish = publish
        self._notify = notify
        self._book = book
        self._smaller: Iterator[EngineChoice] = iter(())
        self._ran_out: EngineChoice | None = None  # the first choice that did not fit
        self._learning: asyncio.Task[None] | None = None
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
        """The context size the running engine reported, in tokens; None until it was asked for its facts."""
        known = self._ready
        if known is None or known.generation != self._supervisor.generation or not self.is_ready():
            return None
        return known.context_size

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
                choice = await asyncio.to_thread(choose_engine, settings, self._slot_path, self._book)
            except KvchatError as error:
                self._set_preparing(EngineStatus(EngineState.FAILED, failure=_failure(error)))
                return
            except BaseException:
                self._set_preparing(EngineStatus(EngineState.FAILED, failure=_BUG))
                raise
            self._smaller, self._ran_out = iter(choice.smaller()), None
            self._preparing = None
            self._take(choice)
            await self._supervisor.start(choice.location, choice.plan, self._step_down)

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
            if self._learning:
                await self._learning

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

    def _take(self, choice: EngineChoice) -> None:
        self.choice, self.memory_bars = choice, choice.context.bars

    def _step_down(self) -> LaunchPlan | None:
        """After a load that ran out of memory: the next smaller choice's plan, None at the floor."""
        smaller = next(self._smaller, None)
        if smaller is None:
            return None
        self._ran_out = self._ran_out or self.choice
        self._take(smaller)
        return smaller.plan

    def _supervisor_changed(self, status: EngineStatus) -> None:
        if status.state is EngineState.READY and self.choice:
            self._compare(self.choice)
        self._told()

    def _compare(self, choice: EngineChoice) -> None:
        """A load succeeded: look at what it took, learn from it, and say so if it was not the one that was planned."""
        ran_out, self._ran_out = self._ran_out, None
        if ran_out:
            self._notify(
                "The context is smaller than planned",
                f"Memory ran out with {ran_out.context.tokens:,} tokens. {choice.context.reason}",
            )
        actual = read_allocations(self._supervisor.log.since_start)
        if actual is None:
            return
        self.memory_bars = measured_bars(choice.context.bars, actual)
        learned = learn(choice.context, choice.corrections, actual, ran_out.context if ran_out else None)
        if learned != choice.corrections:
            write = asyncio.to_thread(self._book.learn, choice.circumstances, learned)
            self._learning = asyncio.create_task(write, name="memory corrections")

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
