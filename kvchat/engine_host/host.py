"""The engine host with its status for the screen, and the timer that stops an idle engine."""

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvchat.chat.service import ChatService
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.vitals import Vitals, collect_vitals
from kvchat.engine_host.choice import Capacity, EngineChoice, ModelJudge, choose_engine, query_capacity
from kvchat.engine_host.lifecycle import EngineLifecycle
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.library.gguf.kv_cache import kv_bytes
from kvchat.library.memory.context_size import ContextChoice
from kvchat.library.memory.demand import MemoryBar, with_freed_memory
from kvchat.session.restore_cost import BreakEven, RestoreCost
from kvchat.settings import any_changed
from kvchat.text.language import join_sentences

CHECK_INTERVAL_S = 10.0  # interval of IdleStop's checks
VERIFY_AFTER_IDLE_S = 60.0  # the user is unlikely to return at once

# These need an engine restart.
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


class SwitchingHost(EngineLifecycle):
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
        return None if self.is_external else self.managed.choice

    @property
    def memory_bars(self) -> tuple[MemoryBar, ...]:
        """The model's share of each memory, measured once it is ready; empty for the user's server."""
        return () if self.is_external else self.managed.bars

    @property
    def location(self) -> str:
        if self.is_external:
            return self._settings().engine_url or ""
        return str(self.managed.choice.location) if self.managed.choice else ""

    async def fingerprint_and_limit(self, model: str | None = None) -> tuple[Fingerprint, int] | None:
        """Return the fingerprint and maximum context (tokens) of the current or next engine, or for `model` (path)."""
        known = self.known
        if known is not None and not self.runs_other_model(model):
            return known.fingerprint, known.limit
        choice, settings = self.choice, self._settings()
        if model is not None:
            settings = replace(settings, model_path=model)
        try:
            if settings.engine_url or not settings.model_path:
                return None
            if choice is None or self.restart_pending or choice.plan.model != Path(settings.model_path):
                choice = await asyncio.to_thread(choose_engine, settings, Path())
        except KvchatError:
            return None
        return choice.fingerprint, choice.max_context.tokens

    def break_even(self, cost: RestoreCost) -> BreakEven | None:
        """Return the token count above which restoring pays; None until both have been measured."""
        choice, context_size = self.choice, self.context_size
        if choice is None or context_size is None:
            return None
        kv, plan = choice.facts.kv, choice.plan
        return cost.break_even(lambda tokens: kv_bytes(kv, tokens, plan.kv_type, plan.kv_type), context_size)

    @property
    def log_lines(self) -> list[str]:
        return list(self.log.lines)

    @property
    def restart_pending(self) -> bool:
        """True if the running (or failed) engine was started with outdated settings."""
        started = self._start_settings
        if started is None or self.status.state in (EngineState.STOPPED, EngineState.UNLOADED):
            return False
        return any_changed(started, self._settings(), RESTART_SETTINGS)

    @property
    def restoring(self) -> str:
        return self.finding.description if self.finding else ""

    @property
    def may_retest(self) -> bool:
        return self.finding is not None and not self.finding.strategy.saves

    @property
    def context_size(self) -> int | None:
        """Tokens a chat may have; None before the engine is ready. May not be fully allocated yet."""
        if self.status.state is not EngineState.READY:
            return None
        choice = self.choice
        if choice is not None and choice.context.tokens < choice.max_context.tokens:
            return choice.max_context.tokens
        return self._usable_engine.context_size if self._usable_engine else None

    @property
    def context_reason(self) -> str:
        context = self.choice.context if self.choice else None
        return join_sentences(context.reason, context.offload_note) if context else ""

    @property
    def context_warning(self) -> str:
        return self.choice.context.warning if self.choice else ""

    async def capacity(self) -> Capacity:
        """Return the memory available to a model, including what the running one would free. Queries the engine."""
        staged = self.managed.staged
        capacity = await asyncio.to_thread(lambda: query_capacity(self._settings(), staged()))
        if self.choice is None or self.status.state is not EngineState.READY:
            return capacity
        return replace(capacity, memory=with_freed_memory(capacity.memory, self.memory_bars))

    async def model_judge(self) -> ModelJudge:
        return ModelJudge(self._settings(), await self.capacity(), self.managed.limits)

    async def larger_context(self) -> ContextChoice | None:
        """Return the next larger context size that fits and that the model was trained for. Queries the engine."""
        choice, now = self.choice, self.context_size
        if choice is None or now is None:
            return None
        return choice.larger_context(now, (await self.capacity()).memory, self.managed.limit)


@dataclass
class IdleStop:
    """Stops a ready engine after some idle minutes. The next message starts it again and restores its chat."""

    minutes: Callable[[], int | None]  # current setting; None: never
    chat: ChatService
    host: SwitchingHost
    check_interval_s: float = CHECK_INTERVAL_S
    others_idle_s: Callable[[], float] = lambda: math.inf  # of other programs
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while not self._ended.is_set():
            if self._is_due():
                await self.chat.save_and_stop(self._stop)
            elif min(self.chat.idle_s, self.others_idle_s()) >= VERIFY_AFTER_IDLE_S:
                await self.chat.memory_verifier.verify_when_idle()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.check_interval_s):
                    await self._ended.wait()

    def end(self) -> None:
        self._ended.set()

    async def _stop(self) -> bool:
        is_due = self._is_due()  # a message may have arrived
        if is_due:
            await self.host.rest()
        return is_due

    def _is_due(self) -> bool:
        minutes, idle_s = self.minutes(), min(self.chat.idle_s, self.others_idle_s())
        is_own = not self.host.is_external and self.host.is_ready()
        return minutes is not None and is_own and idle_s >= 60 * minutes
