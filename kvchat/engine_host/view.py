"""What can be said of the engine, and of the context size and memory it has: for the screen, and changing nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from kvchat.engine.running.log import EngineLog
from kvchat.engine.speaking.connection import EngineState, EngineStatus
from kvchat.engine.speaking.vitals import Vitals
from kvchat.engine_host.capacity import Capacity, ModelJudge, look_at_capacity, model_judge
from kvchat.engine_host.switching import SwitchingHost
from kvchat.library.memory.bar import MemoryBar, given_back
from kvchat.library.memory.context_size import ContextChoice
from kvchat.library.memory.proposals import Proposal
from kvchat.settings import Settings, differ

# These need another engine process.
RESTART_SETTINGS = (
    "model_path",
    "engine_path",
    "engine_url",
    "engine_arguments",
    "rpc_workers",
    "context_size",
    "kv_type",
)


class EngineView:
    """The engine that runs, or ran last, as the window shows it."""

    def __init__(self, settings: Callable[[], Settings], host: SwitchingHost, log: EngineLog) -> None:
        self._settings, self._host, self._log = settings, host, log

    @property
    def status(self) -> EngineStatus:
        """What the engine is doing."""
        return self._host.status

    @property
    def location(self) -> str:
        """Where the engine that runs, or ran last, is; empty before one was chosen."""
        return self._host.location

    @property
    def log_lines(self) -> list[str]:
        """The engine's own output, newest last, bounded."""
        return list(self._log.lines)

    async def vitals(self) -> Vitals | None:
        """How the engine is doing at this moment; None without a ready one."""
        return await self._host.current.vitals()

    @property
    def restart_pending(self) -> bool:
        """Whether the engine that runs (or failed) was started with other settings than those in force."""
        started = self._host.current.started_with
        if started is None or self.status.state in (EngineState.STOPPED, EngineState.RESTING):
            return False
        return differ(started, self._settings(), RESTART_SETTINGS)

    @property
    def restoring(self) -> str:
        """What restoring can do with the engine and the model that run, in words; empty before that is known."""
        finding = self._host.current.finding
        return finding.words if finding else ""

    @property
    def may_retest(self) -> bool:
        """Whether restoring was found not to work, and may be tried out again."""
        finding = self._host.current.finding
        return finding is not None and not finding.strategy.saves

    @property
    def context_size(self) -> int | None:
        """How many tokens a chat may have, None before the engine is ready. Perhaps not all of it is laid out yet."""
        if self.status.state is not EngineState.READY:
            return None
        choice = self._host.choice
        if choice is not None and choice.context.tokens < choice.most.tokens:
            return choice.most.tokens
        return self._host.current.context_size or (choice.context.tokens if choice else None)

    @property
    def context_reason(self) -> str:
        """Why that context size, in words; empty before an engine was chosen."""
        return self._host.choice.context.reason if self._host.choice else ""

    @property
    def context_warning(self) -> str:
        """What is unwise about the user's own context size, in words; empty where nothing is."""
        return self._host.choice.context.warning if self._host.choice else ""

    @property
    def memory_bars(self) -> tuple[MemoryBar, ...]:
        """What the model takes of each memory: measured once the engine is ready, estimated while it loads."""
        return self._host.memory_bars

    @property
    def memory_proposals(self) -> tuple[Proposal, ...]:
        """What would make the model fit better, each with its price; empty before an engine was chosen."""
        choice, started = self._host.choice, self._host.current.started_with
        return choice.proposals(started.context_size) if choice and started else ()

    async def capacity(self) -> Capacity:
        """The memory a model could use, what the running one would give back included.

        Asks the engine for its devices, which takes a moment.
        """
        memory = self._host.managed.memory
        capacity = await asyncio.to_thread(lambda: look_at_capacity(self._settings(), memory.staged()))
        if self._host.choice is None or self.status.state is not EngineState.READY:
            return capacity
        return replace(capacity, memory=given_back(capacity.memory, self._host.memory_bars))

    async def model_judge(self) -> ModelJudge:
        """Who says whether a model fits here."""
        return model_judge(self._settings(), await self.capacity(), self._host.managed.memory.book)

    async def larger_context(self) -> ContextChoice | None:
        """The next larger context size that the model was trained for and that fits; None where there is none.

        Asks the engine for its devices, which takes a moment. A server of the user's is not ours to change.
        """
        choice, now = self._host.choice, self.context_size
        if choice is None or now is None:
            return None
        return choice.larger(now, (await self.capacity()).memory, self._host.managed.memory.learned)
