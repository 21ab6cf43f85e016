"""The engine's memory: what was planned, what it turned out to be, what to try when it runs out, what that teaches."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kvchat.engine.running.log import Allocations, Purpose, read_allocations
from kvchat.engine_host.choice import EngineChoice, choose_engine
from kvchat.kvstore.memory_files import NOTHING_STAGED, Staged
from kvchat.kvstore.savepoint import StoreRefused
from kvchat.kvstore.store import SavePointStore
from kvchat.library.gguf.kv_cache import padded
from kvchat.library.memory.context_size import ContextChoice
from kvchat.library.memory.corrections import NOTHING_LEARNED, CorrectionBook, Corrections, factor
from kvchat.library.memory.fitting import COMPUTER, MemoryBar
from kvchat.settings import Settings
from kvchat.words.language import _
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
            again = (
                ""
                if ran_out.context.by_user
                else " " + _("More is tried again from {until} on.", until=day(learned.until))
            )
            detail = _("It runs with less now. {reason}{again}", reason=choice.context.reason, again=again)
            self._notify(_("Memory ran out while the model loaded"), detail)
        self.learned = learn(choice.context, learned, actual)
        if self.learned != choice.corrections:
            write = asyncio.to_thread(self.book.learn, choice.circumstances, self.learned)
            self._learning = asyncio.create_task(write, name="memory corrections")

    async def close(self) -> None:
        """Wait until what was learned is written."""
        if self._learning:
            await self._learning


def measured_bars(estimated: tuple[MemoryBar, ...], actual: Allocations) -> tuple[MemoryBar, ...]:
    """The bars with the engine's own figures. What the engine does not tell of, itself, stays estimated."""
    return tuple(
        dataclasses.replace(
            bar,
            weights=_weights(bar, actual, beside_gpu=len(estimated) > 1),
            kv=_taken(actual, bar.place, Purpose.KV),
            compute=_taken(actual, bar.place, Purpose.COMPUTE),
            measured=True,
        )
        for bar in estimated
    )


def learn(choice: ContextChoice, used: Corrections, actual: Allocations | None) -> Corrections:
    """What the sizes that an engine reported (None: none) teach. `used`: the corrections `choice` was made with."""
    if actual is None or actual.context_size != padded(choice.tokens):  # the engine, or the user, had other ideas
        return used
    measured = measured_bars(choice.bars, actual)
    computing = slice(-1) if len(measured) > 1 else slice(None)  # the GPUs, or the computer where there is none

    def found(part: str, where: slice, used_factor: float) -> float:
        before = sum(getattr(bar, part) for bar in choice.bars[where])
        return factor(sum(getattr(bar, part) for bar in measured[where]), before / used_factor)

    learned = dataclasses.replace(
        used, weights=found("weights", computing, used.weights), kv=found("kv", slice(None), used.kv)
    )
    if actual.flash_attention_refused and used.flash_attention:  # the estimate of the compute buffer was another one
        return dataclasses.replace(learned, flash_attention=False)
    return dataclasses.replace(learned, compute=found("compute", computing, used.compute))


def learn_share(choice: ContextChoice, used: Corrections, ran_out_at: float | None) -> Corrections:
    """What it teaches that a load succeeded with `choice`.

    `ran_out_at`: when a larger one ran out of memory just before, in seconds since 1970; None if none did.
    """
    taken = share_taken(choice)
    if ran_out_at is not None:
        return used.after_running_out(taken, ran_out_at)
    return used.after_more_did_fit() if taken > used.share else used


def _weights(bar: MemoryBar, actual: Allocations, *, beside_gpu: bool) -> int:
    """Beside a GPU the engine reports all the file it mapped, of which the GPU's layers need not stay in memory."""
    taken = _taken(actual, bar.place, Purpose.WEIGHTS)
    return min(taken, bar.weights) if bar.place == COMPUTER and beside_gpu else taken


def _taken(actual: Allocations, place: str, purpose: Purpose) -> int:
    return actual.bytes(purpose, on_host=True) if place == COMPUTER else actual.on(place, purpose)


def share_taken(choice: ContextChoice) -> float:
    """The largest share of free memory that a choice takes of a place where the model computes."""
    *gpus, computer = choice.bars
    return max((bar.needed / bar.free if bar.free else 1.0) for bar in gpus or [computer])
