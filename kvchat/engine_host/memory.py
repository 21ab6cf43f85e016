"""The engine's memory: what was planned, what it turned out to be, what to try when it runs out, what that teaches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kvchat.engine.running.allocations import read_allocations
from kvchat.engine_host.choice import EngineChoice, choose_engine
from kvchat.kvstore.files.memory_files import NOTHING_STAGED, Staged
from kvchat.kvstore.savepoint import StoreRefused
from kvchat.kvstore.store import SavePointStore
from kvchat.library.memory.bar import MemoryBar
from kvchat.library.memory.corrections import NOTHING_LEARNED, CorrectionBook
from kvchat.library.memory.measured import learn, learn_share, measured_bars
from kvchat.settings import Settings
from kvchat.words.wording import day


class EngineMemory:
    """Follows one load after the other. Belongs to the thread of the asyncio loop."""

    def __init__(self, book: CorrectionBook, notify: Callable[[str, str], None], store: SavePointStore) -> None:
        """`book`: what earlier loads taught. `notify` tells the user something, a title and a detail.

        `store` has files in memory too, and gives way to a model.
        """
        self.book = book
        self.learned = NOTHING_LEARNED  # with what was chosen last
        self.bars: tuple[MemoryBar, ...] = ()  # estimated as a model loads, measured when it is ready
        self._notify, self._store = notify, store
        self._smaller: Iterator[EngineChoice] = iter(())
        self._ran_out: EngineChoice | None = None  # the first choice that did not fit
        self._taught: EngineChoice | None = None  # the choice that was learned from
        self._learning: asyncio.Task[None] | None = None

    def staged(self) -> Staged:
        """What the store has in memory. Looks into its index: off the event loop."""
        try:
            return self._store.staged()
        except StoreRefused:
            return NOTHING_STAGED

    def choose(self, settings: Settings, slot_path: Path, *, sees: bool, needed: int) -> EngineChoice:
        """As `choose_engine`, with what the store makes room for; it has made that room. Raises KvchatError."""
        choice = choose_engine(settings, slot_path, self.book, sees=sees, needed=needed, staged=self.staged())
        with contextlib.suppress(StoreRefused):
            self._store.keep_in_memory(choice.context.bars[-1].staging)
        return choice

    def starts(self, choice: EngineChoice) -> None:
        """An engine is about to be started with this choice."""
        self.learned = choice.corrections
        self.bars, self._smaller, self._ran_out = choice.context.bars, iter(choice.smaller()), None

    def ran_out(self, choice: EngineChoice) -> EngineChoice | None:
        """A load with this choice ran out of memory: what to try next, None at the floor."""
        smaller = next(self._smaller, None)
        if smaller is not None:
            self.bars, self._ran_out = smaller.context.bars, self._ran_out or choice
        return smaller

    def loaded(self, choice: EngineChoice, log: Sequence[str]) -> None:
        """A load succeeded: look at what it took, learn from it, and say so if it was not the one that was planned."""
        ran_out, self._ran_out = self._ran_out, None
        actual = read_allocations(log)
        if actual is not None:
            self.bars = measured_bars(choice.context.bars, actual)
        if choice is self._taught:  # an engine that was started again says what it said before
            return
        self._taught = choice
        learned = learn_share(choice.context, choice.corrections, self.book.clock() if ran_out else None)
        if ran_out:
            again = "" if ran_out.context.by_user else f" More is tried again from {day(learned.until)} on."
            detail = f"It runs with less now. {choice.context.reason}{again}"
            self._notify("Memory ran out while the model loaded", detail)
        self.learned = learn(choice.context, learned, actual)
        if self.learned != choice.corrections:
            write = asyncio.to_thread(self.book.learn, choice.circumstances, self.learned)
            self._learning = asyncio.create_task(write, name="memory corrections")

    async def close(self) -> None:
        """Wait until what was learned is written."""
        if self._learning:
            await self._learning
