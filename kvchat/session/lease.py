"""A slot leased to an owner: controls whose rows it uses, loads the best state, proves, settles, saves."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from kvchat.engine.api.errors import EngineError, EngineGone, EngineRefused
from kvchat.engine.api.wire import ChatMessage, PromptProgress, Timings
from kvchat.kvstore import disk
from kvchat.kvstore.savepoint import (
    NO_AUDIENCE,
    NotSaved,
    Predecessor,
    RestoreMiss,
    RestorePlan,
    SavePoint,
    StagedFile,
    StoreRefused,
    Tokens,
    audience_of,
    common_prefix,
    is_imported,
)
from kvchat.session.events import EventHandler, Restored, RestoreFailed, Restoring, Saved, SaveSkipped
from kvchat.session.host import ReadyEngine
from kvchat.session.proof import LoadedState, RestoreRecord, Verdict, judge_load
from kvchat.session.restore_cost import LONG_PREFILL_MS, MIN_GAIN
from kvchat.session.slot import Slot, SlotContents, find_save_point, plan_load, state_without_restore
from kvchat.session.slots import Slots
from kvchat.system.concurrency import in_thread, shielded
from kvchat.text.reasons import Reason, ReasonCode

_NEXT_TOKEN = -1  # placeholder for the first token after a boundary
# Two next messages that differ at the first character: the shared prompt prefix ends before both.
BOUNDARY_PROBES = ("A", "7")


def reason_for_save_failure(error: Exception) -> Reason:
    if isinstance(error, NotSaved):
        return error.reason
    return Reason(ReasonCode.ERROR, {"message": error.message if isinstance(error, EngineRefused) else str(error)})


class Lease:
    def __init__(self, slots: Slots, slot: Slot, engine: ReadyEngine, owner: str, notify: EventHandler) -> None:
        self.slots, self.slot, self.owner = slots, slot, owner
        bound = engine.for_slot(slot.number)
        self.engine = replace(bound, engine=bound.engine.for_chat(owner)) if engine.keeps_memory else bound
        self._store, self._notify = slots.store, notify
        if slot.generation != engine.generation:  # a new process starts empty
            slot.mark_empty()
            slot.generation, slot.audience = engine.generation, None
        slot.audience = audience_of(owner) if slot.audience is None else slot.audience

    @property
    def saving_enabled(self) -> bool:
        """True if the engine supports saving and the store works."""
        return self.engine.supports_saving and self._store.problem is None

    # Access to the slot's rows

    async def take_over_slot(self, reader: str = "") -> None:
        """Erase the slot unless the owner may use its rows: the engine would reuse any common prefix.

        `reader`: the owner whose rows may be used, if not this one.
        """
        slot = self.slot
        unreadable = not slot.is_readable_by(reader or self.owner)
        if unreadable or (is_imported(slot.audience) and not slot.known_contents(self.engine)):
            await self._erase(slot)
            slot.mark_empty()
        if not is_imported(slot.audience):
            slot.audience = audience_of(self.owner)

    async def erase_all(self) -> None:
        """Erase every slot before a request that the engine may run in any of them and whose state is never reused."""
        for slot in self.slots.all_slots:
            await self._erase(slot)

    async def isolate_slot(self, prompt: Tokens) -> None:
        """Make this the only slot the engine can pick for a prompt that cannot be pinned to it.

        The engine picks the idle slot with the longest common prefix (the first of several); if `prompt` is empty
        because its tokens are unknown, it may pick any. Other slots that it might pick are erased if unused. A slot in
        use is idle between two requests as well, so this waits for a slot that holds more of the prompt. It cannot
        deadlock: both prompts would have to be equal, and then only the second slot waits. If another slot still
        becomes the better match, its rows are of the same tokens and reveal nothing.
        """
        mine = self.slot

        def is_rival(other: Slot) -> bool:
            if other is mine or other.is_readable_by(self.owner):
                return False
            if other.contents is None or not prompt:
                return not other.claimed_tokens
            return common_prefix(other.contents.tokens, prompt) + (other.number < mine.number) >= len(prompt)

        while rivals := [slot for slot in self.slots.all_slots if is_rival(slot)]:
            for other in rivals:
                if not other.claimed_tokens:
                    await self._erase(other)
                    other.audience = mine.audience
            if any(other.claimed_tokens for other in rivals):
                await self.slots.changed.wait()

    async def _erase(self, slot: Slot) -> None:
        """Erase a slot and set its audience to NO_AUDIENCE. Raises EngineGone."""
        slot.forget()
        slot.audience = NO_AUDIENCE
        engine = self.engine.for_slot(slot.number).engine
        try:
            await engine.erase_slot()
        except EngineRefused:  # a server without slot files: one token replaces all
            await engine.prefill((0,))

    @contextlib.asynccontextmanager
    async def guarding_restore(self, reason: ReasonCode = ReasonCode.FAILED_OVER_USE) -> AsyncIterator[None]:
        """Guard a request in the slot: if it fails, set aside the unproved save point restored there.

        The error records this (`restore_fault`): the request may be resent and processed from the start. A 200
        from a restore proves nothing: with a damaged file the engine aborts or fails at the next request.
        """
        try:
            yield
        except EngineError as error:
            if isinstance(error, EngineRefused):
                is_fault = error.is_engine_fault
            else:  # a stopped or killed engine did not fail over its slot's state
                lifetime = error.lifetime if isinstance(error, EngineGone) else None
                is_fault = lifetime is None or not await lifetime.wait_for_end() or lifetime.crashed
            if (suspect := self.slot.unproved_point) is not None and is_fault:
                error.restore_fault, self.slot.unproved_point = Reason(reason), None
                await self._set_aside(suspect, error.restore_fault)
                if isinstance(error, EngineRefused):
                    self.slot.mark_empty()
                    with contextlib.suppress(EngineError):  # a stopped engine has no slots
                        await self.engine.engine.erase_slot()
            raise

    # Loading

    async def load(
        self, prompt: Tokens, reserve: int = 0, *, skip_reason: Reason | None = None, reader: str = ""
    ) -> LoadedState:
        """Restore the save point that leaves the fewest tokens of `prompt` to prefill.

        `reserve`: tokens to keep free after the prompt. `skip_reason`: if set, restore nothing. `reader`: owner whose
        memory may be used (default: the lease's owner). A bad save point is set aside and the prompt is prefilled.
        Raises EngineGone if restoring kills the engine.
        """
        cost, slot, reader = self.slots.restore_cost, self.slot, reader or self.owner
        cost.use_model(self.engine.fingerprint.model)
        await self.slots.reserve_room(slot, self.engine, min(len(prompt) + reserve, self.engine.context_size))
        contents = slot.readable_contents(self.engine, reader)
        if skip_reason:
            await self.take_over_slot(reader)
            return replace(state_without_restore(self.engine, contents, prompt), miss_reason=skip_reason)
        plan = await plan_load(self._store, self.engine, reader, contents, prompt, cost.is_worth_trying)
        if plan.restore is None:
            await self.take_over_slot(reader)
            return plan.without_restore
        outcome = await self.restore(plan.restore)
        if isinstance(outcome, RestoreMiss):
            await self.take_over_slot()
            self._notify(RestoreFailed(outcome.reason))
            return LoadedState(0, None, miss_reason=outcome.reason)
        return LoadedState(plan.reused_tokens, outcome, miss_reason=None)

    async def load_boundary(self, boundary: Tokens) -> LoadedState:
        """Load the best state for a prompt that continues after a turn boundary.

        A state that cannot be cut is usable only for longer prompts, so a search for the boundary itself would find an
        older one.
        """
        return await self.load((*boundary, _NEXT_TOKEN))

    async def wait_for_pending_saves(self, prompt: Tokens) -> None:
        """Wait for other slots' unfinished saves that cover more of the prompt than any save point.

        Waits at most half the time that processing those tokens would take.
        """
        slots, contents = self.slots, self.slot.readable_contents(self.engine, self.owner)
        held_tokens = state_without_restore(self.engine, contents, prompt).expected_cached
        pending = partial(slots.pending_save_tokens, self.owner, prompt)
        if not self.saving_enabled or pending() - held_tokens < MIN_GAIN:
            return
        held_tokens = max(held_tokens, await self._saved_tokens(prompt))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(slots.restore_cost.prefill_ms(pending() - held_tokens) / 2000):
                while pending() - held_tokens >= MIN_GAIN:
                    await slots.changed.wait()

    async def restore(self, plan: RestorePlan) -> RestoreRecord | RestoreMiss:
        """Stage and restore a save point's file; a failure empties the slot. Raises EngineGone if the engine dies."""
        engine, slot, point = self.engine.engine, self.slot, plan.save_point
        self._notify(Restoring(plan.bytes, plan.tokens_used))
        started = time.perf_counter()
        async with self._stage_file(plan) as staged:
            if isinstance(staged, RestoreMiss):
                return staged
            if staged.n_tokens > self.engine.context_size:  # the engine would refuse a good state
                return RestoreMiss(Reason(ReasonCode.TOO_LARGE_NOW))
            if staged.n_tokens > slot.claimed_tokens:
                await self.slots.reserve_room(slot, self.engine, staged.n_tokens)
            slot.forget()
            slot.audience, slot.unproved_point = NO_AUDIENCE, point
            try:
                async with self.guarding_restore(ReasonCode.DIED_OVER_RESTORE):
                    answer = await engine.restore_slot(staged.path.name)
            except EngineRefused as refusal:
                reason = Reason(ReasonCode.REFUSED, {"message": refusal.message})
                slot.mark_empty()
                if not refusal.restore_fault:
                    await self._set_aside(point, reason)
                return RestoreMiss(reason)
        if answer.tokens != staged.n_tokens:
            reason = Reason(ReasonCode.LOADED_LESS, {"loaded": answer.tokens, "tokens": staged.n_tokens})
            await self._set_aside(point, reason)
            await engine.erase_slot()
            slot.mark_empty()
            return RestoreMiss(reason)
        finished = time.perf_counter()
        slot.save_point = point.id
        engine.rows.mark_saved(staged.n_tokens)
        slot.audience = point.audience if is_imported(point.audience) else audience_of(self.owner)
        ms, tokens = 1000 * (finished - started), point.tokens[: staged.n_tokens]
        record = RestoreRecord(point, staged.n_tokens, staged.tier, answer.file_bytes, ms, finished)
        slot.set_contents(SlotContents(self.owner, tokens, is_exact=True, unproved_restore=record))
        self.slots.restore_cost.record_restore(record.bytes, ms)
        self._notify(Restored(record.bytes, record.n_tokens, ms))
        return record

    @contextlib.asynccontextmanager
    async def _stage_file(self, plan: RestorePlan) -> AsyncIterator[StagedFile | RestoreMiss]:
        """Put the save point's file into the slot folder and remove it afterwards. Ends soon if cancelled."""
        engine, restorer, engine_done = self.engine, self._store.restorer, False
        staged: list[StagedFile | RestoreMiss] = []

        def stage(stop: threading.Event) -> None:
            window = engine.window_to_complete
            staged.append(restorer.stage(plan, engine.slot_path, window=window, cancelled=stop.is_set))

        try:
            await in_thread(stage)
            yield staged[0]
            engine_done = True
        finally:
            for file in staged:
                if isinstance(file, StagedFile):  # shielded: a second cancellation would leave the file
                    await shielded(asyncio.to_thread(restorer.unstage, file, engine_done=engine_done))

    async def prove(self, loaded: LoadedState, cached: int, prompt: int) -> Verdict:
        """Judge a load by the next request: `cached` of its `prompt` tokens came from the engine's cache.

        If the engine did not use the restored state at all, the save point is not used again.
        """
        self.slot.mark_proved()
        verdict = judge_load(loaded, cached, prompt)
        if verdict.miss_reason == Reason(ReasonCode.NOT_REUSED) and not cached and len(self.slots.all_slots) > 1:
            verdict = replace(verdict, miss_reason=Reason(ReasonCode.PURGED))
        if verdict.hollow and loaded.restore and verdict.miss_reason:
            await self._set_aside(loaded.restore.save_point, verdict.miss_reason)
            self._notify(RestoreFailed(verdict.miss_reason, hollow=True))
        return verdict

    async def _set_aside(self, point: SavePoint, reason: Reason) -> None:
        """Take a save point out of use. If the store fails, the reply continues and the save point stays."""
        with contextlib.suppress(StoreRefused):
            await self.slots.writer.run(self._store.inventory.delete_unusable, point.id, reason)

    # Processing

    def note_contents(self, tokens: Tokens, *, is_exact: bool = False, loaded: LoadedState | None = None) -> None:
        """Record that the slot holds at least these tokens. `loaded`: the load that is still unproved, if any."""
        self.slot.set_contents(SlotContents(self.owner, tokens, is_exact, loaded.restore if loaded else None))

    async def turn_boundary(self, history: Sequence[ChatMessage]) -> Tokens:
        """Return the turn boundary after `history`: the tokens that begin every possible next message."""
        calls = history[-1].calls if history and history[-1].role == "assistant" else ()  # their results come next
        role = "tool" if calls else "user"
        first, second = [
            await self.engine.engine.prompt_tokens([*history, ChatMessage(role, probe, calls=calls[:1])])
            for probe in BOUNDARY_PROBES
        ]
        return first[: common_prefix(first, second)]

    async def settle(
        self, boundary: Tokens, progress: Callable[[PromptProgress], None] = lambda progress: None
    ) -> Timings:
        """Make the slot hold exactly `boundary`, processing what is missing. May be cancelled at any point."""
        contents = self.slot.known_contents(self.engine)
        if contents and contents.is_exact and contents.tokens == boundary:
            return Timings(cache_n=len(boundary), prompt_n=0, prompt_ms=0.0, predicted_n=0, predicted_ms=0.0)
        if contents:  # if cancelled now, this much remains
            self.note_contents(boundary[: common_prefix(contents.tokens, boundary)])
        timings = await self.prefill(boundary, progress)
        self.note_contents(boundary, is_exact=True)
        return timings

    async def prefill(
        self, tokens: Tokens, progress: Callable[[PromptProgress], None] = lambda progress: None
    ) -> Timings:
        """Have the engine process these tokens, without recording them as contents."""
        async with self.guarding_restore():
            timings = await self.engine.engine.prefill(tokens, progress)
        self.slot.unproved_point = None
        return timings

    # Saving

    async def is_saved(self, boundary: Tokens) -> bool:
        """True if a save point reaches the turn boundary, up to a few tokens (see `Settling.run`)."""
        return await self._saved_tokens((*boundary, _NEXT_TOKEN)) > len(boundary) - MIN_GAIN

    async def restore_ms(self, boundary: Tokens) -> float | None:
        """Estimate the ms to restore the state at a turn boundary; None if it has no save point."""
        best = await find_save_point(self._store, self.engine, self.owner, (*boundary, _NEXT_TOKEN))
        if isinstance(best, RestoreMiss) or best.tokens_used <= len(boundary) - MIN_GAIN:
            return None
        return best.bytes * (self.slots.restore_cost.restore_ms_per_byte or 0.0)

    async def _saved_tokens(self, prompt: Tokens) -> int:
        best = await find_save_point(self._store, self.engine, self.owner, prompt)
        return 0 if isinstance(best, RestoreMiss) else best.tokens_used

    async def save(
        self, boundary: Tokens, *, label: str | None = None, notify: bool = True, audience: str | None = None
    ) -> SavePoint | None:
        """Save the settled slot to the store. If that fails, publish an event with the reason and return None.

        `label`: id of the owner's item that the save point belongs to, such as a message. Without `notify`, a success
        publishes no event. `audience` defaults to the slot's. Raises EngineGone if the engine dies while saving.
        """
        started, store, engine = time.perf_counter(), self._store, self.engine
        if not engine.can_save(len(boundary)):
            return None
        rows, path = engine.engine.rows, engine.slot_path / f"{disk.engine_file_name()}.slot"
        try:
            written = await self._write_slot_file(path, boundary)
            predecessor = Predecessor(self.slot.save_point, rows.count) if rows.count else None
            prefill_ms, audience = self.slots.restore_cost.prefill_ms(len(boundary)), audience or self.slot.audience
            state = self.owner, engine.fingerprint, boundary, written, prefill_ms, engine.window_to_complete
            point = await self.slots.writer.run(store.saver.add, path, *state, label, predecessor, audience)
        except (StoreRefused, EngineRefused, OSError) as error:
            self._notify(SaveSkipped(reason_for_save_failure(error)))
            return None
        self.slot.save_point = point.id
        rows.mark_saved(len(boundary))
        if notify:
            self._notify(Saved(point.size, point.n_tokens, 1000 * (time.perf_counter() - started)))
        return point

    async def save_processed(self, label: str | None = None) -> bool:
        """Save the known slot contents if reprocessing them would take long; True if saved.

        A state that cannot be cut is saved only if the slot holds nothing else. Raises EngineGone and EngineRefused.
        """
        contents = self.slot.known_contents(self.engine)
        if not contents or contents.owner != self.owner or not self.saving_enabled:
            return False
        if not (contents.is_exact or self.engine.can_cut):
            return False
        missing = len(contents.tokens) - await self._saved_tokens((*contents.tokens, _NEXT_TOKEN))
        if self.slots.restore_cost.prefill_ms(missing) < LONG_PREFILL_MS:
            return False
        await self.settle(contents.tokens)
        return await shielded(self.save(contents.tokens, label=label, notify=False)) is not None

    async def _write_slot_file(self, path: Path, boundary: Tokens) -> int:
        """Have the slot written to `path`; return the bytes. A failure leaves no file.

        Falls back to disk if memory is too small. Raises StoreRefused, EngineRefused and EngineGone.
        """
        save_progress, ready, answer = self.slots.save_progress, self.engine, None
        size = int(len(boundary) * ready.kv_bytes_per_token)
        if save_progress.cancelled.is_set():
            raise NotSaved(Reason(ReasonCode.NOT_WAITED_FOR))
        try:
            await asyncio.to_thread(self._store.saver.prepare_save, size, self.owner, path, ready.fingerprint, boundary)
            with save_progress.track_save(size, path):
                with contextlib.suppress(EngineRefused):
                    async with self.guarding_restore():
                        answer = await ready.engine.save_slot(path.name)
                if answer is None or not answer.file_bytes:
                    await asyncio.to_thread(self._store.staging.discard_saved, path)
                    answer = await ready.engine.save_slot(path.name)
            if answer.tokens != len(boundary):
                raise NotSaved(Reason(ReasonCode.HELD_LESS, {"held": answer.tokens, "tokens": len(boundary)}))
        except BaseException:
            await asyncio.to_thread(self._store.staging.discard_saved, path)
            raise
        return answer.file_bytes
