"""A slot in an owner's hands: who may go on from its rows, and what was restored into it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator

from kvchat.engine.speaking.errors import EngineError, EngineGone, EngineRefused
from kvchat.kvstore.audience import NOBODY, audience_of, is_imported
from kvchat.kvstore.savepoint import (
    Cancelled,
    Miss,
    RestorePlan,
    SavePoint,
    StagedFile,
    StoreRefused,
    Tokens,
    common_prefix,
)
from kvchat.session.events import Restoring, Tell
from kvchat.session.host import ReadyEngine
from kvchat.session.proof import RestoreRecord
from kvchat.session.slots.pool import Slots
from kvchat.session.slots.slot import Slot
from kvchat.system.concurrency import to_its_end
from kvchat.words.reasons import Reason, ReasonCode


class Holding:
    """A slot in an owner's hands, on one engine process; as long as the slot is the owner's."""

    def __init__(self, slots: Slots, slot: Slot, engine: ReadyEngine, owner: str, tell: Tell) -> None:
        self.slots, self.slot, self.engine, self.owner = slots, slot, engine.on_slot(slot.number), owner
        self._store, self._tell = slots.store, tell
        slot.of_process(engine.generation)
        slot.audience = audience_of(owner) if slot.audience is None else slot.audience

    async def take_over(self, reader: str = "") -> None:
        """Erase the slot unless its rows may serve the owner: the engine would go on from whatever begins alike.

        `reader`: whose rows may serve it, if not the owner's.
        """
        slot = self.slot
        unreadable = not slot.is_readable_by(reader or self.owner)
        if unreadable or (is_imported(slot.audience) and not slot.known(self.engine)):
            await self._empty(slot)
            slot.emptied()
        if not is_imported(slot.audience):
            slot.audience = audience_of(self.owner)

    async def erase_all(self) -> None:
        """Erase every slot, for requests that use those they like; nobody goes on from what they leave."""
        for slot in self.slots.all:
            await self._empty(slot)

    async def keep_to_its_slot(self, prompt: Tokens) -> None:
        """Leave the engine no other slot for a prompt that cannot be pinned to this one, which lacks its last token.

        The engine takes the idle slot that shares most leading tokens with the prompt, the first of several; with an
        empty `prompt`, whose tokens are not known, it may take any. What nobody uses is erased. Somebody else's slot is
        idle between two requests, too, so that is waited for if it has more of the prompt. No two wait for each other:
        their prompts would have to be the same, and then only the second slot waits.

        Should another slot become the better one even now, its rows are of the same tokens: neither the answer nor its
        counts tell anything of it.
        """
        mine = self.slot

        def is_rival(other: Slot) -> bool:
            if other is mine or other.is_readable_by(self.owner):
                return False
            if other.contents is None or not prompt:
                return not other.claim
            return common_prefix(other.contents.tokens, prompt) + (other.number < mine.number) >= len(prompt)

        while rivals := [one for one in self.slots.all if is_rival(one)]:
            for other in rivals:
                if not other.claim:
                    await self._empty(other)
                    other.audience = mine.audience
            if any(other.claim for other in rivals):
                await self.slots.moved()

    @contextlib.asynccontextmanager
    async def at_risk(self, reason: ReasonCode = ReasonCode.FAILED_OVER_USE) -> AsyncIterator[None]:
        """Around a request in the slot: if it fails, set aside what was restored there and is not proved.

        The error says so (`over_restore`): the same request may be sent again, to be read from its beginning. A 200
        from a restore proves nothing: with a damaged file the engine aborts, or fails, at the next request.
        """
        try:
            yield
        except EngineError as error:
            point = self.slot.suspect
            if point is not None and await _may_be_its_fault(error):
                error.over_restore, self.slot.suspect = Reason(reason), None
                await self.set_aside(point, error.over_restore)
                if isinstance(error, EngineRefused):
                    self.slot.emptied()
                    with contextlib.suppress(EngineError):  # one that is gone has nothing in it
                        await self.engine.engine.erase_slot()
            raise

    async def restore(self, plan: RestorePlan) -> RestoreRecord | Miss:
        """Stage and restore; a failed restore leaves an empty slot. Raises EngineGone if the engine dies over it."""
        engine, slot, point = self.engine.engine, self.slot, plan.save_point
        self._tell(Restoring(plan.bytes, plan.tokens_used))
        started = time.perf_counter()
        async with self._staged(plan) as staged:
            if isinstance(staged, Miss):
                return staged
            if staged.n_tokens > self.engine.context_size:  # the engine would refuse a good state
                return Miss(Reason(ReasonCode.TOO_LARGE_NOW))
            if staged.n_tokens > slot.claim:
                await self.slots.context.room(slot, self.engine, staged.n_tokens)
            slot.forget()
            slot.audience, slot.suspect = NOBODY, point
            try:
                async with self.at_risk(ReasonCode.DIED_OVER_RESTORE):
                    answer = await engine.restore_slot(staged.path.name)
            except EngineRefused as refusal:
                reason = Reason(ReasonCode.REFUSED, {"message": refusal.message})
                slot.emptied()
                if not refusal.over_restore:
                    await self.set_aside(point, reason)
                return Miss(reason)
        if answer.n_restored != staged.n_tokens:
            reason = Reason(ReasonCode.LOADED_LESS, {"loaded": answer.n_restored, "tokens": staged.n_tokens})
            await self.set_aside(point, reason)
            await engine.erase_slot()
            slot.emptied()
            return Miss(reason)
        finished = time.perf_counter()
        self._note_save_point(point, staged.n_tokens)
        slot.audience = point.audience if is_imported(point.audience) else audience_of(self.owner)
        return RestoreRecord(point, staged.n_tokens, staged.tier, answer.n_read, 1000 * (finished - started), finished)

    async def set_aside(self, point: SavePoint, reason: Reason) -> None:
        """Take a save point out of use. A store that cannot even do that must not cost the reply: it is tried again."""

        async def set_aside() -> None:
            with contextlib.suppress(StoreRefused):
                await asyncio.to_thread(self._store.set_aside, point, reason)

        await self.slots.soon(set_aside())

    def _note_save_point(self, point: SavePoint, tokens: int) -> None:
        """What the slot holds now is a save point's: its rows need not be saved again."""
        self.slot.save_point = point.id
        self.engine.engine.rows.count_as_saved(tokens)

    async def _empty(self, slot: Slot) -> None:
        """Erase a slot; nobody may read it until it is said who. Raises EngineGone."""
        slot.forget()
        slot.audience = NOBODY
        engine = self.engine.on_slot(slot.number).engine
        try:
            await engine.erase_slot()
        except EngineRefused:  # a server without slot files: one token takes the place of all
            await engine.prefill((0,))

    @contextlib.asynccontextmanager
    async def _staged(self, plan: RestorePlan) -> AsyncIterator[StagedFile | Miss]:
        """The save point's file in the slot folder, gone again at the end.

        Cancelled half-way it ends soon: gigabytes are not put together for nobody.
        """
        engine, cancelled = self.engine, threading.Event()
        work = asyncio.to_thread(
            self._store.stage, plan, engine.slot_path, window=engine.window_to_complete, cancelled=cancelled.is_set
        )
        staging = asyncio.ensure_future(work)
        try:
            yield await asyncio.shield(staging)
        finally:
            cancelled.set()
            await to_its_end(self._unstage(staging))  # whoever is cancelled twice would leave the file

    async def _unstage(self, staging: asyncio.Future[StagedFile | Miss]) -> None:
        """What came of staging is gone again; nothing, where it was cancelled in time."""
        with contextlib.suppress(Cancelled):
            staged = await staging
            if not isinstance(staged, Miss):
                await asyncio.to_thread(self._store.unstage, staged)


async def _may_be_its_fault(error: EngineError) -> bool:
    """True if what the slot held may be why a request failed: no engine was stopped or killed, nor out of room."""
    if isinstance(error, EngineRefused):
        return error.by_engine
    killed = isinstance(error, EngineGone) and error.life and await error.life.ends_soon() and not error.life.crashed
    return not killed
