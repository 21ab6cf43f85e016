"""Slot allocator: decides whose turn it is, which slot they get, and when they release it.

Requests of the window and of programs go first. Background work runs in order of urgency; it ends when a request
arrives or more urgent work is queued, and its caller restarts it if it is still useful. However many slots there are,
only one background task computes at a time, and none while a request is being answered.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from kvchat.kvstore.savepoint import Tokens
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_cost import MIN_GAIN, RestoreCost
from kvchat.session.slot import Priority, RequestState, Slot, SlotRequest, StopCallback, Turn
from kvchat.system.concurrency import InterruptibleTask

R = TypeVar("R")

ABSORB_TIMEOUT_S = 10.0  # longest time a saved state waits in memory while other work continues
WINDOW_ACTIVE_S = 600.0  # the window counts as in use this long after its last request


class Allocator:
    """Assign slots to their owners. Belongs to the event loop's thread."""

    def __init__(self, restore_cost: RestoreCost) -> None:
        self.all_slots = [Slot(0)]  # as many as the engine reports, once known
        self.restore_cost = restore_cost
        self.changed = asyncio.Event()  # set, and replaced by a new one, at every change of the queues
        self._can_cut = True
        self._turns: list[Turn] = []  # chat turns: waiting ones, next first, then running ones
        self._pending: list[SlotRequest] = []  # for a slot, the window first
        self._standby: list[SlotRequest] = []  # for idle time
        self._active: list[SlotRequest] = []
        self._engine_changes: list[tuple[SlotRequest | None, asyncio.Future[None]]] = []  # in order
        self._window_active_at = -WINDOW_ACTIVE_S  # last time the window got a slot (time.monotonic)
        self._pauses = 0  # engine stops in progress; they block new slots

    # State

    @property
    def is_idle(self) -> bool:
        return not (self._active or self._pending or self._turns)

    def slot_of(self, owner: str) -> Slot | None:
        """Return the slot that holds this owner's state, or None."""
        return next((slot for slot in self.all_slots if slot.holder == owner), None)

    def owners(self) -> list[str]:
        slots = sorted(self.all_slots, key=lambda slot: -slot.used_at)
        return [owner for slot in slots if (owner := slot.holder) is not None]

    def match_engine(self, engine: ReadyEngine, slot: Slot) -> None:
        """Match the slots to this engine, keeping `slot`. Call under `exclusive` if their number changes."""
        self._can_cut, count = engine.can_cut, len(engine.slots)
        if len(self.all_slots) != count or slot not in self.all_slots:
            others = [other for other in self.all_slots if other is not slot] + [Slot() for _ in range(count)]
            self.all_slots = [slot, *others[: count - 1]]
            for number, numbered in enumerate(self.all_slots):
                numbered.number = number
            self.notify_change()

    def forget(self) -> None:
        for slot in self.all_slots:
            slot.forget()

    def pending_save_tokens(self, owner: str, prompt: Tokens) -> int:
        """Return how much of the prompt the longest unfinished save that the owner may read will cover, in tokens."""
        slots = [request.slot for request in self._active if request.state is RequestState.SETTLING]
        readable = [slot for slot in slots if slot is not None and slot.is_readable_by(owner)]
        return max((slot.reusable_tokens(prompt, self._can_cut) for slot in readable), default=0)

    # Chat turns

    @contextlib.asynccontextmanager
    async def turn(
        self, owner: str, model: str | None, on_wait: Callable[[str], object] = lambda other: None
    ) -> AsyncIterator[None]:
        """Wait for a chat's turn, in order of arrival, except that `move_to_front` puts a chat first.

        As many turns run at the same time as there are slots: one per chat, all with the same model. `on_wait` is
        called with the id of a chat that is being answered while this one waits. Background work stops: the owner's own
        after its current step, that of others immediately or, while it settles, after a delay.
        """
        turn, reported = Turn(owner, model), ""
        self._turns.append(turn)
        self._preempt(owner, is_waiting=any(request.owner == owner for request in self._pending))
        try:
            while self._next_turn() is not turn or self._is_full_for(turn):
                if (other := self.blocking_chat(owner)) is not None and other != reported:
                    reported = other
                    on_wait(other)
                await self.changed.wait()
            turn.has_begun = True
            self._turns.remove(turn)
            self._turns.append(turn)  # behind earlier ones
            self.notify_change()
            yield
        finally:
            self._turns.remove(turn)
            self._dispatch()

    def blocking_chat(self, owner: str) -> str | None:
        """Return the id of a chat being answered that this one waits for; None if this one does not wait."""
        answered = [turn.owner for turn in self._turns if turn.has_begun]
        waiting = next((turn for turn in self._turns if turn.owner == owner and not turn.has_begun), None)
        return answered[0] if waiting and owner not in answered and self._is_full_for(waiting) else None

    def move_to_front(self, owner: str) -> None:
        self._turns.sort(key=lambda turn: turn.owner != owner)
        self.notify_change()

    def _next_turn(self) -> Turn | None:
        answered = {other.owner for other in self._turns if other.has_begun}
        return next((turn for turn in self._turns if not turn.has_begun and turn.owner not in answered), None)

    def _is_full_for(self, turn: Turn) -> bool:
        models = [other.model for other in self._turns if other.has_begun]
        return len(models) >= len(self.all_slots) or any(model != turn.model for model in models)

    # A slot

    @contextlib.asynccontextmanager
    async def acquire(self, owner: str, prompt: Tokens = (), *, from_window: bool = True) -> AsyncIterator[Slot]:
        """Yield a slot for a request as soon as one is free.

        Choose the owner's slot or, given a `prompt`, the one that holds most of it; otherwise an empty slot, or the
        least recently used one. Requests `from_window` go first, and if there are several slots, one is reserved for
        them. An owner holds at most one slot. A program's requests belong to one conversation if their prompts extend
        each other.
        """
        request = SlotRequest(owner, prompt=prompt, from_window=from_window)
        self._pending = sorted([*self._pending, request], key=lambda pending: not pending.from_window)
        self._dispatch()
        self._preempt(owner, request, is_waiting=request in self._pending)
        try:
            yield await request.slot_future
        finally:
            self._release(request)

    async def run_background(
        self,
        priority: Priority,
        owner: str,
        work: Callable[[Slot, Callable[[], bool]], Coroutine[Any, Any, R]],
        *,
        wait: bool = True,
        concurrent: bool = False,
    ) -> R | None:
        """Run background work in a slot when no request needs one and nothing is more urgent; None if ended early.

        `work` receives the slot, and a function to call between steps that returns whether to continue. Without `wait`,
        run now or return None. `concurrent`: the work uses no engine computation, so it may run during replies in other
        slots.
        """
        steps = InterruptibleTask()
        request = SlotRequest(owner, RequestState.STANDBY, priority, steps.interrupt, is_concurrent=concurrent)
        active = [other for other in self._active if other.state is RequestState.BACKGROUND]
        less_urgent = [other for other in active if other.priority > priority]
        for other in less_urgent:
            other.stop_now()
        self._standby.append(request)
        self._dispatch()
        try:
            if not wait and not less_urgent and request.slot is None:
                return None
            slot = await request.slot_future
            return await steps.run(work(slot, lambda: request.should_continue)) if request.should_continue else None
        finally:
            self._release(request)

    @contextlib.contextmanager
    def settling(self, slot: Slot, stop: StopCallback, finish_early: StopCallback | None = None) -> Iterator[None]:
        """Mark the request in this slot as settling. `stop` ends that; `finish_early` does when another owner waits."""
        request = self._request_in(slot)
        reprocess_ms = self.restore_cost.prefill_ms(len(slot.contents.tokens)) if slot.contents else 0.0
        request.state, request.stop, request.finish_early = RequestState.SETTLING, stop, finish_early or stop
        request.reprocess_s = reprocess_ms / 1000
        try:
            if self._is_crowded or self._engine_changes:
                window_waits = self._engine_changes or self._turns or any(other.from_window for other in self._pending)
                request.stop_later(window_waits=bool(window_waits))
            self._dispatch()
            yield
        finally:
            request.state = RequestState.ACTIVE

    def set_prompt(self, slot: Slot, prompt: Tokens) -> None:
        """Record the prompt of a program whose prompt was unknown when it got its slot."""
        self._request_in(slot).prompt = prompt

    def _request_in(self, slot: Slot) -> SlotRequest:
        return next(request for request in self._active if request.slot is slot)

    # All slots

    @contextlib.asynccontextmanager
    async def exclusive(self, slot: Slot | None = None) -> AsyncIterator[None]:
        """Wait until no slot but the caller's own (`slot`) is in use, then hold all slots, to change the engine.

        Running requests finish and no new ones start. A caller that waits here does not count as using its slot, so two
        callers never deadlock.
        """
        own = None
        if slot is not None and (own := next((other for other in self._active if other.slot is slot), None)):
            own.is_idle, slot.claimed_tokens = True, 0
        change = own, asyncio.get_running_loop().create_future()
        self._engine_changes.append(change)
        for request in tuple(self._active):
            if request is not own:
                request.release_soon()
        self._dispatch()
        try:
            await change[1]
            yield
        finally:
            self._engine_changes.remove(change)
            if own is not None:
                own.is_idle = False
            self._dispatch()

    @contextlib.contextmanager
    def paused(self) -> Iterator[Awaitable[None]]:
        """Give out no slots; yield an awaitable that ends once those in use are released."""

        async def wait_until_released() -> None:
            while self._active:
                await self.changed.wait()

        self._pauses += 1
        try:
            yield wait_until_released()
        finally:
            self._pauses -= 1
            self._dispatch()

    async def wait_until_released(self, owners: Collection[str]) -> None:
        """Wait until these owners hold no slot, ending their background work."""
        while requests := [request for request in self._active if request.owner in owners]:
            for request in requests:
                request.release_soon()
            await self.changed.wait()

    async def wait_until_quiet(self, priority: Priority, timeout_s: float) -> None:
        """Wait at most `timeout_s` until nobody needs a slot and nothing more urgent waits."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.is_idle or any(request.priority < priority for request in self._standby):
                    await self.changed.wait()

    def stop_background(self, priority: Priority | None = None, *, except_owner: str | None = None) -> None:
        """Stop background work of `priority`, or all of it except settling.

        Work of `except_owner` stops at its next step instead of immediately.
        """
        for request in self._active:
            if request.state is RequestState.BACKGROUND and priority in (None, request.priority):
                request.should_continue = False
                if request.owner != except_owner:
                    request.stop()

    # The window

    def window_replies_streaming(self) -> list[bool]:
        """Return one value per reply pending in the window: True if it is already streaming."""
        replies = [*self._pending, *(request for request in self._active if request.state is RequestState.ACTIVE)]
        return [bool(request.slot and request.slot.is_streaming) for request in replies if request.from_window]

    @property
    def is_window_active(self) -> bool:
        """True if the window uses a slot or recently did."""
        is_using = any(request.from_window for request in (*self._pending, *self._active))
        return is_using or time.monotonic() - self._window_active_at < WINDOW_ACTIVE_S

    @property
    def is_window_blocked(self) -> bool:
        """True if the window waits for a slot that a program holds, or for all slots in order to change the engine."""
        owners = {request.owner for request in self._active}
        needed = sum(request.from_window and request.owner not in owners for request in self._pending)
        releasing = sum(
            request.state is not RequestState.ACTIVE or (request.slot is not None and request.slot.is_leaving)
            for request in self._active
        )
        return needed > releasing or any(own is not None and own.from_window for own, _ in self._engine_changes)

    # Scheduling

    def notify_change(self) -> None:
        """Wake all tasks that wait for a change in the queue."""
        self.changed.set()
        self.changed = asyncio.Event()

    @property
    def _is_crowded(self) -> bool:
        requests = [*self._pending, *(other for other in self._active if other.state is not RequestState.BACKGROUND)]
        coming = {turn.owner for turn in self._turns} - {request.owner for request in requests}
        return len(requests) + len(coming) > len(self.all_slots)

    def _preempt(self, owner: str, request: SlotRequest | None = None, *, is_waiting: bool) -> None:
        """End work that blocks the owner's turn or its `request`. `is_waiting`: the request has no slot yet."""
        crowded, window = self._is_crowded or is_waiting, request is None or request.from_window
        for other in tuple(self._active):
            if other.state is RequestState.SETTLING:
                follows = request.continues(other) if request else other.owner == owner
                if follows and (window or not self._pending or self._pending[0].continues(other)):  # its turn is next
                    other.stop_now()
                elif crowded:
                    other.stop_later(window_waits=window)
            elif other.state is RequestState.BACKGROUND:
                if other.owner == owner and other.priority is Priority.PREPARE:
                    other.should_continue = False
                elif crowded or not other.is_concurrent:
                    other.stop_now()

    def _release(self, request: SlotRequest) -> None:
        for queue in (self._pending, self._standby, self._active):
            if request in queue:
                queue.remove(request)
        request.slot_future.cancel()
        if request.slot is not None:
            request.slot.mark_released()
        self._dispatch(standby=False)
        asyncio.get_running_loop().call_soon(self._dispatch)  # its owner may continue first

    def _dispatch(self, *, standby: bool = True) -> None:
        if self._engine_changes:
            own, all_idle = self._engine_changes[0]
            if not all_idle.done() and all(request is own or request.is_idle for request in self._active):
                all_idle.set_result(None)
        elif not self._pauses:
            for request in tuple(self._pending):
                if self._grant(request):
                    self._pending.remove(request)
            has_background = any(request.state is RequestState.BACKGROUND for request in self._active)
            if standby and not self._pending and not has_background:
                busy = bool(self._active or self._turns)
                for request in sorted(self._standby, key=lambda request: request.priority):
                    if (request.is_concurrent or not busy) and self._grant(request):
                        self._standby.remove(request)
                        break
        self.notify_change()

    def _grant(self, request: SlotRequest) -> bool:
        if request.slot_future.done():
            return False
        taken = {other.slot: other.state for other in self._active}
        free = [slot for slot in self.all_slots if slot not in taken]
        releasing = [slot for slot, state in taken.items() if slot is not None and state is RequestState.BACKGROUND]
        programs = sum(not other.from_window and other.state is RequestState.ACTIVE for other in self._active)
        if not request.from_window and programs and programs >= len(self.all_slots) - self.is_window_active:
            return False  # leave a slot for the window if there are several and it is used
        continued = [other for other in self._active if request.continues(other)]
        if any(request.from_window or other.state is RequestState.SETTLING for other in continued):
            return False  # wait for the slot that holds its state
        slot = self._choose(request, free, releasing)
        if slot is None or slot not in free:
            return False
        is_background = request.state is RequestState.STANDBY
        request.state = RequestState.BACKGROUND if is_background else RequestState.ACTIVE
        self._active.append(request)
        slot.mark_acquired(from_window=request.from_window)
        self._window_active_at = time.monotonic() if request.from_window else self._window_active_at
        request.slot_future.set_result(slot)
        return True

    def _choose(self, request: SlotRequest, free: Sequence[Slot], leaving: Sequence[Slot]) -> Slot | None:
        prompt = request.prompt
        if request.from_window and not prompt and (own := self.slot_of(request.owner)) in (*free, *leaving):
            return own
        served: dict[Slot, int] = {}
        for slot in (*free, *leaving) if prompt else ():
            if slot.is_readable_by(request.owner):
                reusable = slot.reusable_tokens(prompt, self._can_cut)
                least = max(MIN_GAIN, len(slot.contents.tokens) // 2 if slot.contents else 0)
                served[slot] = reusable if reusable >= least else 0  # else it would discard more than it reuses
        extended = [slot for slot in served if slot.contents and served[slot] == len(slot.contents.tokens)]
        if extended:
            return max(extended, key=served.__getitem__)
        oldest = min(free, key=lambda slot: (slot.contents is not None, slot.used_at), default=None)
        best = max(served, key=served.__getitem__, default=None)
        # Prefer an empty slot: a cut loses tokens for others, and a copy is usually saved.
        if best is not None and served[best] and (oldest is None or oldest.contents):
            return best
        return oldest
