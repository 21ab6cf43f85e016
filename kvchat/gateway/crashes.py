"""Detects programs whose requests crash the engine, and refuses them for a while.

If the engine crashes with requests of one program only, that program is guilty. With several, each is suspected and
from then on answered alone, so that the next crash identifies one; the others are then cleared. A program that
crashes the engine only beside others is never beside any. A hang is detected after ten minutes, so one is enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from weakref import WeakSet

from kvchat.engine.api.errors import EngineGone, EngineLifetime, FailureKind
from kvchat.gateway.dialects.request import RequestRefused

MOST_CRASHES, WITHIN_S = 3, 600.0  # crashes and seconds until a program is refused
REFUSED_S = 600.0
LEFT_S = 10.0  # time after a disconnect in which a request may still crash the engine


class Crashes:
    """Event loop thread only. A program is identified by its key, or by User-Agent if there are no keys."""

    def __init__(
        self, restored: Callable[[], bool] = lambda: False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`restored`: True if a restored, still unproven state may also be the cause."""
        self._restored, self._clock = restored, clock
        self._answering: Counter[str] = Counter()  # requests in progress or waiting for a slot
        self._asking: Counter[str] = Counter()  # those sent to the engine
        self._left: dict[str, float] = {}  # when a request was last abandoned in the engine
        self._crashes: dict[str, list[float]] = {}  # caused by each program
        self._suspected: dict[str, float] = {}  # end times
        self._refused: dict[str, float] = {}  # end times
        self._lives: WeakSet[EngineLifetime] = WeakSet()
        self._life: EngineLifetime | None = None  # the engine last used, until it ends
        self._entry = asyncio.Lock()  # in order of arrival
        self._changed = asyncio.Event()

    def check(self, program: str) -> None:
        left_s = self._refused.get(program, 0.0) - self._clock()
        if left_s > 0:
            words = f"Requests of {program!r} crashed the engine {MOST_CRASHES} times, or hung it. Try again later."
            raise RequestRefused(429, words, "rate_limit_error", again_s=math.ceil(left_s))

    @contextlib.asynccontextmanager
    async def answering(self, program: str) -> AsyncIterator[None]:
        """Wrap a request from start to end; a suspected program runs alone.

        Raises Refused as `check` does.
        """
        async with self._entry:
            while not self._may_begin(program):
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LEFT_S):
                        await self._changed.wait()
            self.check(program)
            self._answering[program] += 1
        try:
            yield
        finally:
            self._answering -= Counter([program])
            self._changed.set()

    @contextlib.asynccontextmanager
    async def asking(self, program: str) -> AsyncIterator[None]:
        """Wrap a program's use of the engine. Errors are re-raised once their cause is known."""
        self._asking[program] += 1
        try:
            yield
        except (EngineGone, asyncio.CancelledError) as error:
            self._left[program] = self._clock()
            if isinstance(error, EngineGone) and error.lifetime is not None:
                self.watch(error.lifetime)
                if await error.lifetime.wait_for_end():  # judged with this program counted
                    self._left.pop(program, None)
            raise
        finally:
            self._asking -= Counter([program])

    def watch(self, lifetime: EngineLifetime) -> None:
        def ended() -> None:
            if lifetime.crashed:
                self._judge(hung=lifetime.failure is not None and lifetime.failure.kind is FailureKind.HANGS)
            self._life = None

        if lifetime not in self._lives:
            self._lives.add(lifetime)
            self._life = lifetime
            lifetime.on_end(ended)

    def left(self, program: str) -> None:
        if self._asking[program]:
            self._left[program] = self._clock()

    def _judge(self, *, hung: bool) -> None:
        now = self._clock()
        there = set(self._asking) | self._just_left()
        until = now + WITHIN_S
        if not there:  # the engine crashes by itself
            self._crashes.clear()
        elif len(there) > 1 or self._restored():
            self._suspected |= dict.fromkeys(there, until)
        else:
            (guilty,) = there
            self._suspected = {guilty: until}
            crashes = [at for at in self._crashes.get(guilty, ()) if now - at < WITHIN_S] + [now]
            self._crashes[guilty] = crashes
            if hung or len(crashes) >= MOST_CRASHES:
                self._refused[guilty] = now + REFUSED_S
                del self._crashes[guilty]
        self._left.clear()
        self._changed.set()

    def _may_begin(self, program: str) -> bool:
        others = set(self._answering) - {program}
        suspects = [name for name in (program, *others, *self._just_left() - {program}) if self._is_suspected(name)]
        return not suspects or (suspects == [program] and not others)

    def _is_suspected(self, program: str) -> bool:
        return self._suspected.get(program, 0.0) > self._clock()

    def _just_left(self) -> set[str]:
        """Return the programs whose abandoned requests may still be queued or running in the engine."""
        now, lifetime = self._clock(), self._life
        responded_at = now if lifetime is None or lifetime.responded_at is None else lifetime.responded_at
        self._left = {program: at for program, at in self._left.items() if now - at < LEFT_S or at > responded_at}
        return set(self._left)
