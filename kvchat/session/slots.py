"""All slots of the engine and the resources they share: context, computing time, store and unfinished saves.

With `--kv-unified` a prompt may be as long as the whole context, whatever is in the other slots. When it is full
the engine purges idle slots in numerical order, whatever their value; if that is not enough, all running requests
fail, and a restore is refused with the error for a bad file (all measured on b11434). So kvchat makes room in advance:
it erases unused slots, least recently used first, and a request waits if running ones leave too little room. Only part
of a reply's possible length is reserved (`ReadyEngine.reserve`): if two replies grow beyond that, one of them is
requested again, alone (`Exchange.answer`).
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvchat.engine.api.errors import EngineError
from kvchat.kvstore.savepoint import AbsorbReport, Tokens, program_of
from kvchat.kvstore.store import BlockStore
from kvchat.session.allocator import Allocator
from kvchat.session.host import ReadyEngine
from kvchat.session.proof import MIN_SHARE, Source
from kvchat.session.restore_cost import RestoreCost
from kvchat.session.slot import Slot, SlotRequest, plan_load
from kvchat.system.concurrency import BackgroundTasks, Worker
from kvchat.system.files import file_size
from kvchat.text.formatting import format_rough_duration, format_size
from kvchat.text.language import _

CONTEXT_MARGIN = 32  # tokens: the engine may keep slightly more than kvchat knows
STEP_INTERVAL_S = 5.0  # interval between steps of a program's prompt while a window reply streams
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
    def bytes_written(self) -> int:
        return file_size(self.path) if self.path else 0

    def seconds_left(self, rate: float) -> float:
        """Estimate the seconds left from the speed so far or, before the first byte, from `rate` (seconds per byte)."""
        taken, written = time.monotonic() - self.began_at, self.bytes_written
        if written:
            return taken * max(0, self.size - written) / written
        return max(0.0, self.size * rate - taken)


class SaveProgress:
    """Saves in progress in all slots, and their duration. On the event loop's thread, except `cancelled`."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()  # no caller is waiting
        self._cancelled = asyncio.Event()  # the same, for the event loop
        self._writes: list[_FileWrite] = []  # run in parallel
        self._unabsorbed_bytes = 0  # bytes saved but not yet absorbed
        self._after_prefill: list[int] = []  # bytes to save once what is being processed is done
        self._last_progress: object = None  # reported by the engine
        # Seconds per byte: engine saves (True), absorbing (False).
        self._rates = {True: _ENGINE_S_PER_BYTE, False: _STORE_S_PER_BYTE}

    def cancel(self) -> None:
        """Cancel all unfinished saves."""
        self.cancelled.set()
        self._cancelled.set()

    async def wait_until_done(self, idle: Awaitable[None], timeout_s: float) -> bool:
        """Wait for `idle` or cancellation. Return False as soon as the engine has been inactive for `timeout_s`."""
        tasks = {asyncio.ensure_future(idle), asyncio.ensure_future(self._cancelled.wait())}
        try:
            while True:
                before = self.activity_snapshot()
                done, _pending = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    return True
                if self.activity_snapshot() == before:
                    return False
        finally:
            for task in tasks:
                task.cancel()

    async def finish_or_cancel(self, coroutine: Coroutine[Any, Any, None], timeout_s: float) -> None:
        """Wait for `coroutine`; after a cancellation, at most `timeout_s` longer, because a disk may hang."""
        task, cancelled = asyncio.ensure_future(coroutine), asyncio.ensure_future(self._cancelled.wait())
        await asyncio.wait({task, cancelled}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({task}, timeout=timeout_s)
        cancelled.cancel()

    @contextlib.contextmanager
    def track_prefill(self, size: int) -> Iterator[Callable[[object], None]]:
        """Announce a save of `size` bytes that follows a prefill; yield the callback for the prefill's progress."""

        def note_progress(progress: object) -> None:
            self._last_progress = progress

        self._after_prefill.append(size)
        try:
            yield note_progress
        finally:
            self._after_prefill.remove(size)

    @contextlib.contextmanager
    def track_save(self, size: int, path: Path) -> Iterator[None]:
        with self._track(_FileWrite(size, path, time.monotonic())):
            yield
        self._unabsorbed_bytes += size

    @contextlib.contextmanager
    def track_absorb(self) -> Iterator[None]:
        size, self._unabsorbed_bytes = self._unabsorbed_bytes, 0
        with self._track(_FileWrite(size, None, time.monotonic())):
            yield

    @contextlib.contextmanager
    def _track(self, write: _FileWrite) -> Iterator[None]:
        self._writes.append(write)
        try:
            yield
            if write.size:
                self._rates[bool(write.path)] = (time.monotonic() - write.began_at) / write.size
        finally:
            self._writes = [other for other in self._writes if other is not write]

    def pending_save(self) -> PendingSave | None:
        writes, rates, planned = self._writes, self._rates, sum(self._after_prefill)
        waiting = self._unabsorbed_bytes + planned + sum(write.size for write in writes if write.path)
        if not writes and not waiting:
            return None
        seconds = (
            sum(write.seconds_left(rates[bool(write.path)]) for write in writes) if writes else planned * rates[True]
        )
        absorbed = sum(write.size for write in writes if not write.path)
        return PendingSave(max(waiting, absorbed), seconds + waiting * rates[False])

    def activity_snapshot(self) -> object:
        """Return a value that equals an earlier one only if the engine was inactive in between."""
        if any(write.path is None for write in self._writes):  # kvchat's own work always finishes
            return object()
        return [(write, write.bytes_written) for write in self._writes] or self._last_progress


class Slots(Allocator):
    """The slots and the resources that their owners share. Belongs to the event loop's thread."""

    def __init__(self, store: BlockStore) -> None:
        super().__init__(RestoreCost())
        self.store, self.save_progress = store, SaveProgress()
        self._waiting_for_room: list[Slot] = []  # window first
        self._erasing = BackgroundTasks()
        self._program_step = asyncio.Lock()  # first come, first served
        self.writer = Worker("saving")  # calls writing functions of the store in order

    # The engine's context, and its time for programs' prompts

    @contextlib.asynccontextmanager
    async def program_step(self, slot: Slot) -> AsyncIterator[bool]:
        """Admit one step of processing a program's prompt at a time; the window goes first.

        No step runs while the window waits for a first token. Yields False if the window needs the slot's room: leave
        the slot and start over.
        """
        async with self._program_step:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None) as patience:
                    while (streaming := self.window_replies_streaming()) and not self._must_leave(slot):
                        if not all(streaming):
                            patience.reschedule(None)
                        elif patience.when() is None:
                            patience.reschedule(asyncio.get_running_loop().time() + STEP_INTERVAL_S)
                        await self.changed.wait()
            slot.is_leaving = self._must_leave(slot)
            yield not slot.is_leaving

    def _must_leave(self, slot: Slot) -> bool:
        """True if a program must leave this slot because the window needs a slot, or the room that this one takes."""
        window_waits = self.is_window_blocked or any(other.is_window_owned for other in self._waiting_for_room)
        return not slot.is_window_owned and (slot.is_leaving or window_waits)

    async def reserve_room(self, slot: Slot, engine: ReadyEngine, tokens: int) -> None:
        """Wait until the slot has room for `tokens`. Raises EngineGone and EngineRefused."""
        slot.claimed_tokens, waiting = 0, self._waiting_for_room
        waiting.append(slot)
        waiting.sort(key=lambda other: not other.is_window_owned)
        self.notify_change()
        try:
            while waiting[0] is not slot or not self._fits(slot, engine, tokens):
                await self.changed.wait()
            slot.claimed_tokens = tokens  # reserved now: a window request may arrive before the rest is done
            self._make_room(slot, engine)
            await self._erasing.wait_until_idle()
        finally:
            waiting.remove(slot)
            self.notify_change()

    def note_growth(self, slot: Slot, engine: ReadyEngine, tokens: int) -> None:
        """Record that the slot now holds `tokens`; erase unused slots if their room is needed."""
        if tokens > slot.claimed_tokens:
            slot.claimed_tokens = tokens + CONTEXT_MARGIN
            self._make_room(slot, engine)

    def _fits(self, slot: Slot, engine: ReadyEngine, tokens: int) -> bool:
        """True if `tokens` fit beside the running replies, or if none runs: the engine rejects overlong prompts."""
        claimed = sum(other.claimed_tokens for other in self.all_slots if other is not slot)
        return not claimed or claimed + tokens + CONTEXT_MARGIN <= engine.context_size

    def _make_room(self, slot: Slot, engine: ReadyEngine) -> None:
        """Start erasing idle slots, least recently used first, until the slot's claim fits."""

        async def erase(idle: Slot) -> None:
            with contextlib.suppress(EngineError):  # the next request reports it
                await engine.for_slot(idle.number).engine.erase_slot()

        room = engine.context_size - CONTEXT_MARGIN - sum(other.claimed_tokens for other in {*self.all_slots, slot})
        idle = [other for other in self.all_slots if other is not slot and not other.claimed_tokens]
        for other in sorted(idle, key=lambda other: -other.used_at):
            held_tokens = other.max_tokens_held(engine.generation)
            room -= held_tokens
            if held_tokens and room < 0:
                other.mark_empty()
                self._erasing.start(erase(other))

    # The store

    async def forecast(self, owner: str, prompt: Tokens, engine: ReadyEngine) -> tuple[Source, int, int]:
        """Return where a request's prompt would come from now, how many of its tokens, and the bytes to restore."""
        slot = self.slot_of(owner) or self._choose(SlotRequest(owner, prompt=prompt), self.all_slots, ())
        contents = slot.readable_contents(engine, owner) if slot else None
        plan = await plan_load(self.store, engine, owner, contents, prompt, self.restore_cost.is_worthwhile)
        source = Source(plan.restore.tier.value) if plan.restore else Source.HOT
        if plan.reused_tokens < MIN_SHARE * len(prompt):
            source = Source.COLD
        return source, plan.reused_tokens, plan.restore.bytes if plan.restore else 0

    async def absorb(self) -> AbsorbReport:
        """Have the store absorb new saves while the slots stay usable. Raises StoreRefused."""
        if self.store.problem is not None:
            return AbsorbReport(0, ())
        with self.save_progress.track_absorb():
            report = await asyncio.to_thread(self.store.absorb_pending, self.save_progress.cancelled.is_set)
        losses = await asyncio.to_thread(self.store.inventory.take_losses)
        return replace(report, refused=(*report.refused, *(loss.reason for loss in losses)))

    def discard(self, owner: str) -> Coroutine[Any, Any, int]:
        """Delete everything the store keeps for a deleted owner, which must not hold a slot."""
        if slot := self.slot_of(owner):
            slot.forget()
        return self.writer.run(self.store.inventory.delete_conversation, owner)

    async def discard_program(self, program: str) -> int:
        """End the work for a program that can no longer send requests, and delete everything the store keeps for it."""
        for request in self._standby:
            request.should_continue &= program_of(request.owner) != program
        await self.wait_until_released(
            [request.owner for request in self._active if program_of(request.owner) == program]
        )
        for slot in self.all_slots:
            if slot.contents and program_of(slot.contents.owner) == program:
                slot.forget()
        return await self.writer.run(self.store.inventory.delete_program, program)

    def discard_messages(self, owner: str, labels: Collection[str]) -> Coroutine[Any, Any, int]:
        return self.writer.run(self.store.inventory.delete_messages, owner, labels)
