"""The engine host: chooses, starts, inspects and stops kvchat's own engine or connects to the user's server."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.connection import DOWN_STATES, EngineState, EngineStatus
from kvchat.engine.api.errors import EngineFailure, EngineGone, FailureKind
from kvchat.engine.api.vitals import Vitals, collect_vitals
from kvchat.engine.discovery.arguments import parse_arguments
from kvchat.engine.process.log import EngineLog
from kvchat.engine.process.supervisor import EngineSupervisor
from kvchat.engine_host.choice import (
    Capacity,
    EngineChoice,
    ModelJudge,
    ModelMissing,
    NoModel,
    choose_engine,
    find_projector,
    start_failure,
)
from kvchat.engine_host.engines import ExternalEngine, ManagedEngine, server_key
from kvchat.engine_host.paired_computer import PairedComputerStore
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.kvstore.store import BlockStore
from kvchat.library.memory.context_size import ContextChoice
from kvchat.library.memory.demand import LoadLimits, MemoryUse
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_cost import BreakEven, RestoreCost
from kvchat.session.restore_support import FindingKey, FindingStore, RestoreFinding, Strategy
from kvchat.session.self_test import self_test
from kvchat.settings import Settings, any_changed
from kvchat.system.concurrency import shielded
from kvchat.system.paths import Paths
from kvchat.text.language import _, join_parts, join_sentences
from kvchat.text.reasons import Reason, ReasonCode

# Changing one of these takes effect when the engine restarts.
RESTART_SETTINGS = (
    "model_path",
    "engine_path",
    "engine_url",
    "engine_arguments",
    "rpc_workers",
    "context_size",
    "slots",
    "kv_type",
)


class SwitchingEngineHost:
    """Provides sessions with kvchat's own engine or the user's server. Use it on the event loop's thread only."""

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
        expected_tokens: Callable[[], Awaitable[int]],
        restore_newest: Callable[[ReadyEngine], Awaitable[None]],
    ) -> None:
        """Create the host; nothing starts yet.

        `choose_model` changes the model in the settings, and `publish` receives each new status. `notify` and
        `expected_tokens`: see `ManagedEngine`. `restore_newest` is awaited before a new engine is used.
        """
        self._settings, self._choose_model, self.log = settings, choose_model, log
        self._findings, self._publish, self._restore_newest = findings, publish, restore_newest
        generations, folder = itertools.count(1), store.staging.slot_folder()
        supervisor, limits = EngineSupervisor(log=log, generations=generations), LoadLimits(paths.load_limits)
        self.managed = ManagedEngine(folder, supervisor, limits, store, notify, expected_tokens)
        self.external = ExternalEngine(folder, generations, server_key(paths), PairedComputerStore(paths))
        self.current: ManagedEngine | ExternalEngine = self.external if settings().engine_url else self.managed
        self._start_settings: Settings | None = None  # settings with which the engine was started
        self._started_with_vision = False
        self._ready: ReadyEngine | None = None  # result of the last inspection
        self._finding_key: FindingKey | None = None  # key of this engine's restore finding
        self._inspection: asyncio.Task[None] | None = None
        self._is_testing = self._is_closed = False
        self._lock = asyncio.Lock()
        for engine in (self.managed, self.external):
            engine.connection.subscribe(partial(self._connection_changed, engine))

    @property
    def is_external(self) -> bool:
        return self.current is self.external

    @property
    def status(self) -> EngineStatus:
        """The engine's status, which is LOADING until the engine has been inspected."""
        status = self.current.connection.status
        if status.state is EngineState.READY and self.inspected_engine is None:
            return replace(status, state=EngineState.LOADING, is_testing=self._is_testing)
        return status

    @property
    def inspected_engine(self) -> ReadyEngine | None:
        """The running engine, or None if it has not been inspected yet."""
        ready = self._ready
        return ready if ready and ready.generation == self.current.connection.generation else None

    @property
    def _ready_engine(self) -> ReadyEngine | None:
        return self.inspected_engine if self.status.state is EngineState.READY else None

    @property
    def finding(self) -> RestoreFinding | None:
        return self._ready_engine.finding if self._ready_engine else None

    def is_ready(self, model: str | None = None, *, needs_vision: bool = False) -> bool:
        engine = self._ready_engine
        return engine is not None and (engine.has_vision or not needs_vision) and not self.runs_other_model(model)

    async def memory_server(self) -> LlamaServerClient | None:
        if not await self.external.is_paired(self._settings()):
            return None
        engine = self._ready_engine
        if engine is None or not engine.keeps_memory:
            raise EngineGone(_("The other computer is not available"), "", _("kvchat will try again."))
        return engine.engine

    async def has_pairing(self) -> bool:
        return await asyncio.to_thread(self.external.computers.has_pairing)

    async def wake_server(self) -> None:
        """Wake the paired computer if its hardware address is known. Raises KvchatError."""
        if self.external.paired_computer is not None:
            await asyncio.to_thread(self.external.paired_computer.wake)

    def can_recover(self) -> bool:
        return self.status.state in (EngineState.STARTING, EngineState.LOADING, EngineState.READY)

    async def check_vision(self, model: str | None = None) -> None:
        await self._switch_connection()
        settings = self._settings()
        if self.is_external:
            if self.is_ready() and not self.is_ready(needs_vision=True):
                raise self.current.vision_error()
        elif path := _own_model(model) or settings.model_path:
            await asyncio.to_thread(find_projector, Path(path), parse_arguments(settings.engine_arguments))

    async def start(self) -> None:
        await self._switch_connection()
        await self._start(needs_vision=False, tokens=0)

    async def stop(self) -> None:
        async with self._lock:
            await self.current.connection.stop()
        if self.is_external:
            await self._end_inspection()

    async def unload(self) -> None:
        """Stop kvchat's own engine until the next request; a user's server stays connected."""
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

    async def ready(self, model: str | None = None, *, needs_vision: bool = False, tokens: int = 0) -> ReadyEngine:
        """Return a ready engine as `EngineHost.ready` does. A loaded projector stays loaded until the engine stops."""
        await self._switch_connection()
        if not self.is_external:
            model = _own_model(model)
        needs_projector = needs_vision and not self.is_ready(needs_vision=True)
        if model is not None and not self.is_external and (needs_projector or self._running_model != model):
            if model != self._settings().model_path:
                if not await asyncio.to_thread(Path(model).exists):
                    raise ModelMissing(model)
                self._choose_model(model)
            if self.runs_other_model(model):
                await self.stop()
        if needs_vision and not self.is_ready(needs_vision=True):
            await self.check_vision()
        if self.runs_other_model(model) and (server := self._ready_engine) and model in server.other_models:
            await server.engine.load_model(model)
            self._ready = None
        while True:
            if self.status.state in (*DOWN_STATES, EngineState.STOPPING):
                await self._start(needs_vision=needs_vision, tokens=tokens)
            await self.current.connection.ready()
            if (engine := self.inspected_engine) is None:
                inspection = self._inspection
                if inspection is None or inspection.done():
                    inspection = self._start_inspection()
                await asyncio.shield(inspection)  # cancelling one caller must not end it for others
                continue
            if engine.has_vision or not needs_vision:
                if not engine.must_grow_for(tokens):
                    return engine
                needs_vision = engine.has_vision
            elif self.is_external or self._started_with_vision:
                raise self.current.vision_error()
            await shielded(self._restart(needs_vision=needs_vision, tokens=tokens))

    async def note_restore(self, *, was_used: bool) -> None:
        engine, key = self.inspected_engine, self._finding_key
        if engine is None or key is None:
            return
        finding = engine.finding.after_restore(was_used=was_used)
        if finding != engine.finding:
            self._ready = replace(engine, finding=finding)
            await self._findings.learn(key, finding, engine.finding)

    async def forget_finding(self) -> None:
        if self._finding_key is not None:
            await self._findings.forget(self._finding_key)

    def runs_other_model(self, model: str | None) -> bool:
        if self.is_external:
            return self._ready is not None and model in self._ready.other_models
        model = _own_model(model)
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

    async def _start(self, *, needs_vision: bool, tokens: int) -> None:
        async with self._lock:
            if self._is_closed or self.status.state not in DOWN_STATES:
                return
            connection = self.current.connection
            before = connection.status
            connection.publish(EngineStatus(EngineState.STARTING))
            self._start_settings = settings = self._settings()
            self._started_with_vision = needs_vision
            try:
                start = await self.current.prepare(settings, needs_vision=needs_vision, tokens=tokens)
                if not self._is_closed:  # `close` may have run
                    await start()
            except KvchatError as error:
                state = EngineState.STOPPED if isinstance(error, NoModel) else EngineState.FAILED
                connection.publish(EngineStatus(state, start_failure(error)))
            except asyncio.CancelledError:  # the user stopped the reply
                connection.publish(before)
                raise
            except BaseException:
                failure = EngineFailure(
                    FailureKind.EXITED,
                    _("The engine could not be started"),
                    _("An unexpected error occurred while kvchat prepared to start it."),
                    _("See the report for details. Try again, or choose another model or engine."),
                )
                connection.publish(EngineStatus(EngineState.FAILED, failure))
                raise

    async def _restart(self, *, needs_vision: bool, tokens: int) -> None:
        await self.stop()
        await self._start(needs_vision=needs_vision, tokens=tokens)

    def _start_inspection(self) -> asyncio.Task[None]:
        """Inspect the engine in a task of its own, so that cancelling a caller does not end the inspection."""
        self._inspection = asyncio.create_task(self._inspect(), name="inspecting the engine")
        self._inspection.add_done_callback(_report_unexpected_error)
        return self._inspection

    async def _end_inspection(self) -> None:
        if self._inspection is not None:
            if self.is_external:  # kvchat's own engine has stopped, which ends its inspection
                self._inspection.cancel()
            await asyncio.wait({self._inspection})

    async def _inspect(self) -> None:
        """Query the engine and, if not yet known, test whether it can restore KV caches. Raises EngineError."""
        engine = self.current
        inspected = await engine.inspect()
        if inspected is None:
            await self.stop()
            return
        ready, self._finding_key = inspected
        if key := self._finding_key:
            finding = await self._findings.find(key)
            if finding is None and ready.finding.reason is None:  # do not test in a slot that others use
                self._is_testing = True
                self._publish(self.status)
                try:
                    finding = await self_test(ready)
                    await self._findings.learn(key, finding)
                except EngineGone as loss:
                    reason = await loss.explain()
                    if engine is self.external or loss.lifetime is None or not loss.lifetime.crashed:
                        raise reason from loss  # this says nothing about restoring
                    died = RestoreFinding(Strategy.NONE, proved=True, reason=Reason(ReasonCode.DIED_OVER_TRIAL))
                    await self._findings.learn(key, died)
                    return
                finally:
                    self._is_testing = False
            ready = replace(ready, finding=finding or ready.finding)
        if engine is self.managed and not self.status.restart_attempt:  # this may have been what killed the last one
            await self._restore_newest(ready)
        self._ready = ready
        self._publish(self.status)

    def _connection_changed(self, engine: ManagedEngine | ExternalEngine, status: EngineStatus) -> None:
        if engine is self.current:
            if status.state is EngineState.READY:
                if engine is self.managed:
                    self.managed.read_measurements()
                self._start_inspection()
            self._publish(self.status)

    @property
    def secrets(self) -> tuple[str, ...]:
        client = self.current.connection.client
        return (client.key,) if client is not None and client.key else ()

    @property
    def engine_pid(self) -> int | None:
        return self.current.pid

    async def vitals(self) -> Vitals | None:
        client = self.current.connection.client
        return await collect_vitals(self.engine_pid, client) if client is not None else None

    @property
    def choice(self) -> EngineChoice | None:
        return self.current.choice

    @property
    def memory_uses(self) -> tuple[MemoryUse, ...]:
        """The model's use of each device's memory, estimated until the engine is ready; empty for a user's server."""
        return self.current.memory_uses

    @property
    def server_models(self) -> tuple[str, ...]:
        """Names of the models of the paired computer in use, the loaded one first."""
        engine = self._ready_engine
        return (engine.model_name, *engine.other_models) if engine and engine.keeps_memory else ()

    @property
    def computer(self) -> str:
        """Name of the paired computer in use, or ""."""
        return self.external.paired_computer.name if self.is_external and self.external.paired_computer else ""

    @property
    def location(self) -> str:
        if self.is_external:
            return join_parts(filter(None, (self.computer, self._settings().engine_url)))
        return str(self.managed.choice.location) if self.managed.choice else ""

    async def fingerprint_and_limit(self, model: str | None = None) -> tuple[Fingerprint, int] | None:
        """Return the engine's fingerprint and maximum context in tokens, or those it would have with another model."""
        engine = self.inspected_engine
        if engine is not None and not self.runs_other_model(model):
            return engine.fingerprint, engine.limit
        choice, settings = self.choice, self._settings()
        settings = replace(settings, model_path=_own_model(model) or settings.model_path)
        try:
            if settings.engine_url:
                return None
            if choice is None or self.restart_pending or str(choice.plan.model) != settings.model_path:
                choice = await asyncio.to_thread(choose_engine, settings, Path())
        except KvchatError:
            return None
        return choice.fingerprint, choice.max_context.tokens

    def break_even(self, cost: RestoreCost) -> BreakEven | None:
        """Return the prompt length above which restoring is faster than processing; None until both are measured."""
        choice, context_size = self.choice, self.context_size
        return cost.break_even(choice.kv_bytes, context_size) if choice and context_size else None

    @property
    def log_lines(self) -> list[str]:
        return list(self.log.lines)

    @property
    def restart_pending(self) -> bool:
        """True if the engine was started with settings that have changed since."""
        started = self._start_settings
        if started is None or self.status.state in (EngineState.STOPPED, EngineState.UNLOADED):
            return False
        return any_changed(started, self._settings(), RESTART_SETTINGS)

    @property
    def restore_description(self) -> str:
        text, arguments = self.finding.description if self.finding else "", self._settings().engine_arguments.split()
        if not text or self.is_external or not any("draft" in argument or argument == "-md" for argument in arguments):
            return text
        return join_sentences(
            text, _("The engine does not save the draft model’s state: replies may be slower after a restore.")
        )

    @property
    def can_retest(self) -> bool:
        return self.finding is not None and not self.finding.strategy.supports_saving

    @property
    def context_size(self) -> int | None:
        """The maximum length of a chat in tokens, which may exceed the allocated context; None until ready."""
        return self._ready_engine.limit if self._ready_engine else None

    @property
    def context_reason(self) -> str:
        context = self.choice.context if self.choice else None
        return join_sentences(context.reason, context.offload_note) if context else ""

    @property
    def context_warning(self) -> str:
        return self.choice.context.warning if self.choice else ""

    async def capacity(self) -> Capacity:
        """Query the engine for the memory available to a model if the running one were stopped."""
        return await self.managed.capacity(self._settings())

    async def model_judge(self) -> ModelJudge:
        return ModelJudge(self._settings(), await self.capacity(), self.managed.limits)

    async def larger_context(self) -> ContextChoice | None:
        """Query the engine for free memory; return the next context size that fits, or None."""
        choice, tokens = self.choice, self.context_size
        if choice is None or tokens is None:
            return None
        return choice.larger_context(tokens, (await self.capacity()).memory, self.managed.limit)


def _own_model(model: str | None) -> str | None:
    """Return a chat's model, or None if it is the name of a paired computer's model, which is not a path."""
    return model if model is not None and set(model) & set("/\\") else None


def _report_unexpected_error(task: asyncio.Task[None]) -> None:
    """Report a task's exception as a bug, unless it is a KvchatError, which is shown to the user elsewhere."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, KvchatError):
        task.get_loop().call_exception_handler({"message": "Inspecting the engine failed", "exception": error})
