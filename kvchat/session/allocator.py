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
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, TypeVar

from kvchat.kvstore.savepoint import Tokens
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_cost import LEAST_GAIN, RestoreCost
from kvchat.session.slot import TAIL, Slot, SlotContents
from kvchat.system.concurrency import Interruption

R = TypeVar("R")

ABSORBING_PATIENCE_S = 10.0  # longest time a saved state waits in memory while other work continues
SETTLING_PATIENCE_S = 1.0  # one owner waits this long for another's settling; most finish and are saved
SETTLING_MOST_S = 10.0  # programs wait at most this long
WINDOW_USED_S = 600.0  # the window counts as in use this long after its last request

Ends = Callable[[], object]


class Rank(IntEnum):
    """Kinds of background work, most urgent first."""

    GROW = 1  # restart the engine with more context
    TRY_OUT = 2  # test an imported chat's memory while the user waits
    PREPARE = 3  # restore and process what the user views or types
    DOCUMENTS = 4  # process prepared documents
    TITLE = 5  # name a chat
    VERIFY = 6  # reprocess an imported chat to verify it
    # These need no slot:
    ABSORB = 7  # split saved files into blocks


class State(Enum):
    ASKS = "asks"  # someone waits; it has no slot yet
    ANSWERS = "answers"  # in a slot; someone waits
    SETTLES = "settles"  # still in a slot, settling and saving; nobody waits for it
    STANDS_BY = "stands-by"  # for idle time
    WORKS = "works"  # in a slot, in idle time


@dataclass(eq=False)
class _Turn:
    owner: str
    model: str | None
    begun: bool = False


@dataclass(eq=False)
class _Use:
    owner: str
    state: State = State.ASKS
    rank: Rank = Rank.GROW  # rank of background work
    end: Ends = lambda: None  # ends unawaited work early
    hurry: Ends = lambda: None  # like `end`, for settling that another owner awaits
    lost_s: float = 0.0  # time to reprocess what it settles
    prompt: Tokens = ()
    window: bool = True  # requested by the window
    beside: bool = False  # computes nothing, so it may run beside other requests
    wanted: bool = True  # False: end at the next good point
    idle: bool = False  # waits for all others and leaves its own slot idle
    given: asyncio.Future[Slot] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def slot(self) -> Slot | None:
        given = self.given
        return given.result() if given.done() and not given.cancelled() else None

    def goes_on_from(self, other: _Use) -> bool:
        """True if it is the same conversation's next request: settling and saving `other` is then useless."""
        if self.owner != other.owner or self.window or self is other:
            return self.owner == other.owner
        cut = max(len(other.prompt) - TAIL, 1)  # its last tokens begin a reply
        return bool(other.prompt) and self.prompt[:cut] == other.prompt[:cut]


class Allocator:
    """Assign slots to their owners. Belongs to the event loop's thread."""

    def __init__(self, restore_cost: RestoreCost) -> None:
        self.all = [Slot(0)]  # as many as the engine reports, once known
        self.restore_cost = restore_cost
        self._can_cut = True
        self._turns: list[_Turn] = []  # chat turns: waiting ones, next first, then running ones
        self._asking: list[_Use] = []  # for a slot, the window first
        self._waiting: list[_Use] = []  # for idle time
        self._using: list[_Use] = []
        self._changing: list[tuple[_Use | None, asyncio.Future[None]]] = []  # engine changes, in order
        self._window_at = -WINDOW_USED_S  # last time the window got a slot (time.monotonic)
        self._stops = 0  # engine stops in progress; they block new slots
        self._moved = asyncio.Event()

    # State

    @property
    def free(self) -> bool:
        return not (self._using or self._asking or self._turns)

    def of(self, owner: str) -> Slot | None:
        """Return the slot that holds this owner's state, if one does."""
        return next((slot for slot in self.all if slot.holds() == owner), None)

    def owners(self) -> list[str]:
        slots = sorted(self.all, key=lambda slot: -slot.used_at)
        return [owner for slot in slots if (owner := slot.holds()) is not None]

    def best(self, owner: str, prompt: Tokens, engine: ReadyEngine) -> tuple[SlotContents | None, int]:
        """Return the contents of the slot that `needed` would give for this prompt, and how many tokens they serve."""
        slot = self.of(owner) or self._choose(_Use(owner, prompt=prompt), self.all, ())
        contents = slot.readable(engine, owner) if slot else None
        return contents, contents.serves(prompt, engine.can_cut) if contents else 0

    def fit(self, engine: ReadyEngine, slot: Slot) -> None:
        """Match the slots to this engine, keeping `slot`. Call under `alone` if their number changes."""
        self._can_cut, many = engine.can_cut, len(engine.slots)
        if len(self.all) != many or slot not in self.all:
            others = [other for other in self.all if other is not slot]
            others += [Slot() for _ in range(many - 1 - len(others))]
            self.all = [slot, *others[: many - 1]]
            for number, there in enumerate(self.all):
                there.number = number
            self.move()

    def forget(self) -> None:
        for slot in self.all:
            slot.forget()

    def saved_soon(self, owner: str, prompt: Tokens) -> int:
        """Count the tokens of the owner's prompt covered by what is being settled and saved."""
        settled = [use.slot for use in self._using if use.state is State.SETTLES and use.slot is not None]
        return max((slot.serves(prompt, self._can_cut) for slot in settled if slot.is_readable_by(owner)), default=0)

    # Chat turns

    @contextlib.asynccontextmanager
    async def turn(
        self, owner: str, model: str | None, waits: Callable[[str], object] = lambda other: None
    ) -> AsyncIterator[None]:
        """Wait for a chat's turn: first come, first served, unless one is put first.

        There are as many turns at a time as slots, one per chat, all with one model. `waits` gets the id of a chat
        answered while this one waits. Background work stops: the same owner's ends cleanly, another's ends at once
        or, if it is settling, after a delay.
        """
        me, told = _Turn(owner, model), ""
        self._turns.append(me)
        self._make_way(owner, waits=any(use.owner == owner for use in self._asking))
        try:
            while not self._may_begin(me):
                if (ahead := self.ahead_of(owner)) is not None and ahead != told:
                    told = ahead
                    waits(ahead)
                await self._moved.wait()
            me.begun = True
            self._turns.remove(me)
            self._turns.append(me)  # behind earlier ones
            self.move()
            yield
        finally:
            self._turns.remove(me)
            self._deal()

    def ahead_of(self, owner: str) -> str | None:
        """Return a chat being answered while this one waits for a slot; None if it does not wait."""
        answered = [turn.owner for turn in self._turns if turn.begun]
        me = next((turn for turn in self._turns if turn.owner == owner and not turn.begun), None)
        return answered[0] if me and owner not in answered and self._is_full_for(me) else None

    def put_first(self, owner: str) -> None:
        self._turns.sort(key=lambda turn: turn.owner != owner)
        self.move()

    def _may_begin(self, me: _Turn) -> bool:
        answered = {turn.owner for turn in self._turns if turn.begun}
        following = next((turn for turn in self._turns if not turn.begun and turn.owner not in answered), None)
        return following is me and not self._is_full_for(me)

    def _is_full_for(self, me: _Turn) -> bool:
        models = [turn.model for turn in self._turns if turn.begun]
        return len(models) >= len(self.all) or any(model != me.model for model in models)

    # A slot

    @contextlib.asynccontextmanager
    async def needed(self, owner: str, prompt: Tokens = (), *, window: bool = True) -> AsyncIterator[Slot]:
        """Yield a slot for a request, as soon as one is not in use for another.

        Picks the owner's slot or, given a `prompt`, the one holding most of it; else an empty one, else the least
        recently used. `window` requests go first; one of several slots is reserved for them, and each owner has at most
        one. A program's requests are one conversation if their prompts extend each other.
        """
        use = _Use(owner, prompt=prompt, window=window)
        self._asking = sorted([*self._asking, use], key=lambda use: not use.window)
        self._deal()
        self._make_way(owner, use, waits=use in self._asking)
        try:
            yield await use.given
        finally:
            self._leave(use)

    async def run(
        self,
        rank: Rank,
        owner: str,
        work: Callable[[Slot, Callable[[], bool]], Coroutine[Any, Any, R]],
        *,
        wait: bool = True,
        beside: bool = False,
    ) -> R | None:
        """Do background work in a slot when nobody needs one and nothing is more urgent; None if ended early.

        `work` gets the slot and a function that says whether to continue, to check between steps. Without `wait`, run
        now or return None. `beside`: it uses no engine computation, so it may run during replies in other slots.
        """
        steps = Interruption()
        me = _Use(owner, State.STANDS_BY, rank, steps.interrupt, beside=beside)
        less_urgent = [use for use in self._using if use.state is State.WORKS and use.rank > rank]
        for use in less_urgent:
            self._end(use)
        self._waiting.append(me)
        self._deal()
        try:
            if not wait and not less_urgent and me.slot is None:
                return None
            slot = await me.given
            return await steps.run(work(slot, lambda: me.wanted)) if me.wanted else None
        finally:
            self._leave(me)

    @contextlib.contextmanager
    def settling(self, slot: Slot, end: Ends, hurry: Ends | None = None) -> Iterator[None]:
        """Mark the slot's holder as settling, which nobody waits for; `end` stops it, `hurry` for another owner.

        Other programs wait for it up to a tenth of the time to read everything again.
        """
        me = next(use for use in self._using if use.slot is slot)
        lost_ms = self.restore_cost.prefill_ms(len(slot.contents.tokens)) if slot.contents else 0.0
        me.state, me.end, me.hurry, me.lost_s = State.SETTLES, end, hurry or end, lost_ms / 1000
        try:
            if self._crowded or self._changing:
                self._later(me, window=bool(self._changing or self._turns) or any(u.window for u in self._asking))
            self._deal()
            yield
        finally:
            me.state = State.ANSWERS

    def reads(self, slot: Slot, prompt: Tokens) -> None:
        """Record the prompt of the program in the slot, if unknown when the slot was given."""
        next(use for use in self._using if use.slot is slot).prompt = prompt

    # All slots

    @contextlib.asynccontextmanager
    async def alone(self, slot: Slot | None = None) -> AsyncIterator[None]:
        """Hold every slot, to change the engine, once none but `slot`, the caller's own, is in use.

        Nothing new starts meanwhile; what runs is finished. Waiting here counts as having left one's slot, so two
        callers never deadlock.
        """
        me = next((use for use in self._using if slot is not None and use.slot is slot), None)
        entry = me, asyncio.get_running_loop().create_future()
        self._changing.append(entry)
        if me is not None and slot is not None:
            me.idle, slot.claim = True, 0
        self._end_all(use for use in tuple(self._using) if use is not me)
        self._deal()
        try:
            await entry[1]
            yield
        finally:
            self._changing.remove(entry)
            if me is not None:
                me.idle = False
            self._deal()

    @contextlib.contextmanager
    def giving_none(self) -> Iterator[Awaitable[None]]:
        """Give out no slots; yield an awaitable that ends once those in use are released."""

        async def left() -> None:
            while self._using:
                await self._moved.wait()

        self._stops += 1
        try:
            yield left()
        finally:
            self._stops -= 1
            self._deal()

    async def apart(self, owners: Collection[str]) -> None:
        """Wait until these owners hold no slot, ending their background work."""
        while theirs := [use for use in self._using if use.owner in owners]:
            self._end_all(theirs)
            await self._moved.wait()

    async def quiet(self, rank: Rank, patience_s: float) -> None:
        """Wait at most `patience_s` until nobody needs a slot and nothing more urgent waits."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not self.free or any(use.rank < rank for use in self._waiting):
                    await self._moved.wait()

    def end(self, rank: Rank | None = None, *, but: str | None = None) -> None:
        """End background work of `rank`, or all of it except settling; `but`: this owner's ends between steps."""
        for use in self._using:
            if use.state is State.WORKS and rank in (None, use.rank):
                use.wanted = False
                if use.owner != but:
                    use.end()

    # The window

    def talks(self, slot: Slot) -> None:
        """Note that the reply is streaming."""
        slot.talks = True
        self.move()

    def at_the_window(self) -> list[bool]:
        """List, for each reply pending in the window, whether it is already streaming."""
        waited = (use for use in (*self._asking, *self._using) if use.window)
        return [bool(use.slot and use.slot.talks) for use in waited if use.state in (State.ASKS, State.ANSWERS)]

    @property
    def window_used(self) -> bool:
        """True if the window uses a slot or recently did."""
        now = any(use.window for use in (*self._asking, *self._using))
        return now or time.monotonic() - self._window_at < WINDOW_USED_S

    @property
    def kept_from_the_window(self) -> bool:
        """True if the window waits for a slot only a program could free, or for all, to change the engine."""
        owners = {use.owner for use in self._using}
        asked = sum(use.window and use.owner not in owners for use in self._asking)
        soon = sum(use.state is not State.ANSWERS or (use.slot is not None and use.slot.leaving) for use in self._using)
        return asked > soon or any(me is not None and me.window for me, _ in self._changing)

    # Scheduling

    async def moved(self) -> None:
        """Wait for the next queue change."""
        await self._moved.wait()

    def move(self) -> None:
        """Wake everyone who waits."""
        self._moved.set()
        self._moved = asyncio.Event()

    @property
    def _crowded(self) -> bool:
        there = [*self._asking, *(use for use in self._using if use.state is not State.WORKS)]
        to_come = {turn.owner for turn in self._turns} - {use.owner for use in there}
        return len(there) + len(to_come) > len(self.all)

    def _make_way(self, owner: str, asks: _Use | None = None, *, waits: bool) -> None:
        """End whatever blocks a pending request.

        `asks`: the request, once it asks for a slot. `waits`: it has none yet.
        """
        crowded, window = self._crowded or waits, asks is None or asks.window
        for use in tuple(self._using):
            if use.state is State.SETTLES:
                follows = asks.goes_on_from(use) if asks else use.owner == owner
                if follows and (window or not self._asking or self._asking[0].goes_on_from(use)):  # it is next
                    self._end(use)
                elif crowded:
                    self._later(use, window=window)
            elif use.state is State.WORKS:
                if use.owner == owner and use.rank is Rank.PREPARE:
                    use.wanted = False
                elif crowded or not use.beside:
                    self._end(use)

    def _end_all(self, uses: Iterable[_Use]) -> None:
        for use in uses:
            if use.state is State.SETTLES:
                self._later(use, window=True)
            elif use.state is State.WORKS:
                self._end(use)

    @staticmethod
    def _later(use: _Use, *, window: bool) -> None:
        """End settling after a delay; usually it ends by itself first. `window`: the window waits for it."""
        use.wanted, patience_s = False, 0.0 if window else min(use.lost_s / 10, SETTLING_MOST_S)
        asyncio.get_running_loop().call_later(max(patience_s, SETTLING_PATIENCE_S), use.hurry)

    @staticmethod
    def _end(use: _Use) -> None:
        use.wanted = False
        use.end()

    def _leave(self, use: _Use) -> None:
        for some in (self._asking, self._waiting, self._using):
            if use in some:
                some.remove(use)
        use.given.cancel()
        if use.slot is not None:
            use.slot.left()
        self._deal(spare=False)
        asyncio.get_running_loop().call_soon(self._deal)  # its owner may continue first

    def _deal(self, *, spare: bool = True) -> None:
        if self._changing:
            me, all_idle = self._changing[0]
            if not all_idle.done() and all(use is me or use.idle for use in self._using):
                all_idle.set_result(None)
        elif not self._stops:
            for use in tuple(self._asking):
                if self._give(use):
                    self._asking.remove(use)
            if spare and not self._asking and all(use.state is not State.WORKS for use in self._using):
                busy = bool(self._using or self._turns)
                for use in sorted(self._waiting, key=lambda use: use.rank):
                    if (use.beside or not busy) and self._give(use):
                        self._waiting.remove(use)
                        break
        self.move()

    def _give(self, use: _Use) -> bool:
        if use.given.done():
            return False
        taken = {other.slot: other.state for other in self._using}
        free = [slot for slot in self.all if slot not in taken]
        soon = [slot for slot, state in taken.items() if slot is not None and state is State.WORKS]
        programs = sum(not other.window and other.state is State.ANSWERS for other in self._using)
        if not use.window and programs and programs >= len(self.all) - self.window_used:
            return False  # leave a slot for the window if there are several and it is used
        if any(use.goes_on_from(other) and (use.window or other.state is State.SETTLES) for other in self._using):
            return False  # wait for the slot that holds its state
        slot = self._choose(use, free, soon)
        if slot is None or slot not in free:
            return False
        use.state = State.WORKS if use.state is State.STANDS_BY else State.ANSWERS
        self._using.append(use)
        slot.taken(window=use.window)
        self._window_at = time.monotonic() if use.window else self._window_at
        use.given.set_result(slot)
        return True

    def _choose(self, use: _Use, free: Sequence[Slot], soon: Sequence[Slot]) -> Slot | None:
        prompt = use.prompt
        if use.window and not prompt and (own := self.of(use.owner)) in (*free, *soon):
            return own
        served: dict[Slot, int] = {}
        for slot in (*free, *soon) if prompt else ():
            if slot.is_readable_by(use.owner):
                serves = slot.serves(prompt, self._can_cut)
                least = max(LEAST_GAIN, len(slot.contents.tokens) // 2 if slot.contents else 0)
                served[slot] = serves if serves >= least else 0  # else it would discard more than it reuses
        extended = [slot for slot in served if slot.contents and served[slot] == len(slot.contents.tokens)]
        if extended:
            return max(extended, key=served.__getitem__)
        left_alone = min(free, key=lambda slot: (slot.contents is not None, slot.used_at), default=None)
        best = max(served, key=served.__getitem__, default=None)
        # Prefer an empty slot: a cut loses tokens for others, and a copy is usually saved.
        if best is not None and served[best] and (left_alone is None or left_alone.contents):
            return best
        return left_alone
