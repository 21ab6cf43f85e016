"""All of the engine's slots, with the store behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from kvchat.kvstore.savepoint import AbsorbReport
from kvchat.kvstore.store import SavePointStore
from kvchat.session.finishing import Finishing
from kvchat.session.restore_cost import RestoreCost
from kvchat.session.slots.allocator import Allocator
from kvchat.session.slots.sharing import SharedContext, Steps

SOON_S = 0.5  # a free list takes milliseconds
R = TypeVar("R")


class Slots(Allocator):
    """The slots, with all that their owners share. Belongs to the event loop's thread."""

    def __init__(self, store: SavePointStore) -> None:
        super().__init__(RestoreCost())
        self.store = store
        self.finishing = Finishing()
        self.context = SharedContext(self)
        self.steps = Steps(self, self.context)
        self._written: asyncio.Task[Any] | None = None  # what was last begun to be written into the store's list

    async def soon(self, work: Coroutine[Any, Any, R]) -> R | None:
        """Have something written into the store's list, after what is being written; None if that takes longer.

        Another process may be writing there, and whoever waits for an answer waits for the slot: it goes on by itself.
        """
        written = self.in_order(work)
        await asyncio.wait({written}, timeout=SOON_S)
        return written.result() if written.done() else None

    def in_order(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Have something written into the store's list, after what is being written."""
        before = self._written

        async def in_order() -> R:
            if before is not None:
                await asyncio.wait({before})
            return await work

        self._written = written = asyncio.ensure_future(in_order())
        return written

    async def written(self) -> None:
        """Once nothing is being written any more."""
        if self._written is not None:
            await asyncio.wait({self._written})

    async def absorb(self) -> AbsorbReport:
        """Let the store take apart what was saved. Not under a lock: slots go on meanwhile. Raises StoreRefused."""
        with self.finishing.absorbing():
            await self.written()
            report = await asyncio.to_thread(self.store.absorb_pending, self.finishing.cancelled.is_set)
        losses = await asyncio.to_thread(self.store.losses)
        return replace(report, refused=(*report.refused, *(loss.reason for loss in losses)))

    def discard(self, owner: str) -> asyncio.Future[int]:
        """Delete everything the store keeps of an owner that is gone.

        Call it while the owner has no slot. The deletion goes on if whoever awaits it is cancelled.
        """
        if slot := self.of(owner):
            slot.forget()
        return asyncio.shield(self.in_order(asyncio.to_thread(self.store.delete_conversation, owner)))

    def discard_messages(self, owner: str, labels: Collection[str]) -> asyncio.Future[int]:
        """What was saved under these labels goes, of an owner that stays. As `discard`."""
        return asyncio.shield(self.in_order(asyncio.to_thread(self.store.delete_messages, owner, labels)))
