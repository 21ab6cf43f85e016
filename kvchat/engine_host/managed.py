"""The engine room: chooses an engine, hands it to the supervisor, and gives turns a ready engine with its facts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from kvchat.chat.restore_findings import Findings
from kvchat.engine.finding import extra_arguments
from kvchat.engine.running import refusal
from kvchat.engine.running.plan import LaunchPlan
from kvchat.engine.running.supervisor import EngineSupervisor
from kvchat.engine.speaking.interface import EngineError, EngineGone
from kvchat.engine.speaking.status import EngineState, EngineStatus
from kvchat.engine.speaking.vitals import Vitals, take_vitals
from kvchat.engine_host.choice import EngineChoice
from kvchat.engine_host.meeting import loss_noticed, tell_bug
from kvchat.engine_host.memory import EngineMemory
from kvchat.engine_host.vision import CannotSee, find_projector
from kvchat.errors import KvchatError
from kvchat.session.host import ReadyEngine
from kvchat.session.self_test import self_test
from kvchat.session.strategy import Finding, Strategy
from kvchat.settings import Settings


class ManagedHost:
    """Joins settings, choice and supervisor. An `EngineHost` for the chat."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        slot_path: Path,
        supervisor: EngineSupervisor,
        findings: Findings,
        memory: EngineMemory,
        publish: Callable[[EngineStatus], None],
        needed: Callable[[], Awaitable[int]],
    ) -> None:
        """`needed`: how many tokens the chats have that are likely to be answered, the replies included."""
        self.choice: EngineChoice | None = None  # of the engine that runs, or ran last
        self.memory = memory
        self.started_with: Settings | None = None  # the settings it was chosen by
        self._settings = settings
        self._slot_path = slot_path
        self._supervisor = supervisor
        self._findings = findings
        self._publish = publish
        self._needed = needed
        self._preparing: EngineStatus | None = None  # overrides the supervisor's status before there is a process
        self._changed = asyncio.Event()
        self._ready: ReadyEngine | None = None
        self._starter: asyncio.Task[None] | None = None
        self._meeting: asyncio.Task[None] | None = None  # with an engine that has just come up
        self._checking = False
        self._meant_to_see = False  # the engine was started to be shown pictures
        self._starting = asyncio.Lock()
        supervisor.subscribe(self._supervisor_changed)

    @property
    def status(self) -> EngineStatus:
        """What the engine is doing, preparation included. One that is not known yet is still loading."""
        status = self._preparing or self._supervisor.status
        if status.state is EngineState.READY and self._known() is None:
            return replace(status, state=EngineState.LOADING, checking=self._checking)
        return status

    @property
    def finding(self) -> Finding | None:
        """What restoring can do with the engine that runs, None before that is known."""
        return self._ready.finding if self._ready and self.is_ready() else None

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
        return await take_vitals(self.engine_pid, client) if client else None

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown to anybody: the running engine's key."""
        client = self._supervisor.client
        return (client.key,) if client is not None else ()

    def is_ready(self) -> bool:
        """Whether `ready` would answer at once."""
        return self.status.state is EngineState.READY

    @property
    def sees(self) -> bool:
        """Whether the engine that runs can be shown pictures."""
        return self._ready is not None and self._ready.sees and self.is_ready()

    async def check_vision(self, model: str | None) -> None:
        """Whether a model can be shown pictures. Raises CannotSee, or KvchatError where there is no model."""
        settings = self._settings()
        chosen = model or settings.model_path
        if chosen is not None:
            await asyncio.to_thread(find_projector, Path(chosen), extra_arguments.parse(settings.engine_arguments))

    def recovers(self) -> bool:
        """After a loss: whether an engine is there or coming up by itself."""
        return self.status.state in (EngineState.STARTING, EngineState.LOADING, EngineState.READY)

    async def start(self, *, sees: bool = False, tokens: int = 0) -> None:
        """Choose an engine and start it, unless an engine runs. What goes wrong ends up in the status."""
        async with self._starting:
            if self.status.state not in (EngineState.STOPPED, EngineState.RESTING, EngineState.FAILED):
                return
            self._set_preparing(EngineStatus(EngineState.STARTING))
            self.started_with = settings = self._settings()
            self._meant_to_see = sees
            try:
                needed = max(tokens, await self._needed())
                choice = await asyncio.to_thread(
                    self.memory.choose, settings, self._slot_path, sees=sees, needed=needed
                )
            except KvchatError as error:
                self._set_preparing(EngineStatus(EngineState.FAILED, failure=refusal.explain(error)))
                return
            except BaseException:
                self._set_preparing(EngineStatus(EngineState.FAILED, failure=refusal.BUG))
                raise
            self.memory.starts(choice)
            self.choice = choice
            self._preparing = None
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
            await self.memory.close()
        if self._meeting is not None:
            await asyncio.wait([self._meeting])  # it ends with its engine

    async def ready(self, *, sees: bool = False, tokens: int = 0) -> ReadyEngine:
        """Wait until an engine is ready, starting one if none runs. Raises KvchatError when there will be none.

        `sees`: one with a projector. It is loaded only when it is asked for, and then stays as long as the engine.
        `tokens`: one with room for so many, as far as it may grow.
        """
        if sees and not self.sees:
            await self.check_vision(None)
        while True:
            if self._preparing or self.status.state in (EngineState.STOPPED, EngineState.STOPPING, EngineState.FAILED):
                await self.start(sees=sees, tokens=tokens)
            if self._preparing and self._preparing.failure:
                raise refusal.raised(self._preparing.failure)
            await self._supervisor.ready()
            if known := self._known():
                if known.sees or not sees:
                    if known.context_size >= min(tokens, known.limit):
                        return known
                    sees = known.sees
                elif self._meant_to_see:
                    raise CannotSee("This model", "The file beside it is not for pictures.")
                await self._start(sees=sees, tokens=tokens)
                continue
            meeting = self._meeting if self._meeting and not self._meeting.done() else self._meet()
            await asyncio.shield(meeting)  # a caller that is cancelled does not end it for the others

    async def note_restore(self, *, hollow: bool) -> None:
        """A restore in a real turn held, or proved hollow: what restoring can do here may have to be thought over."""
        ready, choice = self._known(), self.choice
        finding = ready.finding.after_restore(hollow=hollow) if ready else None
        if ready and choice and finding and finding != ready.finding:
            self._ready = replace(ready, finding=finding)
            await self._findings.learn(choice.subject, finding, ready.finding)

    async def forget_finding(self) -> None:
        """Try restoring out again when the engine starts next."""
        if self.choice is not None:
            await self._findings.forget(self.choice.subject)

    async def explain_loss(self, error: EngineError) -> EngineError:
        """After EngineGone: the reason in the supervisor's words, once it has seen the process go."""
        if not await loss_noticed(self._supervisor, self._changed):
            return error
        failure = self.status.failure
        if failure:
            return refusal.raised(failure)
        stopped = self.status.state in (EngineState.STOPPED, EngineState.STOPPING, EngineState.RESTING)
        return refusal.stopped_on_purpose() if stopped else error

    async def _start(self, *, sees: bool, tokens: int) -> None:
        """Start an engine, in place of one that runs. Whoever waits for it may go away: it is finished all the same."""

        async def start() -> None:
            await self.stop()
            await self.start(sees=sees, tokens=tokens)

        self._starter = asyncio.create_task(start(), name="starting the engine")
        self._starter.add_done_callback(tell_bug)
        await asyncio.shield(self._starter)

    def _known(self) -> ReadyEngine | None:
        """The engine that runs, if it has been met."""
        return self._ready if self._ready and self._ready.generation == self._supervisor.generation else None

    def _meet(self) -> asyncio.Task[None]:
        """Meet the engine that has come up, in a task of its own: whoever waits for it may go away."""
        self._meeting = asyncio.create_task(self._get_to_know(), name="meeting the engine")
        self._meeting.add_done_callback(tell_bug)
        return self._meeting

    async def _get_to_know(self) -> None:
        """Ask an engine for its facts and find out what restoring can do with it.

        Afterwards it is ready, or it is gone. Raises EngineError where it is neither.
        """
        choice = self.choice
        assert choice is not None
        if await asyncio.to_thread(choice.model_changed):  # other weights than those it was fingerprinted by
            await self.stop()
            return
        engine, generation = await self._supervisor.ready(), self._supervisor.generation
        facts = await engine.facts()
        met = ReadyEngine(
            engine=engine.with_sight(choice.projector, facts.media_marker) if facts.sees else engine,
            generation=generation,
            slot_path=self._slot_path,
            fingerprint=choice.fingerprint,
            context_size=facts.context_size,
            kv_bytes_per_token=choice.kv_bytes_per_token,
            finding=Finding(choice.promised, proved=False),
            sees=facts.sees,
            most_context=choice.most.tokens if choice.context.tokens < choice.most.tokens else 0,
        )
        finding = await self._findings.known(choice.subject) or await self._find_out(met, choice)
        if finding is not None:
            self._ready = replace(met, finding=finding)
            self._told()

    async def _find_out(self, met: ReadyEngine, choice: EngineChoice) -> Finding | None:
        """Try restoring out. None if the engine died over it: then restoring is not for this build."""
        self._checking = True
        self._told()
        try:
            finding = await self_test(met, choice.facts.sliding_window)
        except EngineGone as loss:
            reason = await self.explain_loss(loss)
            if self._supervisor.status.state in (EngineState.READY, EngineState.STOPPING, EngineState.STOPPED):
                raise reason from loss  # it is silent, or was stopped on purpose: that says nothing
            died = Finding(Strategy.NONE, proved=True, reason="the engine died when it was tried out")
            await self._findings.learn(choice.subject, died)
            return None
        finally:
            self._checking = False
        await self._findings.learn(choice.subject, finding)
        return finding

    def _step_down(self) -> LaunchPlan | None:
        """After a load that ran out of memory: the next smaller choice's plan, None at the floor."""
        smaller = self.memory.ran_out(self.choice) if self.choice else None
        if smaller is None:
            return None
        self.choice = smaller
        return smaller.plan

    def _supervisor_changed(self, status: EngineStatus) -> None:
        if status.state is EngineState.READY and self.choice:
            self.memory.loaded(self.choice, self._supervisor.log.since_start)
            self._meet()
        self._told()

    def _set_preparing(self, status: EngineStatus | None) -> None:
        self._preparing = status
        self._told()

    def _told(self) -> None:
        self._changed.set()
        self._publish(self.status)
