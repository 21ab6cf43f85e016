"""Slot allocator: decides whose turn it is, which slot they get, and when they release it.

Requests that someone waits for go first. Background work runs by urgency; it ends when someone waits or something
more urgent comes, and its caller restarts it if it is still of use. Slots do not share computing: however many
there are, one background task computes at a time, and none beside a request that someone waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from kvchat.kvstore.savepoint import Tokens
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_cost import MIN_GAIN, RestoreCost
from kvchat.session.slot import Slot, SlotContents
from kvchat.session.slot_request import Priority, RequestState, SlotRequest, StopCallback, Turn
from kvchat.system.concurrency import Interruption

R = TypeVar("R")

ABSORB_TIMEOUT_S = 10.0  # longest time a saved state waits in memory while other work continues
SETTLE_WAIT_S = 1.0  # one owner waits this long for another's settling; most finish and are saved
MAX_SETTLE_WAIT_S = 10.0  # programs wait at most this long
WINDOW_ACTIVE_S = 600.0  # the window counts as in use this long after its last request


class Allocator:
    """Assign slots to their owners. Belongs to the event loop's thread."""

    def __init__(self, restore_cost: RestoreCost) -> None:
        self.all = [Slot(0)]  # as many as the engine reports, once known
        self.restore_cost = restore_cost
        self._can_cut = True
        self._turns: list[Turn] = []  # chat turns: waiting ones, next first, then running ones
        self._pending: list[SlotRequest] = []  # for a slot, the window first
        self._standby: list[SlotRequest] = []  # for idle time
        self._active: list[SlotRequest] = []
        self._changing: list[tuple[SlotRequest | None, asyncio.Future[None]]] = []  # engine changes, in order
        self._window_active_at = -WINDOW_ACTIVE_S  # last time the window got a slot (time.monotonic)
        self._pauses = 0  # engine stops in progress; they block new slots
        self._changed = asyncio.Event()

    # State

    @property
    def is_idle(self) -> bool:
        return not (self._active or self._pending or self._turns)

    def slot_of(self, owner: str) -> Slot | None:
        """Return the slot that holds this owner's state, if one does."""
        return next((slot for slot in self.all if slot.holder() == owner), None)

    def owners(self) -> list[str]:
        slots = sorted(self.all, key=lambda slot: -slot.used_at)
        return [owner for slot in slots if (owner := slot.holder()) is not None]

    def best_contents(self, owner: str, prompt: Tokens, engine: ReadyEngine) -> tuple[SlotContents | None, int]:
        """Return the contents of the slot that `acquire` would give for this prompt, and how many tokens they serve."""
        slot = self.slot_of(owner) or self._choose(SlotRequest(owner, prompt=prompt), self.all, ())
        contents = slot.readable_contents(engine, owner) if slot else None
        return contents, contents.reusable_tokens(prompt, engine.can_cut) if contents else 0

    def match_engine(self, engine: ReadyEngine, slot: Slot) -> None:
        """Match the slots to this engine, keeping `slot`. Call under `exclusive` if their number changes."""
        self._can_cut, many = engine.can_cut, len(engine.slots)
        if len(self.all) != many or slot not in self.all:
            others = [other for other in self.all if other is not slot]
            others += [Slot() for _ in range(many - 1 - len(others))]
            self.all = [slot, *others[: many - 1]]
            for number, there in enumerate(self.all):
                there.number = number
            self.notify_change()

    def forget(self) -> None:
        for slot in self.all:
            slot.forget()

    def pending_save_tokens(self, owner: str, prompt: Tokens) -> int:
        """Count the tokens of the owner's prompt covered by what is being settled and saved."""
        settled = [use.slot for use in self._active if use.state is RequestState.SETTLING and use.slot is not None]
        return max(
            (slot.reusable_tokens(prompt, self._can_cut) for slot in settled if slot.is_readable_by(owner)), default=0
        )

    # Chat turns

    @contextlib.asynccontextmanager
    async def turn(
        self, owner: str, model: str | None, on_wait: Callable[[str], object] = lambda other: None
    ) -> AsyncIterator[None]:
        """Wait for a chat's turn: first come, first served, unless one is put first.

        There are as many turns at a time as slots, one per chat, all with one model. `on_wait` gets the id of a chat
        answered while this one waits. Background work stops: the same owner's ends cleanly, another's ends at once
        or, if it is settling, after a delay.
        """
        me, told = Turn(owner, model), ""
        self._turns.append(me)
        self._clear_way(owner, waits=any(use.owner == owner for use in self._pending))
        try:
            while not self._may_begin(me):
                if (ahead := self.ahead_of(owner)) is not None and ahead != told:
                    told = ahead
                    on_wait(ahead)
                await self._changed.wait()
            me.begun = True
            self._turns.remove(me)
            self._turns.append(me)  # behind earlier ones
            self.notify_change()
            yield
        finally:
            self._turns.remove(me)
            self._dispatch()

    def ahead_of(self, owner: str) -> str | None:
        """Return a chat being answered while this one waits for a slot; None if it does not wait."""
        answered = [turn.owner for turn in self._turns if turn.begun]
        me = next((turn for turn in self._turns if turn.owner == owner and not turn.begun), None)
        return answered[0] if me and owner not in answered and self._is_full_for(me) else None

    def move_to_front(self, owner: str) -> None:
        self._turns.sort(key=lambda turn: turn.owner != owner)
        self.notify_change()

    def _may_begin(self, me: Turn) -> bool:
        answered = {turn.owner for turn in self._turns if turn.begun}
        following = next((turn for turn in self._turns if not turn.begun and turn.owner not in answered), None)
        return following is me and not self._is_full_for(me)

    def _is_full_for(self, me: Turn) -> bool:
        models = [turn.model for turn in self._turns if turn.begun]
        return len(models) >= len(self.all) or any(model != me.model for model in models)

    # A slot

    @contextlib.asynccontextmanager
    async def acquire(self, owner: str, prompt: Tokens = (), *, window: bool = True) -> AsyncIterator[Slot]:
        """Yield a slot for a request, as soon as one is not in use for another.

        Picks the owner's slot or, given a `prompt`, the one holding most of it; else an empty one, else the least
        recently used. `window` requests go first; one of several slots is reserved for them, and each owner has at most
        one. A program's requests are one conversation if their prompts extend each other.
        """
        use = SlotRequest(owner, prompt=prompt, window=window)
        self._pending = sorted([*self._pending, use], key=lambda use: not use.window)
        self._dispatch()
        self._clear_way(owner, use, waits=use in self._pending)
        try:
            yield await use.granted
        finally:
            self._release(use)

    async def run_background(
        self,
        priority: Priority,
        owner: str,
        work: Callable[[Slot, Callable[[], bool]], Coroutine[Any, Any, R]],
        *,
        wait: bool = True,
        concurrent: bool = False,
    ) -> R | None:
        """Do background work in a slot when nobody needs one and nothing is more urgent; None if ended early.

        `work` gets the slot and a function that says whether to continue, to check between steps. Without `wait`, run
        now or return None. `concurrent`: it uses no engine computation, so it may run during replies in other slots.
        """
        steps = Interruption()
        me = SlotRequest(owner, RequestState.STANDBY, priority, steps.interrupt, concurrent=concurrent)
        less_urgent = [use for use in self._active if use.state is RequestState.BACKGROUND and use.priority > priority]
        for use in less_urgent:
            self._stop(use)
        self._standby.append(me)
        self._dispatch()
        try:
            if not wait and not less_urgent and me.slot is None:
                return None
            slot = await me.granted
            return await steps.run(work(slot, lambda: me.should_continue)) if me.should_continue else None
        finally:
            self._release(me)

    @contextlib.contextmanager
    def settling(self, slot: Slot, stop: StopCallback, hurry: StopCallback | None = None) -> Iterator[None]:
        """Mark the slot's holder as settling, which nobody waits for; `stop` stops it, `hurry` for another owner.

        Other programs wait for it up to a tenth of the time to read everything again.
        """
        me = next(use for use in self._active if use.slot is slot)
        lost_ms = self.restore_cost.prefill_ms(len(slot.contents.tokens)) if slot.contents else 0.0
        me.state, me.stop, me.hurry, me.reprocess_s = RequestState.SETTLING, stop, hurry or stop, lost_ms / 1000
        try:
            if self._is_crowded or self._changing:
                self._stop_later(me, window=bool(self._changing or self._turns) or any(u.window for u in self._pending))
            self._dispatch()
            yield
        finally:
            me.state = RequestState.ACTIVE

    def set_prompt(self, slot: Slot, prompt: Tokens) -> None:
        """Record the prompt of the program in the slot, if unknown when the slot was given."""
        next(use for use in self._active if use.slot is slot).prompt = prompt

    # All slots

    @contextlib.asynccontextmanager
    async def exclusive(self, slot: Slot | None = None) -> AsyncIterator[None]:
        """Hold every slot, to change the engine, once none but `slot`, the caller's own, is in use.

        Nothing new starts meanwhile; what runs is finished. Waiting here counts as having left one's slot, so two
        callers never deadlock.
        """
        me = next((use for use in self._active if slot is not None and use.slot is slot), None)
        entry = me, asyncio.get_running_loop().create_future()
        self._changing.append(entry)
        if me is not None and slot is not None:
            me.idle, slot.claimed_tokens = True, 0
        self._stop_all(use for use in tuple(self._active) if use is not me)
        self._dispatch()
        try:
            await entry[1]
            yield
        finally:
            self._changing.remove(entry)
            if me is not None:
                me.idle = False
            self._dispatch()

    @contextlib.contextmanager
    def paused(self) -> Iterator[Awaitable[None]]:
        """Give out no slots; yield an awaitable that ends once those in use are released."""

        async def released() -> None:
            while self._active:
                await self._changed.wait()

        self._pauses += 1
        try:
            yield released()
        finally:
            self._pauses -= 1
            self._dispatch()

    async def wait_until_released(self, owners: Collection[str]) -> None:
        """Wait until these owners hold no slot, ending their background work."""
        while theirs := [use for use in self._active if use.owner in owners]:
            self._stop_all(theirs)
            await self._changed.wait()

    async def wait_until_quiet(self, priority: Priority, patience_s: float) -> None:
        """Wait at most `patience_s` until nobody needs a slot and nothing more urgent waits."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not self.is_idle or any(use.priority < priority for use in self._standby):
                    await self._changed.wait()

    def stop_background(self, priority: Priority | None = None, *, except_owner: str | None = None) -> None:
        """Stop background work of `priority`, or all of it except settling.

        Work of `except_owner` stops at its next step instead of immediately.
        """
        for use in self._active:
            if use.state is RequestState.BACKGROUND and priority in (None, use.priority):
                use.should_continue = False
                if use.owner != except_owner:
                    use.stop()

    # The window

    def mark_streaming(self, slot: Slot) -> None:
        """Note that the reply is streaming."""
        slot.is_streaming = True
        self.notify_change()

    def window_replies_streaming(self) -> list[bool]:
        """List, for each reply pending in the window, whether it is already streaming."""
        waited = (use for use in (*self._pending, *self._active) if use.window)
        return [
            bool(use.slot and use.slot.is_streaming)
            for use in waited
            if use.state in (RequestState.PENDING, RequestState.ACTIVE)
        ]

    @property
    def is_window_active(self) -> bool:
        """True if the window uses a slot or recently did."""
        now = any(use.window for use in (*self._pending, *self._active))
        return now or time.monotonic() - self._window_active_at < WINDOW_ACTIVE_S

    @property
    def is_window_blocked(self) -> bool:
        """True if the window waits for a slot only a program could free, or for all, to change the engine."""
        owners = {use.owner for use in self._active}
        asked = sum(use.window and use.owner not in owners for use in self._pending)
        soon = sum(
            use.state is not RequestState.ACTIVE or (use.slot is not None and use.slot.is_leaving)
            for use in self._active
        )
        return asked > soon or any(me is not None and me.window for me, _ in self._changing)

    # Scheduling

    async def wait_for_change(self) -> None:
        """Wait for the next queue change."""
        await self._changed.wait()

    def notify_change(self) -> None:
        """Wake everyone who waits."""
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def _is_crowded(self) -> bool:
        there = [*self._pending, *(use for use in self._active if use.state is not RequestState.BACKGROUND)]
        to_come = {turn.owner for turn in self._turns} - {use.owner for use in there}
        return len(there) + len(to_come) > len(self.all)

    def _clear_way(self, owner: str, asks: SlotRequest | None = None, *, waits: bool) -> None:
        """End whatever blocks a pending request.

        `asks`: the request, once it asks for a slot. `waits`: it has none yet.
        """
        crowded, window = self._is_crowded or waits, asks is None or asks.window
        for use in tuple(self._active):
            if use.state is RequestState.SETTLING:
                follows = asks.continues(use) if asks else use.owner == owner
                if follows and (window or not self._pending or self._pending[0].continues(use)):  # it is next
                    self._stop(use)
                elif crowded:
                    self._stop_later(use, window=window)
            elif use.state is RequestState.BACKGROUND:
                if use.owner == owner and use.priority is Priority.PREPARE:
                    use.should_continue = False
                elif crowded or not use.concurrent:
                    self._stop(use)

    def _stop_all(self, uses: Iterable[SlotRequest]) -> None:
        for use in uses:
            if use.state is RequestState.SETTLING:
                self._stop_later(use, window=True)
            elif use.state is RequestState.BACKGROUND:
                self._stop(use)

    @staticmethod
    def _stop_later(use: SlotRequest, *, window: bool) -> None:
        """End settling after a delay; usually it ends by itself first. `window`: the window waits for it."""
        use.should_continue, patience_s = False, 0.0 if window else min(use.reprocess_s / 10, MAX_SETTLE_WAIT_S)
        asyncio.get_running_loop().call_later(max(patience_s, SETTLE_WAIT_S), use.hurry)

    @staticmethod
    def _stop(use: SlotRequest) -> None:
        use.should_continue = False
        use.stop()

    def _release(self, use: SlotRequest) -> None:
        for queue in (self._pending, self._standby, self._active):
            if use in queue:
                queue.remove(use)
        use.granted.cancel()
        if use.slot is not None:
            use.slot.mark_released()
        self._dispatch(spare=False)
        asyncio.get_running_loop().call_soon(self._dispatch)  # its owner may continue first

    def _dispatch(self, *, spare: bool = True) -> None:
        if self._changing:
            me, all_idle = self._changing[0]
            if not all_idle.done() and all(use is me or use.idle for use in self._active):
                all_idle.set_result(None)
        elif not self._pauses:
            for use in tuple(self._pending):
                if self._grant(use):
                    self._pending.remove(use)
            if spare and not self._pending and all(use.state is not RequestState.BACKGROUND for use in self._active):
                busy = bool(self._active or self._turns)
                for use in sorted(self._standby, key=lambda use: use.priority):
                    if (use.concurrent or not busy) and self._grant(use):
                        self._standby.remove(use)
                        break
        self.notify_change()

    def _grant(self, use: SlotRequest) -> bool:
        if use.granted.done():
            return False
        taken = {other.slot: other.state for other in self._active}
        free = [slot for slot in self.all if slot not in taken]
        soon = [slot for slot, state in taken.items() if slot is not None and state is RequestState.BACKGROUND]
        programs = sum(not other.window and other.state is RequestState.ACTIVE for other in self._active)
        if not use.window and programs and programs >= len(self.all) - self.is_window_active:
            return False  # leave a slot for the window if there are several and it is used
        if any(use.continues(other) and (use.window or other.state is RequestState.SETTLING) for other in self._active):
            return False  # wait for the slot that holds its state
        slot = self._choose(use, free, soon)
        if slot is None or slot not in free:
            return False
        use.state = RequestState.BACKGROUND if use.state is RequestState.STANDBY else RequestState.ACTIVE
        self._active.append(use)
        slot.mark_taken(window=use.window)
        self._window_active_at = time.monotonic() if use.window else self._window_active_at
        use.granted.set_result(slot)
        return True

    def _choose(self, use: SlotRequest, free: Sequence[Slot], soon: Sequence[Slot]) -> Slot | None:
        prompt = use.prompt
        if use.window and not prompt and (own := self.slot_of(use.owner)) in (*free, *soon):
            return own
        served: dict[Slot, int] = {}
        for slot in (*free, *soon) if prompt else ():
            if slot.is_readable_by(use.owner):
                reusable = slot.reusable_tokens(prompt, self._can_cut)
                least = max(MIN_GAIN, len(slot.contents.tokens) // 2 if slot.contents else 0)
                served[slot] = reusable if reusable >= least else 0  # else it would discard more than it reuses
        extended = [slot for slot in served if slot.contents and served[slot] == len(slot.contents.tokens)]
        if extended:
            return max(extended, key=served.__getitem__)
        left_alone = min(free, key=lambda slot: (slot.contents is not None, slot.used_at), default=None)
        best = max(served, key=served.__getitem__, default=None)
        # Prefer an empty slot: a cut loses tokens for others, and a copy is usually saved.
        if best is not None and served[best] and (left_alone is None or left_alone.contents):
            return best
        return left_alone
