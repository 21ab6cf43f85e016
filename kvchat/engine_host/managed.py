"""kvchat's own engine: choice, start by the supervisor, inspection when ready; and its memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kvchat.engine.finding import arguments
from kvchat.engine.running.log import Allocations, Purpose, read_allocations
from kvchat.engine.running.plan import LaunchPlan
from kvchat.engine.running.supervisor import EngineSupervisor
from kvchat.engine_host.choice import CannotSee, EngineChoice, choose_engine, find_projector
from kvchat.kvstore.memory_files import NOTHING_STAGED, Staged
from kvchat.kvstore.savepoint import StoreRefused
from kvchat.kvstore.store import SavePointStore
from kvchat.library.memory.demand import COMPUTER, MemoryBar
from kvchat.library.memory.limits import LoadLimit, LoadLimits
from kvchat.library.model_files import shown_name
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_support import Finding, Subject
from kvchat.settings import Settings
from kvchat.words.language import _
from kvchat.words.wording import day


class ManagedEngine:
    def __init__(
        self, slot_path: Path, supervisor: EngineSupervisor, memory: EngineMemory, needed: Callable[[], Awaitable[int]]
    ) -> None:
        """`needed` returns the tokens of the chats likely to be continued, including the replies."""
        self.connection, self.memory = supervisor, memory
        self.choice: EngineChoice | None = None  # of the running or last engine
        self._slot_path, self._needed = slot_path, needed

    @property
    def pid(self) -> int | None:
        return self.connection.pid

    async def check_vision(self, settings: Settings, model: str | None) -> None:
        """Raise CannotSee if the model does not support images, KvchatError if it is missing."""
        chosen = model or settings.model_path
        if chosen is not None:
            await asyncio.to_thread(find_projector, Path(chosen), arguments.parse(settings.engine_arguments))

    def cannot_see(self) -> CannotSee:
        return CannotSee(_("This model"), _("Its vision file (mmproj) does not support images."))

    async def prepare(self, settings: Settings, *, sees: bool, tokens: int) -> Callable[[], Awaitable[None]]:
        """Choose an engine with room for `tokens`, if possible; return the function that starts it."""
        needed = max(tokens, await self._needed())
        choice = await asyncio.to_thread(self.memory.choose, settings, self._slot_path, sees=sees, needed=needed)

        async def start() -> None:
            self.memory.starts(choice)
            self.choice = choice
            await self.connection.start(choice.location, choice.plan, self._step_down)

        return start

    def loaded(self) -> None:
        if self.choice:
            self.choice = self.memory.loaded(self.choice, self.connection.log.since_start)

    async def inspect(self) -> tuple[ReadyEngine, Subject] | None:
        """Ask a ready engine for its facts; None if the weights changed after it was fingerprinted."""
        choice = self.choice
        assert choice is not None
        if await asyncio.to_thread(choice.model_changed):
            return None
        engine, generation = await self.connection.ready(), self.connection.generation
        facts = await engine.facts()
        ready = ReadyEngine(
            engine=engine.with_projector(choice.projector, facts.media_marker) if facts.sees else engine,
            generation=generation,
            slot_path=self._slot_path,
            fingerprint=choice.fingerprint,
            context_size=facts.context_size,
            kv_bytes_per_token=choice.kv_bytes_per_token,
            finding=Finding(choice.promised, proved=False),
            window=choice.facts.sliding_window or 0,
            sees=facts.sees,
            slots=tuple(range(choice.plan.slots)),
            model_name=shown_name(choice.facts.path),
            most_context=choice.most.tokens if choice.context.tokens < choice.most.tokens else 0,
        )
        return ready, choice.subject

    def _step_down(self) -> LaunchPlan | None:
        smaller = self.memory.ran_out(self.choice) if self.choice else None
        if smaller is None:
            return None
        self.choice = smaller
        return smaller.plan


class EngineMemory:
    """Tracks planned and measured engine memory, and what to try when it runs out.

    Handles one load after another. Event loop thread only.
    """

    def __init__(self, limits: LoadLimits, notify: Callable[[str, str], None], store: SavePointStore) -> None:
        """`notify` takes a title and a detail. `store` keeps files in memory and makes room for a model."""
        self.limits = limits
        self.bars: tuple[MemoryBar, ...] = ()  # estimates while a model loads, measured when ready
        self.limit: LoadLimit | None = None  # for the last choice
        self._notify, self._store = notify, store
        self._smaller: Iterator[EngineChoice] = iter(())
        self._ran_out: EngineChoice | None = None  # the first that did not fit
        self._learning: asyncio.Task[None] | None = None

    def staged(self) -> Staged:
        """Return the memory the store uses. Reads its index: call it off the event loop."""
        try:
            return self._store.staged()
        except StoreRefused:
            return NOTHING_STAGED

    def choose(self, settings: Settings, slot_path: Path, *, sees: bool, needed: int) -> EngineChoice:
        """Choose an engine and free store memory for it. Raises KvchatError."""
        choice = choose_engine(settings, slot_path, self.limits, sees=sees, needed=needed, staged=self.staged())
        with contextlib.suppress(StoreRefused):
            self._store.keep_in_memory(choice.context.bars[-1].staging)
        return choice

    def starts(self, choice: EngineChoice) -> None:
        self.limit = choice.limit
        self.bars, self._smaller, self._ran_out = choice.context.bars, iter(choice.smaller()), None

    def ran_out(self, choice: EngineChoice) -> EngineChoice | None:
        smaller = next(self._smaller, None)
        if smaller is not None:
            self.bars, self._ran_out = smaller.context.bars, self._ran_out or choice
        return smaller

    def loaded(self, choice: EngineChoice, log: Sequence[str]) -> EngineChoice:
        """Return the choice updated from the engine's log; notify the user if it differs from the plan."""
        ran_out, self._ran_out = self._ran_out, None
        if (actual := read_allocations(log)) is not None:
            self.bars = measured_bars(choice.context.bars, actual)
            choice = replace(choice, context=choice.context.placed(actual.placement, choice.memory.beside))
        self._learning = asyncio.create_task(self._learn(choice, ran_out), name="memory limits")
        return choice

    async def _learn(self, choice: EngineChoice, ran_out: EngineChoice | None) -> None:
        context = choice.context
        self.limit = limit = await asyncio.to_thread(
            self.limits.learn, choice.circumstances, context.tokens, ran_out=ran_out is not None
        )
        if ran_out is None:
            return
        again = ""
        if limit is not None and not ran_out.context.by_user:
            again = " " + _("kvchat will try a larger context again on {until}.", until=day(limit.until))
        self._notify(
            _("The model ran out of memory while loading"),
            _("The model now uses less memory. {reason}{again}", reason=context.reason, again=again),
        )

    async def close(self) -> None:
        if self._learning:
            await self._learning


def measured_bars(estimated: tuple[MemoryBar, ...], actual: Allocations) -> tuple[MemoryBar, ...]:
    measured = []
    for bar in estimated:
        weights, kv, compute = (
            actual.on_host(purpose) if bar.place == COMPUTER else actual.on(bar.place, purpose)
            for purpose in (Purpose.WEIGHTS, Purpose.KV, Purpose.COMPUTE)
        )
        if bar.place == COMPUTER and len(estimated) > 1:
            # With a GPU it reports the whole mapped file, but the GPU's layers need not stay in memory.
            weights = min(weights, bar.weights)
        measured.append(replace(bar, weights=weights, kv=kv, compute=compute, measured=True))
    return tuple(measured)
