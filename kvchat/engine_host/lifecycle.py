"""Chooses, starts, inspects and stops engines for sessions: kvchat's own or the user's server."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from kvchat.engine.api.connection import DOWN_STATES, EngineState, EngineStatus
from kvchat.engine.api.errors import EngineFailed, EngineFailure, EngineGone, EngineUnusable, FailureKind
from kvchat.engine.discovery.arguments import parse_arguments
from kvchat.engine.process.log import EngineLog
from kvchat.engine.process.supervisor import EngineSupervisor
from kvchat.engine_host.choice import ModelMissing, NoModel, find_projector
from kvchat.engine_host.engines import ExternalEngine, ManagedEngine, server_key
from kvchat.errors import KvchatError
from kvchat.kvstore.store import BlockStore
from kvchat.library.gguf.parser import ModelFileMissing
from kvchat.library.memory.demand import LoadLimits
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_support import FindingKey, FindingStore, RestoreFinding, Strategy
from kvchat.session.self_test import self_test
from kvchat.settings import Settings
from kvchat.system.paths import Paths
from kvchat.text.language import _
from kvchat.text.reasons import Reason, ReasonCode


class EngineLifecycle:
    """The sessions' `EngineHost`: kvchat's own engine or the user's server. Event-loop thread only."""

    def __init__(
        self,
        *,
        paths: Paths,
        settings: Callable[[], Settings],
        store: BlockStore,
        findings: FindingStore,
        log: EngineLog,
        choose_model: Callable[[str], None],
        publish: Callable[[EngineStatus], None],
        notify: Callable[[str, str], None],
        needed: Callable[[], Awaitable[int]],
    ) -> None:
        """`choose_model` sets another model in the settings; `publish` gets each new status.

        `needed` returns the tokens of the chats likely to be continued.
        """
        self._settings, self._choose_model, self.log = settings, choose_model, log
        self._findings, self._publish = findings, publish
        generations, folder = itertools.count(1), store.staging.slot_folder()
        supervisor, limits = EngineSupervisor(log=log, generations=generations), LoadLimits(paths.load_limits)
        self.managed = ManagedEngine(folder, supervisor, limits, store, notify, needed)
        self.external = ExternalEngine(folder, generations, server_key(paths))
        self.current: ManagedEngine | ExternalEngine = self.external if settings().engine_url else self.managed
        self._start_settings: Settings | None = None  # settings at its start
        self._started_with_vision = False  # it was started for pictures
        self._ready: ReadyEngine | None = None
        self._subject: FindingKey | None = None  # of the restore findings
        self._inspection: asyncio.Task[None] | None = None  # of a newly started engine
        self._starter: asyncio.Task[None] | None = None
        self._is_testing = self._is_closed = False
        self._lock = asyncio.Lock()
        for engine in (self.managed, self.external):
            engine.connection.subscribe(partial(self._connection_changed, engine))

    @property
    def is_external(self) -> bool:
        return self.current is self.external

    @property
    def status(self) -> EngineStatus:
        """The engine's status; LOADING until a started engine has also been inspected."""
        status = self.current.connection.status
        if status.state is EngineState.READY and self.known is None:
            return replace(status, state=EngineState.LOADING, is_testing=self._is_testing)
        return status

    @property
    def known(self) -> ReadyEngine | None:
        ready = self._ready
        return ready if ready and ready.generation == self.current.connection.generation else None

    @property
    def _usable_engine(self) -> ReadyEngine | None:
        return self.known if self.status.state is EngineState.READY else None

    @property
    def finding(self) -> RestoreFinding | None:
        return self._usable_engine.finding if self._usable_engine else None

    def is_ready(self, model: str | None = None, *, vision: bool = False) -> bool:
        engine = self._usable_engine
        return engine is not None and (engine.vision or not vision) and not self.runs_other_model(model)

    def can_recover(self) -> bool:
        return self.status.state in (EngineState.STARTING, EngineState.LOADING, EngineState.READY)

    async def check_vision(self, model: str | None = None) -> None:
        """Raise VisionUnsupported if the model does not support images, KvchatError if it is missing."""
        await self._switch_connection()
        settings = self._settings()
        if self.is_external:
            if self.is_ready() and not self.is_ready(vision=True):
                raise self.current.vision_error()
        elif path := model or settings.model_path:
            await asyncio.to_thread(find_projector, Path(path), parse_arguments(settings.engine_arguments))

    async def start(self) -> None:
        await self._switch_connection()
        await self._start(vision=False, tokens=0)

    async def stop(self) -> None:
        async with self._lock:
            await self.current.connection.stop()
        if self.is_external:
            await self._end_inspection()

    async def rest(self) -> None:
        """Stop kvchat's own engine, or do not start it, until a request needs one."""
        await self._switch_connection()
        if not self.is_external:
            async with self._lock:
                await self.managed.connection.stop(EngineState.UNLOADED)

    async def close(self) -> None:
        self._is_closed = True
        async with self._lock:
            await self.external.connection.stop()
            await self.managed.close()
        await self._end_inspection()

    async def ready(self, model: str | None = None, *, vision: bool = False, tokens: int = 0) -> ReadyEngine:
        """See `EngineHost.ready`. A projector is loaded on request and stays; a user's server stays as it is."""
        await self._switch_connection()
        if model is not None and not self.is_external:
            await self._switch_model(model, restarts=vision and not self.is_ready(vision=True))
        if vision and not self.is_ready(vision=True):
            await self.check_vision()
        while True:
            if self.status.state in (*DOWN_STATES, EngineState.STOPPING):
                await self._start(vision=vision, tokens=tokens)
            await self.current.connection.ready()
            if not (known := self.known):
                # Cancelling one caller must not end the inspection for others.
                running = self._inspection is not None and not self._inspection.done()
                await asyncio.shield(self._inspection if self._inspection and running else self._start_inspection())
                continue
            if known.vision or not vision:
                if known.context_size >= min(tokens, known.limit):
                    return known
                vision = known.vision
            elif self.is_external or self._started_with_vision:
                raise self.current.vision_error()
            await self._restart(vision=vision, tokens=tokens)

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

    async def _switch_model(self, model: str, *, restarts: bool) -> None:
        """Switch to `model`. `restarts`: it will be restarted even if it runs. Raises ModelMissing."""
        if self._running_model == model and not restarts:
            return
        if model != self._settings().model_path:
            if not await asyncio.to_thread(Path(model).exists):
                raise ModelMissing(model)
            self._choose_model(model)
        if self.runs_other_model(model):
            await self.stop()

    def runs_other_model(self, model: str | None) -> bool:
        return model is not None and self._running_model not in (None, model)

    @property
    def _running_model(self) -> str | None:
        started = self._start_settings
        return None if self.is_external or started is None or self.status.state in DOWN_STATES else started.model_path

    async def _switch_connection(self) -> None:
        engine = self.external if self._settings().engine_url else self.managed
        if engine is not self.current and self.status.state in DOWN_STATES:
            await self.stop()
            self.current, self._start_settings = engine, None

    async def _start(self, *, vision: bool, tokens: int) -> None:
        async with self._lock:
            if self._is_closed or self.status.state not in DOWN_STATES:
                return
            connection = self.current.connection
            connection.publish(EngineStatus(EngineState.STARTING))
            self._start_settings = settings = self._settings()
            self._started_with_vision = vision
            try:
                start = await self.current.prepare(settings, vision=vision, tokens=tokens)
            except KvchatError as error:
                state = EngineState.STOPPED if isinstance(error, NoModel) else EngineState.FAILED
                connection.publish(EngineStatus(state, start_failure(error)))
                return
            except BaseException:
                failure = EngineFailure(
                    FailureKind.EXITED,
                    _("The engine could not be started"),
                    _("An unexpected error occurred while kvchat prepared to start it."),
                    _("See the report for details. Try again, or choose another model or engine."),
                )
                connection.publish(EngineStatus(EngineState.FAILED, failure))
                raise
            if not self._is_closed:  # `close` may have run
                await start()

    async def _restart(self, *, vision: bool, tokens: int) -> None:
        """Start an engine, replacing a running one. Completes even if the caller goes away."""

        async def start() -> None:
            await self.stop()
            await self._start(vision=vision, tokens=tokens)

        self._starter = asyncio.create_task(start(), name="starting the engine")
        self._starter.add_done_callback(report_unexpected_error)
        await asyncio.shield(self._starter)

    def _start_inspection(self) -> asyncio.Task[None]:
        """Inspect the started engine in its own task, because the caller may go away."""
        self._inspection = asyncio.create_task(self._run_inspection(), name="inspecting the engine")
        self._inspection.add_done_callback(report_unexpected_error)
        return self._inspection

    async def _end_inspection(self) -> None:
        if self._inspection is not None:
            if self.is_external:  # managed: ends with the engine
                self._inspection.cancel()
            await asyncio.wait({self._inspection})

    async def _run_inspection(self) -> None:
        """Inspect the engine until it is ready or gone. Raises EngineError if it is neither."""
        engine = self.current
        inspected = await engine.inspect()
        if inspected is None:
            await self.stop()
            return
        ready, self._subject = inspected
        if subject := self._subject:
            finding = await self._findings.known(subject)
            if finding is None and ready.finding.reason is None:  # do not test in a slot that others use
                self._is_testing = True
                self._publish(self.status)
                try:
                    finding = await self_test(ready)
                    await self._findings.learn(subject, finding)
                except EngineGone as loss:
                    reason = await loss.explain()
                    hung_or_stopped = loss.lifetime is None or loss.lifetime.failure is None
                    if engine is self.external or hung_or_stopped:  # no result of its self-test
                        raise reason from loss
                    died = RestoreFinding(Strategy.NONE, proved=True, reason=Reason(ReasonCode.DIED_OVER_TRIAL))
                    await self._findings.learn(subject, died)
                    return
                finally:
                    self._is_testing = False
            ready = replace(ready, finding=finding or ready.finding)
        self._ready = ready
        self._publish(self.status)

    def _connection_changed(self, engine: ManagedEngine | ExternalEngine, status: EngineStatus) -> None:
        if engine is self.current:
            if status.state is EngineState.READY:
                if engine is self.managed:
                    self.managed.loaded()
                self._start_inspection()
            self._publish(self.status)


def start_failure(error: KvchatError) -> EngineFailure:
    if isinstance(error, EngineFailed):
        return error.failure
    kind = FailureKind.NOT_FOUND if isinstance(error, EngineUnusable) else FailureKind.BAD_MODEL
    if isinstance(error, ModelFileMissing):
        kind = FailureKind.MODEL_MISSING
    return EngineFailure(kind, error.title, error.detail, error.advice)


def report_unexpected_error(task: asyncio.Task[None]) -> None:
    """Report a finished task's exception, unless a KvchatError: those go to whoever asks for the engine."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, KvchatError):
        task.get_loop().call_exception_handler({"message": "Inspecting the engine failed", "exception": error})
