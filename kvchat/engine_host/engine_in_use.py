"""The engine in use, and what is known of it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvchat.engine.api.connection import DOWN_STATES, EngineState, EngineStatus
from kvchat.engine.api.vitals import Vitals, collect_vitals
from kvchat.engine.process.log import EngineLog
from kvchat.engine_host.choice import Capacity, EngineChoice, ModelJudge, choose_engine
from kvchat.engine_host.engines import ExternalEngine, ManagedEngine
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.library.memory.context_size import ContextChoice
from kvchat.library.memory.demand import MemoryUse
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_cost import BreakEven, RestoreCost
from kvchat.session.restore_support import RestoreFinding
from kvchat.settings import Settings, any_changed
from kvchat.text.language import _, join_parts, join_sentences

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


class EngineInUse:
    """kvchat's own engine or the user's server, whichever is in use, as the rest of kvchat sees it."""

    def __init__(
        self, settings: Callable[[], Settings], log: EngineLog, managed: ManagedEngine, external: ExternalEngine
    ) -> None:
        self._settings, self.log, self.managed, self.external = settings, log, managed, external
        self.current: ManagedEngine | ExternalEngine = external if settings().engine_url else managed
        self._start_settings: Settings | None = None  # settings with which the engine was started
        self._ready: ReadyEngine | None = None  # result of the last inspection
        self._is_testing = False

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

    def runs_other_model(self, model: str | None) -> bool:
        if self.is_external:
            return self._ready is not None and model in self._ready.other_models
        model = own_model(model)
        return model is not None and self._running_model not in (None, model)

    @property
    def _running_model(self) -> str | None:
        started = self._start_settings
        return None if self.is_external or started is None or self.status.state in DOWN_STATES else started.model_path

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
        settings = replace(settings, model_path=own_model(model) or settings.model_path)
        try:
            if settings.engine_url or not settings.model_path:
                return None
            if choice is None or self.restart_pending or choice.plan.model != Path(settings.model_path):
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


def own_model(model: str | None) -> str | None:
    """Return a chat's model, or None if it is the name of a paired computer's model, which is not a path."""
    return model if model is not None and set(model) & set("/\\") else None
