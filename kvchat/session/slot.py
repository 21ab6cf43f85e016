"""The engine's slots: what is known to be in each, who may use it, and the store behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kvchat.kvstore.savepoint import AbsorbReport, Tokens, common_prefix
from kvchat.kvstore.store import SavePointStore
from kvchat.session.finishing import Finishing
from kvchat.session.host import ReadyEngine
from kvchat.session.proof import NOTHING_AHEAD, ReadAhead, RestoreRecord
from kvchat.session.restore_cost import RestoreCost
from kvchat.session.scheduler import Scheduler

SOON_S = 0.5  # a free list takes milliseconds
R = TypeVar("R")


@dataclass(frozen=True)
class SlotContents:
    """What a slot is known to hold: at least `tokens`; exactly those when `exact`."""

    generation: int
    owner: str
    tokens: Tokens
    exact: bool
    unproved: RestoreRecord | None = None
    ahead: ReadAhead = NOTHING_AHEAD  # of those tokens

    def serves(self, prompt: Tokens, can_cut: bool) -> int:
        """How many of the prompt's tokens it can serve: all that are shared, or, where it cannot be cut, all or none.

        Of contents whose tail is not known (`exact` false) only the engine can tell; they are taken to extend.
        """
        shared = common_prefix(self.tokens, prompt)
        return shared if can_cut or shared == len(self.tokens) else 0


class Slot:
    """One of the engine's sequences. Whoever needs it has it from restore to save: no two owners ever mix."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.scheduler = Scheduler()
        self.contents: SlotContents | None = None  # None: nothing is known of it
        self.save_point = ""  # the one that was saved from it last, or restored into it

    def holds(self, generation: int | None = None) -> str | None:
        """Whose state is in it (of that engine process, if given)."""
        contents = self.contents
        if contents is None or (generation is not None and contents.generation != generation):
            return None
        return contents.owner

    def known(self, engine: ReadyEngine) -> SlotContents | None:
        """Its contents, if this process still has them."""
        if self.holds(engine.generation) is None:
            self.forget()
        return self.contents

    def proved(self) -> None:
        """What was restored into it has shown what it was worth."""
        if self.contents:
            self.contents = replace(self.contents, unproved=None)

    def forget(self) -> None:
        """Nothing is known of it any more."""
        self.contents = None


class Slots:
    """The slots, of which there is one, with all that their owners share. Locks are taken by who works in a slot."""

    def __init__(self, store: SavePointStore) -> None:
        self.slot = Slot()
        self.store = store
        self.restore_cost = RestoreCost()
        self.finishing = Finishing()
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

    def discard(self, owner: str) -> asyncio.Task[int]:
        """The owner is gone: nothing of it stays in the store. Begun under the slot's lock, awaited without it."""
        if self.slot.holds() == owner:
            self.slot.forget()
        return self.in_order(asyncio.to_thread(self.store.delete_conversation, owner))

    def discard_messages(self, owner: str, labels: Collection[str]) -> asyncio.Task[int]:
        """What was saved under these labels goes, of an owner that stays. As `discard`."""
        return self.in_order(asyncio.to_thread(self.store.delete_messages, owner, labels))
