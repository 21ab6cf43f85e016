"""Has the slot saved, hands the file to the store, and has that take it apart."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from kvchat.chat.events import Absorbed, EventBus, Notice, Saved, SaveSkipped
from kvchat.chat.finishing import Finishing
from kvchat.chat.room import ReadyEngine
from kvchat.chat.slot_state import OLDER_WINDOW_ROWS
from kvchat.engine.speaking.interface import EngineRefused
from kvchat.engine.speaking.wire import SlotSave
from kvchat.kvstore.files import disk
from kvchat.kvstore.savepoint import Grown, SavePoint, Tokens
from kvchat.kvstore.store import NothingIsKept, SavePointStore, StoreRefused

NOT_WAITED_FOR = "kvchat was told not to wait"


class Saver:
    """For the slot's keeper, `save` under the slot's lock."""

    def __init__(self, store: SavePointStore, events: EventBus, finishing: Finishing) -> None:
        self._store, self._events, self._finishing = store, events, finishing
        self.marked = ""  # the save point that was saved from the slot last, or restored into it

    async def save(
        self,
        host: ReadyEngine,
        conversation_id: str,
        boundary: Tokens,
        prefill_ms: float,
        *,
        message_id: str | None,
        tell: bool,
    ) -> SavePoint | None:
        """See `SlotKeeper.save`; `prefill_ms` is what reading these tokens again would take."""
        started = time.perf_counter()
        path = host.slot_path / f"{disk.name_for_engine()}.slot"
        try:
            if not self._finishing.wanted():
                raise StoreRefused(NOT_WAITED_FOR)
            expected_bytes = int(len(boundary) * host.kv_bytes_per_token)
            state = host.fingerprint, boundary
            await asyncio.to_thread(self._store.check_room, expected_bytes, conversation_id, path, state)
            with self._finishing.saving(expected_bytes, path):
                answer = await self._saved(host, path)
            if answer.n_saved != len(boundary):
                raise StoreRefused(f"the engine held {answer.n_saved:,} tokens instead of {len(boundary):,}")
            point = await asyncio.to_thread(
                self._store.take,
                path,
                conversation_id,
                host.fingerprint,
                boundary,
                answer.n_written,
                prefill_ms,
                OLDER_WINDOW_ROWS if host.slides else 0,
                message_id,
                Grown(self.marked, host.engine.rows.kept) if host.engine.rows.kept else None,
            )
            self.marked = point.id
            host.engine.rows.mark(len(boundary))
        except NothingIsKept:
            return None
        except (StoreRefused, EngineRefused, OSError) as refusal:
            self._events.publish(SaveSkipped(conversation_id, str(refusal).removeprefix("Not saved: ")))
            return None
        finally:
            await asyncio.to_thread(self._store.forget, path)
        elapsed = 1000 * (time.perf_counter() - started)
        if tell:
            self._events.publish(Saved(conversation_id, point.size, point.n_tokens, elapsed))
        return point

    async def _saved(self, host: ReadyEngine, path: Path) -> SlotSave:
        """Have the engine save the slot. If memory could not hold that after all, the disk may."""
        try:
            answer = await host.engine.save_slot(path.name)
        except EngineRefused:
            answer = None
        if answer is None or not answer.n_written:
            await asyncio.to_thread(self._store.forget, path)
            answer = await host.engine.save_slot(path.name)
        return answer

    async def absorb(self) -> None:
        """See `SlotKeeper.absorb`."""
        try:
            with self._finishing.absorbing():
                report = await asyncio.to_thread(self._store.absorb_pending, self._finishing.wanted)
            losses = await asyncio.to_thread(self._store.losses)
        except StoreRefused as refusal:
            self._events.publish(Notice(refusal.title, f"{refusal.detail} {refusal.advice}".strip()))
            return
        if report.save_points:
            self._events.publish(Absorbed(report.save_points, report.bytes_written))
        for words in (*report.refused, *(loss.reason for loss in losses)):
            self._events.publish(Notice("The memory of a chat was not kept", words))
