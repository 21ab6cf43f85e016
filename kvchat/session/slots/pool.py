"""All of the engine's slots: who may use them, and the store behind them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kvchat.kvstore.savepoint import AbsorbReport, Tokens
from kvchat.kvstore.store import SavePointStore
from kvchat.session.finishing import Finishing
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_cost import LEAST_GAIN, RestoreCost
from kvchat.session.slots.rank import Rank
from kvchat.session.slots.scheduler import Scheduler
from kvchat.session.slots.sharing import SharedContext, Steps
from kvchat.session.slots.slot import Slot, SlotContents

SOON_S = 0.5  # a free list takes milliseconds
R = TypeVar("R")


class Slots:
    """The slots, with all that their owners share. Belongs to the event loop's thread."""

    def __init__(self, store: SavePointStore) -> None:
        self.all = [Slot(0)]  # as many as the engine has, once one has said so
        self.changed: Callable[[], None] = lambda: None  # there are more or fewer
        self.store = store
        self.restore_cost = RestoreCost()
        self.finishing = Finishing()
        self._scheduler = Scheduler(lambda: self.all, self._choose)
        self._can_cut = True  # states
        self.context = SharedContext(lambda: self.all, self._scheduler)
        self.steps = Steps(self._scheduler, self.context)
        self._written: asyncio.Task[Any] | None = None  # what was last begun to be written into the store's list

    @property
    def free(self) -> bool:
        """Whether nobody has a slot or waits for one."""
        return self._scheduler.free

    def of(self, owner: str) -> Slot | None:
        """The slot that holds this owner's state, if one does."""
        return next((slot for slot in self.all if slot.holds() == owner), None)

    def owners(self) -> list[str]:
        """Whose state is in them, the one used last first."""
        slots = sorted(self.all, key=lambda slot: -slot.used_at)
        return [owner for slot in slots if (owner := slot.holds()) is not None]

    def best(self, owner: str, prompt: Tokens, engine: ReadyEngine) -> tuple[SlotContents | None, int]:
        """What is in the slot that `needed` would give for this prompt, and how many of its tokens that serves."""
        slot = self.of(owner) or self._choose(owner, prompt, self.all, ())
        contents = slot.readable(engine, owner) if slot else None
        return contents, contents.serves(prompt, engine.can_cut) if contents else 0

    def fit(self, engine: ReadyEngine, slot: Slot) -> None:
        """As many as this engine has, `slot` among them. Under `alone`, where there were more or fewer."""
        self._can_cut, many = engine.can_cut, len(engine.slots)
        if len(self.all) != many or slot not in self.all:
            others = [other for other in self.all if other is not slot]
            others += [Slot() for _ in range(many - 1 - len(others))]
            self.all = [slot, *others[: many - 1]]
            for number, one in enumerate(self.all):
                one.number = number
            self.changed()

    def needed(
        self, owner: str, prompt: Tokens = (), *, window: bool = True
    ) -> contextlib.AbstractAsyncContextManager[Slot]:
        """A slot for whoever is waited for, as soon as there is one that nobody else is waited for in.

        The owner's own, or, of a `prompt`, the one that holds most of it; else an empty one, else the one that was left
        alone longest. Whoever sits at the `window` goes first, and one slot of several is left to it; of its owners
        each has no more than one.
        """
        return self._scheduler.needed(owner, prompt, window=window)

    async def run(
        self,
        rank: Rank,
        owner: str,
        work: Callable[[Slot, Callable[[], bool]], Coroutine[Any, Any, R]],
        *,
        wait: bool = True,
        beside: bool = False,
    ) -> R | None:
        """Do it in a slot when nobody needs one and nothing more urgent is to be done; None if it was ended early.

        `work` is given the slot, and a call that tells whether it may go on: between two steps it ends by itself where
        it may not. Without `wait` it is done now or, answering None, not at all. `beside`: it has the engine compute
        nothing, and so may be done while others are answered in other slots.
        """
        return await self._scheduler.run(rank, owner, work, wait=wait, beside=beside)

    def alone(self, slot: Slot | None = None) -> contextlib.AbstractAsyncContextManager[None]:
        """Every slot, for what changes the engine: once nobody uses another than `slot`, which the caller has."""
        return self._scheduler.alone(slot)

    def giving_none(self) -> contextlib.AbstractContextManager[Awaitable[None]]:
        """No slot is given any more, whoever asks; gives what waits until those that are in use are left."""
        return self._scheduler.giving_none()

    def settling(
        self, slot: Slot, end: Callable[[], object], hurry: Callable[[], object] | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """What the holder of the slot does from now on nobody waits for; `end` ends it early, for another `hurry`.

        Other programs wait for it up to a tenth of what reading it all again would take.
        """
        lost_ms = self.restore_cost.prefill_ms(len(slot.contents.tokens)) if slot.contents else 0.0
        return self._scheduler.settling(slot, end, hurry or end, lost_ms / 1000)

    def saved_soon(self, owner: str, prompt: Tokens) -> int:
        """How many tokens of the owner's prompt that serves which is being settled and saved."""
        settled = [slot for slot in self._scheduler.settled() if slot.is_readable_by(owner)]
        contents = [slot.contents for slot in settled if slot.contents]
        return max((one.serves(prompt, self._can_cut) for one in contents), default=0)

    async def moved(self) -> None:
        """Until somebody has come or gone."""
        await self._scheduler.moved()

    @property
    def window_used(self) -> bool:
        """Whether somebody sits at the window, or did a moment ago."""
        return self._scheduler.window_used

    def wanted_by(self, owner: str) -> contextlib.AbstractContextManager[None]:
        """Somebody waits for a slot, for this owner, or has it: meanwhile nothing is computed in spare time."""
        return self._scheduler.wanted_by(owner)

    async def quiet(self, rank: Rank, patience_s: float) -> None:
        """Wait, but no longer than so long, until nobody needs a slot and nothing more urgent is done."""
        await self._scheduler.quiet(rank, patience_s)

    def end(self, rank: Rank | None = None, *, but: str | None = None) -> None:
        """End what is done in spare time, of a rank or any but settling; `but` that owner's ends between two steps."""
        self._scheduler.end(rank, but=but)

    async def apart(self, owners: Collection[str]) -> None:
        """Once no slot is in the hands of these owners."""
        await self._scheduler.apart(owners)

    def talks(self, slot: Slot) -> None:
        """The words of a reply come."""
        slot.talks = True
        self._scheduler.move()

    def forget(self) -> None:
        """Nothing is known of any slot any more."""
        for slot in self.all:
            slot.forget()

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

    def _choose(self, owner: str, prompt: Tokens, free: Sequence[Slot], soon: Sequence[Slot]) -> Slot | None:
        """Of the slots that are free, or will be soon."""
        if not prompt and (own := self.of(owner)) in (*free, *soon):
            return own
        readable = [slot for slot in (*free, *soon) if slot.is_readable_by(owner)] if prompt else ()
        served = {slot: self._served(slot, prompt) for slot in readable}
        extended = [slot for slot in served if slot.contents and served[slot] == len(slot.contents.tokens)]
        if extended:
            return max(extended, key=served.__getitem__)
        left_alone = min(free, key=lambda slot: (slot.contents is not None, slot.used_at), default=None)
        best = max(served, key=served.__getitem__, default=None)
        # What is cut off for it is lost to others, and most often kept: an empty slot is better.
        if best is not None and served[best] and (left_alone is None or left_alone.contents):
            return best
        return left_alone

    def _served(self, slot: Slot, prompt: Tokens) -> int:
        """How many tokens of a prompt a slot serves; 0 where that is less than what would be thrown away for it."""
        contents = slot.contents
        served = contents.serves(prompt, self._can_cut) if contents else 0
        return served if contents and served >= max(LEAST_GAIN, len(contents.tokens) // 2) else 0
