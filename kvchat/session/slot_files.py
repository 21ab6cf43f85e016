"""A slot's state as a file: the engine writes it and the store takes it, the store makes it and the engine reads it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from kvchat.engine.speaking.errors import EngineGone, EngineRefused
from kvchat.engine.speaking.wire import SlotSave
from kvchat.kvstore.files import disk
from kvchat.kvstore.savepoint import (
    Cancelled,
    Grown,
    Miss,
    NothingIsKept,
    RestorePlan,
    SavePoint,
    StagedFile,
    StoreRefused,
    Tokens,
)
from kvchat.session.events import Restoring, Saved, SaveSkipped, Tell
from kvchat.session.host import ReadyEngine
from kvchat.session.proof import RestoreRecord
from kvchat.session.slot import Slots

TOO_LARGE_NOW = "what is kept of it is larger than the context is now"
DIED_OVER_RESTORE = "the engine died while it loaded its memory"
NOT_WAITED_FOR = "kvchat was told not to wait"

R = TypeVar("R")


class SlotFiles:
    """For one owner, in one slot of one engine process, under the slot's lock."""

    def __init__(self, slots: Slots, engine: ReadyEngine, owner: str, tell: Tell) -> None:
        self.slots, self.slot, self.engine, self.owner = slots, slots.slot, engine, owner
        self._store, self._tell = slots.store, tell

    async def restore(self, plan: RestorePlan) -> RestoreRecord | Miss:
        """Stage and restore; a failed restore leaves an empty slot. Raises EngineGone if the engine dies over it."""
        engine, point = self.engine.engine, plan.save_point
        self._tell(Restoring(plan.bytes, plan.tokens_used))
        started = time.perf_counter()
        async with self._staged(plan) as staged:
            if isinstance(staged, Miss):
                return staged
            if staged.n_tokens > self.engine.context_size:  # the engine would refuse a good state
                return Miss(TOO_LARGE_NOW)
            self.slot.forget()
            try:
                answer = await engine.restore_slot(staged.path.name)
            except EngineRefused as refusal:
                reason = f"the engine refused its memory: {refusal.message}"
                await self.set_aside(point, reason)
                return Miss(reason)
            except EngineGone:
                await self.set_aside(point, DIED_OVER_RESTORE)
                raise
        if answer.n_restored != staged.n_tokens:
            reason = f"the engine loaded {answer.n_restored:,} of {staged.n_tokens:,} tokens"
            await self.set_aside(point, reason)
            await engine.erase_slot()
            return Miss(reason)
        finished = time.perf_counter()
        self._mark(point, staged.n_tokens)
        return RestoreRecord(point, staged.n_tokens, staged.tier, answer.n_read, 1000 * (finished - started), finished)

    async def set_aside(self, point: SavePoint, reason: str) -> None:
        """Take a save point out of use. A store that cannot even do that must not cost the reply: it is tried again."""

        async def set_aside() -> None:
            with contextlib.suppress(StoreRefused):
                await asyncio.to_thread(self._store.set_aside, point, reason)

        await self.slots.soon(set_aside())

    async def save(self, boundary: Tokens, *, label: str | None = None, tell: bool = True) -> SavePoint | None:
        """Save the settled slot and hand the file to the store; None, and an event that says why, if it was not kept.

        None as well where the store takes it later (`Slots.soon`).
        `label`: what of the owner's it goes with, as a message. `tell` false: nothing is said of one that was kept.
        Raises EngineGone if the engine dies while saving.
        """
        started, rows = time.perf_counter(), self.engine.engine.rows
        path = self.engine.slot_path / f"{disk.name_for_engine()}.slot"
        written = await self._unless_refused(path, self._written(path, boundary))
        if written is None:
            return None
        grown = Grown(self.slot.save_point, rows.kept) if rows.kept else None
        taking = asyncio.to_thread(
            self._store.take,
            path,
            self.owner,
            self.engine.fingerprint,
            boundary,
            written,
            self.slots.rates.prefill_ms(len(boundary)),
            self.engine.older_rows,
            label,
            grown,
        )

        async def take() -> SavePoint | None:
            point = await self._unless_refused(path, taking)
            if point and tell:
                self._tell(Saved(point.size, point.n_tokens, 1000 * (time.perf_counter() - started)))
            return point

        point = await self.slots.soon(take())
        if point:
            self._mark(point, len(boundary))
        else:
            rows.mark(0)  # which save point it is is not known
        return point

    async def _written(self, path: Path, boundary: Tokens) -> int:
        """Have the slot written to `path`; bytes. Raises StoreRefused, EngineRefused and EngineGone."""
        finishing, ready = self.slots.finishing, self.engine
        if finishing.cancelled.is_set():
            raise StoreRefused(NOT_WAITED_FOR)
        expected_bytes = int(len(boundary) * ready.kv_bytes_per_token)
        state = ready.fingerprint, boundary
        await asyncio.to_thread(self._store.check_room, expected_bytes, self.owner, path, state)
        with finishing.saving(expected_bytes, path):
            answer = await self._saved(path)
        if answer.n_saved != len(boundary):
            raise StoreRefused(f"the engine held {answer.n_saved:,} tokens instead of {len(boundary):,}")
        return answer.n_written

    async def _unless_refused(self, path: Path, work: Coroutine[Any, Any, R]) -> R | None:
        """What comes of a step of saving; None where it was refused, which is told, and nothing is left at `path`."""
        done = False
        try:
            result = await work
            done = True
            return result
        except NothingIsKept:
            return None
        except (StoreRefused, EngineRefused, OSError) as refusal:
            self._tell(SaveSkipped(str(refusal).removeprefix("Not saved: ")))
            return None
        finally:
            if not done:
                await asyncio.to_thread(self._store.forget, path)

    async def _saved(self, path: Path) -> SlotSave:
        """Have the engine save the slot. If memory could not hold that after all, the disk may."""
        engine = self.engine.engine
        try:
            answer = await engine.save_slot(path.name)
        except EngineRefused:
            answer = None
        if answer is None or not answer.n_written:
            await asyncio.to_thread(self._store.forget, path)
            answer = await engine.save_slot(path.name)
        return answer

    def _mark(self, point: SavePoint, tokens: int) -> None:
        """What the slot holds now is a save point's: its rows need not be saved again."""
        self.slot.save_point = point.id
        self.engine.engine.rows.mark(tokens)

    @contextlib.asynccontextmanager
    async def _staged(self, plan: RestorePlan) -> AsyncIterator[StagedFile | Miss]:
        """The save point's file in the slot folder, gone again at the end.

        Cancelled half-way it ends soon: gigabytes are not put together for nobody.
        """
        cancelled = threading.Event()
        staging = asyncio.ensure_future(
            asyncio.to_thread(
                self._store.stage,
                plan,
                self.engine.slot_path,
                older_window_rows=self.engine.older_rows,
                cancelled=cancelled.is_set,
            )
        )
        try:
            yield await asyncio.shield(staging)
        finally:
            cancelled.set()
            with contextlib.suppress(Cancelled):
                staged = await staging
                if not isinstance(staged, Miss):
                    await asyncio.to_thread(self._store.unstage, staged)
