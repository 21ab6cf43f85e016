"""Has a save point staged, gives it to the engine, and takes it out of use if that does not work."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable

from kvchat.chat.events import EventBus, Restoring
from kvchat.chat.room import ReadyEngine
from kvchat.chat.slot_state import OLDER_WINDOW_ROWS, RestoreRecord
from kvchat.engine.speaking.interface import EngineGone, EngineRefused
from kvchat.kvstore.savepoint import Miss, RestorePlan, SavePoint, StagedFile
from kvchat.kvstore.store import NotWanted, SavePointStore, StoreRefused

TOO_LARGE_NOW = "what is kept of it is larger than the context is now"
DIED_OVER_RESTORE = "the engine died while it loaded its memory"


class Restorer:
    """For the slot's keeper, under the slot's lock."""

    def __init__(self, store: SavePointStore, events: EventBus) -> None:
        self._store, self._events = store, events

    async def restore(
        self, host: ReadyEngine, conversation_id: str, plan: RestorePlan, touched: Callable[[], None]
    ) -> RestoreRecord | Miss:
        """Stage and restore; a failed restore leaves an empty slot. `touched` hears when the slot is no more as it was.

        Raises EngineGone if the engine dies over it.
        """
        point = plan.save_point
        self._events.publish(Restoring(conversation_id, plan.bytes, plan.tokens_used))
        started = time.perf_counter()
        async with self._staged(host, plan) as staged:
            if isinstance(staged, Miss):
                return staged
            if staged.n_tokens > host.context_size:  # the engine would refuse a good state
                return Miss(TOO_LARGE_NOW)
            touched()
            try:
                answer = await host.engine.restore_slot(staged.path.name)
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
            await host.engine.erase_slot()
            return Miss(reason)
        finished = time.perf_counter()
        return RestoreRecord(point, staged.n_tokens, staged.tier, answer.n_read, 1000 * (finished - started), finished)

    async def set_aside(self, point: SavePoint, reason: str) -> None:
        """Take a save point out of use. A store that cannot even do that must not cost the reply: it is tried again."""
        with contextlib.suppress(StoreRefused):
            await asyncio.to_thread(self._store.set_aside, point, reason)

    @contextlib.asynccontextmanager
    async def _staged(self, host: ReadyEngine, plan: RestorePlan) -> AsyncIterator[StagedFile | Miss]:
        """The save point's file in the slot folder, gone again at the end.

        Cancelled half-way it ends soon: gigabytes are not put together for nobody.
        """
        given_up = threading.Event()
        staging = asyncio.ensure_future(
            asyncio.to_thread(
                self._store.stage,
                plan,
                host.slot_path,
                older_window_rows=OLDER_WINDOW_ROWS if host.slides else 0,
                wanted=lambda: not given_up.is_set(),
            )
        )
        try:
            yield await asyncio.shield(staging)
        finally:
            given_up.set()
            with contextlib.suppress(NotWanted):
                staged = await staging
                if not isinstance(staged, Miss):
                    await asyncio.to_thread(self._store.unstage, staged)
