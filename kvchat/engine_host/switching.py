"""Two hosts for one chat, kvchat's own engine and the user's server: which it is, and what can be said of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from kvchat.engine.running.log import EngineLog
from kvchat.engine.running.supervisor import EngineSupervisor
from kvchat.engine.speaking.connection import DOWN, EngineState, EngineStatus
from kvchat.engine.speaking.vitals import Vitals
from kvchat.engine_host.base import BaseHost
from kvchat.engine_host.choice import Capacity, EngineChoice, ModelJudge, ModelMissing, choose_engine, look_at_capacity
from kvchat.engine_host.external import ExternalHost, server_key
from kvchat.engine_host.managed import EngineMemory, ManagedHost
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.kvstore.store import SavePointStore
from kvchat.library.gguf.kv_cache import kv_bytes
from kvchat.library.memory.context_size import ContextChoice
from kvchat.library.memory.demand import MemoryBar, given_back
from kvchat.library.memory.limits import LoadLimits
from kvchat.library.memory.verdict import Proposal
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_cost import BreakEven, RestoreCost
from kvchat.session.restore_support import Findings
from kvchat.settings import Settings, differ
from kvchat.system.paths import Paths
from kvchat.words.language import sentences

# These need another engine process.
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


class SwitchingHost:
    """The `EngineHost` for sessions: managed or external, as the settings say, changed only while none runs.

    It also tells the screen of the engine that runs, or ran last.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        choose_model: Callable[[str], None],
        managed: ManagedHost,
        external: ExternalHost,
        publish: Callable[[EngineStatus], None],
        log: EngineLog,
    ) -> None:
        """`choose_model` puts another model into the settings; `publish` hears of the host in use alone."""
        self._settings, self._choose_model, self._log = settings, choose_model, log
        self.managed, self.external = managed, external
        self.current: BaseHost = external if settings().engine_url else managed
        managed.publish = lambda status: publish(status) if self.current is managed else None
        external.publish = lambda status: publish(status) if self.current is external else None

    @property
    def is_external(self) -> bool:
        return self.current is self.external

    @property
    def status(self) -> EngineStatus:
        return self.current.status

    @property
    def choice(self) -> EngineChoice | None:
        """The choice for the engine that runs, or ran last; None for a server of the user's."""
        return None if self.is_external else self.managed.choice

    @property
    def memory_bars(self) -> tuple[MemoryBar, ...]:
        """The model's share of each memory: measured once the engine is ready; empty for a server of the user's."""
        return () if self.is_external else self.managed.memory.bars

    @property
    def location(self) -> str:
        if self.is_external:
            return self._settings().engine_url or ""
        return str(self.managed.choice.location) if self.managed.choice else ""

    def is_ready(self, model: str | None = None, *, sees: bool = False) -> bool:
        fits = (model is None or not self._runs_another(model)) and (self.current.sees or not sees)
        return self.current.is_ready() and fits

    async def check_vision(self, model: str | None = None) -> None:
        await self._change_hosts()
        await self.current.check_vision(model)

    def recovers(self) -> bool:
        return self.current.recovers()

    def may_rest(self) -> bool:
        return self.current is self.managed and self.managed.is_ready()

    async def start(self) -> None:
        await self._change_hosts()
        await self.current.start()

    async def stop(self) -> None:
        await self.current.stop()

    async def rest(self) -> None:
        await self._change_hosts()
        if self.current is self.managed:
            await self.managed.rest()

    async def close(self) -> None:
        await self.external.stop()
        await self.managed.close()

    async def ready(self, model: str | None = None, *, sees: bool = False, tokens: int = 0) -> ReadyEngine:
        """See `EngineHost.ready`. A server of the user's has the model and the room it has."""
        await self._change_hosts()
        if model is not None and not self.is_external:
            await self._change_models(model, restarts=sees and not self.current.sees)
        return await self.current.ready(sees=sees, tokens=tokens)

    async def states_now(self, model: str | None = None) -> tuple[Fingerprint, int] | None:
        """Return the fingerprint and the longest context (tokens) of the engine that runs or would be started now.

        `model`: path of the one that is meant where another may run. None where it is not known.
        """
        known = self.current.known
        if known is not None and (model is None or not self._runs_another(model)):
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
        return choice.fingerprint, choice.most.tokens

    def break_even(self, cost: RestoreCost) -> BreakEven | None:
        """Return from how many tokens on restoring pays; None until the engine has read and restored."""
        choice, context_size = self.choice, self.context_size
        if choice is None or context_size is None:
            return None
        kv, plan = choice.facts.kv, choice.plan
        return cost.break_even(lambda tokens: kv_bytes(kv, tokens, plan.kv_type_k, plan.kv_type_v), context_size)

    async def note_restore(self, *, hollow: bool) -> None:
        await self.current.note_restore(hollow=hollow)

    @property
    def log_lines(self) -> list[str]:
        return list(self._log.lines)

    async def vitals(self) -> Vitals | None:
        return await self.current.vitals()

    @property
    def restart_pending(self) -> bool:
        """True if the engine that runs (or failed) was started with other settings than those in force."""
        started = self.current.started_with
        if started is None or self.status.state in (EngineState.STOPPED, EngineState.RESTING):
            return False
        return differ(started, self._settings(), RESTART_SETTINGS)

    @property
    def restoring(self) -> str:
        finding = self.current.finding
        return finding.words if finding else ""

    @property
    def may_retest(self) -> bool:
        finding = self.current.finding
        return finding is not None and not finding.strategy.saves

    @property
    def context_size(self) -> int | None:
        """The tokens a chat may have, None before the engine is ready. Perhaps not all of it is laid out yet."""
        if self.status.state is not EngineState.READY:
            return None
        choice = self.choice
        if choice is not None and choice.context.tokens < choice.most.tokens:
            return choice.most.tokens
        return self.current.context_size or (choice.context.tokens if choice else None)

    @property
    def context_reason(self) -> str:
        context = self.choice.context if self.choice else None
        return sentences(context.reason, context.beside) if context else ""

    @property
    def context_warning(self) -> str:
        return self.choice.context.warning if self.choice else ""

    @property
    def memory_proposals(self) -> tuple[Proposal, ...]:
        choice, started = self.choice, self.current.started_with
        return choice.proposals(started.context_size) if choice and started else ()

    async def capacity(self) -> Capacity:
        """Return the memory a model could use, what the running one would give back included.

        Asks the engine for its devices, which takes a moment.
        """
        staged = self.managed.memory.staged
        capacity = await asyncio.to_thread(lambda: look_at_capacity(self._settings(), staged()))
        if self.choice is None or self.status.state is not EngineState.READY:
            return capacity
        return replace(capacity, memory=given_back(capacity.memory, self.memory_bars))

    async def model_judge(self) -> ModelJudge:
        return ModelJudge(self._settings(), await self.capacity(), self.managed.memory.limits)

    async def larger_context(self) -> ContextChoice | None:
        """Return the next larger context size that the model was trained for and that fits; None where there is none.

        Asks the engine for its devices, which takes a moment. A server of the user's is not ours to change.
        """
        choice, now = self.choice, self.context_size
        if choice is None or now is None:
            return None
        return choice.larger(now, (await self.capacity()).memory, self.managed.memory.limit)

    async def _change_models(self, model: str, *, restarts: bool) -> None:
        """Make `model` the one in use; where it runs, the settings may name another. Raises ModelMissing.

        `restarts`: it will be started anew even if it runs.
        """
        if self._running_model == model and not restarts:
            return
        if model != self._settings().model_path:
            if not await asyncio.to_thread(Path(model).exists):
                raise ModelMissing(model)
            self._choose_model(model)
        if self._runs_another(model):
            await self.managed.stop()

    def _runs_another(self, model: str) -> bool:
        return self._running_model not in (None, model)

    @property
    def _running_model(self) -> str | None:
        started = self.managed.started_with
        if self.is_external or started is None or self.managed.status.state in DOWN:
            return None
        return started.model_path

    async def _change_hosts(self) -> None:
        wanted = self.external if self._settings().engine_url else self.managed
        if wanted is not self.current and self.current.status.state in DOWN:
            await self.current.stop()
            self.current = wanted


def make_hosts(
    *,
    paths: Paths,
    settings: Callable[[], Settings],
    store: SavePointStore,
    findings: Findings,
    log: EngineLog,
    take_model: Callable[[str], None],
    changed: Callable[[EngineStatus], None],
    notify: Callable[[str, str], None],
    needed: Callable[[], Awaitable[int]],
) -> SwitchingHost:
    """Make both hosts, and what goes from one to the other.

    `take_model` puts another model into the settings, `changed` hears of the host in use, `needed` is how many tokens
    the chats have that are likely to be answered.
    """
    generations, folder = itertools.count(1), store.staging_folder()
    supervisor = EngineSupervisor(log=log, generations=generations)
    memory = EngineMemory(LoadLimits(paths.load_limits), notify, store)
    managed = ManagedHost(settings, folder, supervisor, findings, memory, needed)
    external = ExternalHost(settings, folder, generations, findings, server_key(paths))
    return SwitchingHost(settings, take_model, managed, external, changed, log)
