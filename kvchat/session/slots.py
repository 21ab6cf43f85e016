"""All slots of the engine and what they share: its context, its time, the store, and unfinished saves.

With `--kv-unified` a prompt may be as long as the whole context, whatever is in the other slots. When it is full
the engine purges idle slots, the first of them first, whatever they are worth; if that is not enough, all running
requests fail, and a restore is refused with the error of a bad file (all measured on b11434). So room is made
before: slots not in use are erased, least recently used first; if running requests leave too little, the request
waits for them. The possible length of a reply is reserved only in part (`ReadyEngine.reserve`): if two grow beyond
that, one is asked again, alone (`Exchange.answer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from kvchat.engine.api.errors import EngineError
from kvchat.kvstore.savepoint import AbsorbReport
from kvchat.kvstore.store import BlockStore
from kvchat.session.allocator import Allocator
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_cost import RestoreCost
from kvchat.session.slot import Slot
from kvchat.system.files import size_of
from kvchat.text.formatting import format_rough_duration, format_size
from kvchat.text.language import _

P = ParamSpec("P")
R = TypeVar("R")

_ENGINE_S_PER_BYTE, _STORE_S_PER_BYTE = 1e-9, 2e-9  # defaults until measured here


@dataclass(frozen=True)
class PendingSave:
    bytes: int
    seconds: float  # estimate

    @property
    def description(self) -> str:
        return _("{bytes}, about {seconds}", bytes=format_size(self.bytes), seconds=format_rough_duration(self.seconds))


@dataclass(frozen=True)
class _FileWrite:
    """A file being written: from the engine into `path` or, without one, into the store."""

    size: int
    path: Path | None
    began_at: float

    @property
    def written(self) -> int:
        return size_of(self.path) if self.path else 0

    def left_s(self, rate: float) -> float:
        """Estimate the seconds left, from `rate` (seconds per byte) or its own speed so far."""
        taken, written = time.monotonic() - self.began_at, self.written
        if written:
            return taken * max(0, self.size - written) / written
        return max(0.0, self.size * rate - taken)


class SaveProgress:
    """Saves in progress in all slots, and their duration. On the event loop's thread, except `cancelled`."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()  # no caller is waiting
        self._hurry = asyncio.Event()
        self._steps: list[_FileWrite] = []  # run in parallel
        self._waiting = 0  # bytes saved but not yet absorbed
        self._ahead: list[int] = []  # bytes to save after the current reading
        self._read: object = None  # last progress it reported
        # Seconds per byte: engine saves (True), absorbing (False).
        self._rates = {True: _ENGINE_S_PER_BYTE, False: _STORE_S_PER_BYTE}

    def cancel(self) -> None:
        """Give up whatever is not saved yet: nobody waits for it."""
        self.cancelled.set()
        self._hurry.set()

    async def wait_until_done(self, idle: Awaitable[None], patience_s: float) -> bool:
        """Wait until all work ends or is cancelled; False if the engine was inactive for `patience_s`."""
        task, hurry = asyncio.ensure_future(idle), asyncio.ensure_future(self._hurry.wait())
        try:
            while not (task.done() or hurry.done()):
                before = self.progress()
                await asyncio.wait({task, hurry}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                if not (task.done() or hurry.done()) and self.progress() == before:
                    return False
            return True
        finally:
            task.cancel()
            hurry.cancel()

    async def finish_or_cancel(self, work: Coroutine[Any, Any, None], patience_s: float) -> None:
        """Wait for work; once cancelled, at most `patience_s`, because a disk may hang."""
        task, hurry = asyncio.ensure_future(work), asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({task, hurry}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({task}, timeout=patience_s)
        hurry.cancel()

    @contextlib.contextmanager
    def track_prefill(self, size: int) -> Iterator[Callable[[object], None]]:
        """Count `size` bytes to be saved once the engine has read so far; yield the progress callback."""

        def tell(progress: object) -> None:
            self._read = progress

        self._ahead.append(size)
        try:
            yield tell
        finally:
            self._ahead.remove(size)

    @contextlib.contextmanager
    def track_save(self, size: int, path: Path) -> Iterator[None]:
        with self._running(_FileWrite(size, path, time.monotonic())):
            yield
        self._waiting += size

    @contextlib.contextmanager
    def track_absorb(self) -> Iterator[None]:
        size, self._waiting = self._waiting, 0
        with self._running(_FileWrite(size, None, time.monotonic())):
            yield

    def pending_save(self) -> PendingSave | None:
        steps, rates, ahead = self._steps, self._rates, sum(self._ahead)
        waiting = self._waiting + ahead + sum(step.size for step in steps if step.path)
        if not steps and not waiting:
            return None
        seconds = sum(step.left_s(rates[bool(step.path)]) for step in steps) if steps else ahead * rates[True]
        absorbed = sum(step.size for step in steps if not step.path)
        return PendingSave(max(waiting, absorbed), seconds + waiting * rates[False])

    def progress(self) -> object:
        """Return a value that equals an earlier one only if the engine was inactive in between."""
        if any(step.path is None for step in self._steps):  # kvchat's own work always finishes
            return object()
        return [(step, step.written) for step in self._steps] or self._read

    @contextlib.contextmanager
    def _running(self, step: _FileWrite) -> Iterator[None]:
        self._steps.append(step)
        try:
            yield
            if step.size:
                self._rates[bool(step.path)] = (time.monotonic() - step.began_at) / step.size
        finally:
            self._steps = [other for other in self._steps if other is not step]


ROOM_MARGIN = 32  # tokens: the engine may keep slightly more than kvchat knows
STEP_INTERVAL_S = 5.0  # interval between steps of a program's prompt while a window reply streams


class SharedContext:
    """Share the engine's context, and its time for programs' prompts. On the event loop's thread only."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._waiting: list[Slot] = []  # waiting for room, window first
        self._erasing: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()  # first come, first served

    @contextlib.asynccontextmanager
    async def step(self, slot: Slot) -> AsyncIterator[bool]:
        """Guard a step of reading a program's prompt: one at a time, the window first.

        No step runs while the window waits for a first word. Yields False if the window needs the slot's room: leave
        the slot and start over.
        """
        async with self._turn:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None) as patience:
                    while (streaming := self._allocator.window_replies_streaming()) and not self.must_yield(slot):
                        if not all(streaming):
                            patience.reschedule(None)
                        elif patience.when() is None:
                            patience.reschedule(asyncio.get_running_loop().time() + STEP_INTERVAL_S)
                        await self._allocator.changed.wait()
            slot.is_leaving = self.must_yield(slot)
            yield not slot.is_leaving

    def must_yield(self, slot: Slot) -> bool:
        """True if a program must leave this slot: the window waits for a slot, or for the room it takes."""
        waited_for = self._allocator.is_window_blocked or any(other.window for other in self._waiting)
        return not slot.window and (slot.is_leaving or waited_for)

    async def reserve_room(self, slot: Slot, engine: ReadyEngine, tokens: int) -> None:
        """Wait until the slot has room for `tokens`. Raises EngineGone and EngineRefused."""
        slot.claimed_tokens = 0
        self._waiting.append(slot)
        self._waiting.sort(key=lambda waiting: not waiting.window)
        self._allocator.notify_change()
        try:
            while self._waiting[0] is not slot or not self._fits(slot, engine, tokens):
                await self._allocator.changed.wait()
            slot.claimed_tokens = tokens  # reserved now: a window request may arrive before the rest is done
            self._make_room(slot, engine)
            if self._erasing:  # shared with other waiters: `gather` would cancel it for all
                await asyncio.wait(self._erasing)
        finally:
            self._waiting.remove(slot)
            self._allocator.notify_change()

    def note_growth(self, slot: Slot, engine: ReadyEngine, tokens: int) -> None:
        """Note that the slot now holds `tokens`; erase unused slots that are in the way."""
        if tokens > slot.claimed_tokens:
            slot.claimed_tokens = tokens + ROOM_MARGIN
            self._make_room(slot, engine)

    def _fits(self, slot: Slot, engine: ReadyEngine, tokens: int) -> bool:
        """True if `tokens` fit beside running replies. Alone they do: the engine rejects what is too long."""
        claimed = sum(other.claimed_tokens for other in self._others(slot))
        return not claimed or claimed + tokens + ROOM_MARGIN <= engine.context_size

    def _make_room(self, slot: Slot, engine: ReadyEngine) -> None:
        """Start erasing idle slots, least recently used first, until the slot's claim fits."""
        claimed = sum(other.claimed_tokens for other in self._others(slot))
        idle = [
            other
            for other in self._others(slot)
            if not other.claimed_tokens and other.max_tokens_held(engine.generation)
        ]
        idle.sort(key=lambda other: -other.used_at)
        room = engine.context_size - claimed - slot.claimed_tokens - ROOM_MARGIN
        for other in idle:
            room -= other.max_tokens_held(engine.generation)
            if room < 0:
                other.mark_empty()
                task = asyncio.ensure_future(self._erase(other, engine))
                self._erasing.add(task)
                task.add_done_callback(self._erasing.discard)

    async def _erase(self, slot: Slot, engine: ReadyEngine) -> None:
        with contextlib.suppress(EngineError):  # the next request reports it
            await engine.on_slot(slot.number).engine.erase_slot()

    def _others(self, slot: Slot) -> list[Slot]:
        return [other for other in self._allocator.all if other is not slot]


class Slots(Allocator):
    """The slots and all that their owners share. Belongs to the event loop's thread."""

    def __init__(self, store: BlockStore) -> None:
        super().__init__(RestoreCost())
        self.store, self.save_progress, self.shared_context = store, SaveProgress(), SharedContext(self)
        self._in_turn = asyncio.Lock()  # first come, first served
        self._writing: set[asyncio.Future[Any]] = set()

    def write(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
        """Have the store write, in the order of calls; it continues if the caller stops waiting."""

        async def in_turn() -> R:
            async with self._in_turn:
                return await asyncio.to_thread(function, *args, **kwargs)

        writing = asyncio.ensure_future(in_turn())
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        return asyncio.shield(writing)

    async def absorb(self) -> AbsorbReport:
        """Let the store process new saves. Not under a lock: slots continue meanwhile. Raises StoreRefused."""
        if self.store.problem is not None:
            return AbsorbReport(0, 0, ())
        with self.save_progress.track_absorb():
            report = await asyncio.to_thread(self.store.absorb_pending, self.save_progress.cancelled.is_set)
        losses = await asyncio.to_thread(self.store.inventory.losses)
        return replace(report, refused=(*report.refused, *(loss.reason for loss in losses)))

    def discard(self, owner: str) -> asyncio.Future[int]:
        """Delete all that the store keeps of a removed owner. Call it while the owner has no slot."""
        if slot := self.slot_of(owner):
            slot.forget()
        return self.write(self.store.inventory.delete_conversation, owner)

    def discard_messages(self, owner: str, labels: Collection[str]) -> asyncio.Future[int]:
        return self.write(self.store.inventory.delete_messages, owner, labels)
