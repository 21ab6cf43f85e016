"""Who has a slot: whoever is waited for; and in spare time whatever else there is to do, the most urgent first.

The one place that decides. What is done in spare time ends when somebody asks for the slot, and the less urgent when
something more urgent comes; who made it begins it again if it is still of use.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

from kvchat.system.concurrency import Interruption

R = TypeVar("R")

SETTLING_PATIENCE_S = 1.0  # for so long one owner waits for another's settling: most take less, and are saved
ABSORBING_PATIENCE_S = 10.0  # for so long what was saved lies in memory, if something else goes on and on


class Rank(IntEnum):
    """What nobody waits for, the most urgent first."""

    SETTLE = 0  # an answer's slot is brought to the turn boundary and saved: else the answer is read again
    GROW = 1  # the engine is started again with more room
    TRY_OUT = 2  # memory that came with a chat is tried out: somebody looks at how that goes
    PREPARE = 3  # what the user looks at and writes is restored and read
    DOCUMENTS = 4  # documents that are kept for chats to begin on are read
    TITLE = 5  # a chat is named
    # Beside the slot, which they do not need:
    ABSORB = 6  # what was saved is taken apart
    WARM_UP = 7  # what may be restored next is read from a slow disk


@dataclass(eq=False)
class _Work:
    """One thing that is done in spare time, or waits to be."""

    rank: Rank
    owner: str
    end: Callable[[], object] = lambda: None  # ends it early
    wanted: bool = True  # false: it is to end where it may be ended well


@dataclass
class Scheduler:
    """Of one slot. Belongs to the event loop's thread."""

    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _asking: list[str] = field(default_factory=list)  # the owners that are waited for, those included that have it
    _work: _Work | None = None  # that has the slot
    _waiting: list[_Work] = field(default_factory=list)
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def free(self) -> bool:
        """Whether nobody has the slot or waits for it."""
        return not self._lock.locked() and not self._asking

    @contextlib.contextmanager
    def wanted_by(self, owner: str) -> Iterator[None]:
        """Somebody waits for the slot, for this owner, or has it: meanwhile nothing is begun in spare time.

        What is being done ends: for the same owner where it may be ended well, for a restore is of use to it; for
        another at once, or, if it is settling, after some patience.
        """
        self._asking.append(owner)
        self._give_way(owner)
        try:
            yield
        finally:
            self._asking.remove(owner)
            self._move()

    @contextlib.asynccontextmanager
    async def needed(self, owner: str) -> AsyncIterator[None]:
        """The slot, for whoever is waited for."""
        with self.wanted_by(owner):
            async with self._lock:
                yield

    async def run(
        self,
        rank: Rank,
        owner: str,
        work: Callable[[Callable[[], bool]], Coroutine[Any, Any, R]],
        *,
        wait: bool = True,
    ) -> R | None:
        """Do it in the slot when nobody needs that and nothing more urgent is to be done; None if it was ended early.

        `work` is told by a call whether it may go on: between two steps it ends by itself where it may not. Without
        `wait` it is done now or, answering None, not at all.
        """
        steps = Interruption()
        me = _Work(rank, owner, steps.interrupt)
        if self._work is not None and self._work.rank > rank:
            self._end(self._work)
        elif not wait and not (self.free and self._is_next(me)):
            return None
        self._waiting.append(me)
        try:
            while not (self.free and self._is_next(me)):
                await self._moved.wait()
        finally:
            self._waiting.remove(me)
        async with self._lock:  # which is free: nothing comes between
            self._work = me
            try:
                return await steps.run(work(lambda: me.wanted))
            finally:
                self._work = None
                asyncio.get_running_loop().call_soon(self._move)

    @contextlib.contextmanager
    def settling(self, owner: str, end: Callable[[], object]) -> Iterator[None]:
        """What the holder of the slot does from now on nobody waits for; `end` ends it early."""
        before, self._work = self._work, _Work(Rank.SETTLE, owner, end)
        try:
            for other in self._asking:
                self._give_way(other, but=owner)
            yield
        finally:
            self._work = before

    async def quiet(self, rank: Rank, patience_s: float) -> None:
        """Wait, but no longer than so long, until nobody needs the slot and nothing more urgent is done."""
        me = _Work(rank, "")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not (self.free and self._is_next(me)):
                    await self._moved.wait()

    def end(self, rank: Rank | None = None, *, but: str | None = None) -> None:
        """End what is done in spare time, of a rank or any but settling; `but` that owner's ends between two steps."""
        work = self._work
        if work is None or work.rank is Rank.SETTLE or rank not in (None, work.rank):
            return
        work.wanted = False
        if work.owner != but:
            work.end()

    def _is_next(self, me: _Work) -> bool:
        """Whether nothing else that waits is more urgent."""
        return all(other is me or other.rank >= me.rank for other in self._waiting)

    def _give_way(self, owner: str, *, but: str | None = None) -> None:
        work = self._work
        if work is None or owner == but:
            return
        work.wanted = False
        if work.rank is Rank.SETTLE and work.owner != owner:
            asyncio.get_running_loop().call_later(SETTLING_PATIENCE_S, work.end)
        elif work.owner != owner or work.rank is not Rank.PREPARE:
            work.end()

    @staticmethod
    def _end(work: _Work) -> None:
        work.wanted = False
        work.end()

    def _move(self) -> None:
        """Have everybody look whether the slot is theirs."""
        self._moved.set()
        self._moved = asyncio.Event()
