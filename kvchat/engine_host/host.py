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
from kvchat.engine.discovery.arguments import parse_arguments
from kvchat.engine.process.log import EngineLog
from kvchat.engine.process.supervisor import EngineSupervisor
from kvchat.engine_host.choice import (
    ModelMissing,
    NoModel,
    find_projector,
    start_failure,
)
from kvchat.engine_host.engine_in_use import EngineInUse, own_model
from kvchat.engine_host.engines import ExternalEngine, ManagedEngine, server_key
from kvchat.engine_host.paired_computer import PairedComputerStore
from kvchat.errors import KvchatError
from kvchat.kvstore.store import BlockStore
from kvchat.library.memory.demand import LoadLimits
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_support import FindingKey, FindingStore, RestoreFinding, Strategy
from kvchat.session.self_test import self_test
from kvchat.settings import Settings
from kvchat.system.paths import Paths
from kvchat.text.language import _
from kvchat.text.reasons import Reason, ReasonCode


class SwitchingEngineHost(EngineInUse):
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
        generations, folder = itertools.count(1), store.staging.slot_folder()
        supervisor, limits = EngineSupervisor(log=log, generations=generations), LoadLimits(paths.load_limits)
        managed = ManagedEngine(folder, supervisor, limits, store, notify, expected_tokens)
        external = ExternalEngine(folder, generations, server_key(paths), PairedComputerStore(paths))
        super().__init__(settings, log, managed, external)
        self._choose_model, self._findings = choose_model, findings
        self._publish, self._restore_newest = publish, restore_newest
        self._started_with_vision = False
        self._finding_key: FindingKey | None = None  # key of this engine's restore finding
        self._inspection: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._is_closed = False
        self._lock = asyncio.Lock()
        for engine in (self.managed, self.external):
            engine.connection.subscribe(partial(self._connection_changed, engine))

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
        elif path := own_model(model) or settings.model_path:
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
            model = own_model(model)
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
            # It goes on if the caller is cancelled, who does not wait: stopping an engine may take seconds.
            restart = self._restart(needs_vision=needs_vision, tokens=tokens)
            self._restarting = asyncio.create_task(restart, name="restarting the engine")
            self._restarting.add_done_callback(_report_unexpected_error)
            await asyncio.shield(self._restarting)

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


def _report_unexpected_error(task: asyncio.Task[None]) -> None:
    """Report a task's exception as a bug, unless it is a KvchatError, which is shown to the user elsewhere."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, KvchatError):
        task.get_loop().call_exception_handler({"message": "Preparing the engine failed", "exception": error})
