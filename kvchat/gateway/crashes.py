"""Detection of programs whose requests crash the engine; kvchat refuses them for ten minutes.

If the engine crashes while it has requests of one program only, that program is to blame; after three such crashes it
is refused. If it has requests of several programs, all are suspected and run alone, so that the next crash identifies
one and clears the others. A single hang is enough, as it takes ten minutes to detect.
"""

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from weakref import WeakSet

from kvchat.engine.api.errors import EngineGone, EngineLifetime, FailureKind
from kvchat.gateway.dialects.request import RequestRefused

MAX_CRASHES, CRASH_WINDOW_S = 3, 600.0  # a program is refused after this many crashes in this time
REFUSED_S = 600.0
ABANDONED_S = 10.0  # time after a disconnect in which a request may still crash the engine


class Crashes:
    """Crashes of the engine by program, which is identified by key or User-Agent. Event loop thread only."""

    def __init__(
        self, restored: Callable[[], bool] = lambda: False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`restored` returns True if a crash may also be due to a restored state that is not yet proved."""
        self._restored, self._clock = restored, clock
        self._admitted: Counter[str] = Counter()  # requests in progress or waiting for a slot
        self._in_engine: Counter[str] = Counter()  # requests now in the engine
        self._abandoned: dict[str, float] = {}  # time of the last request abandoned in the engine
        self._crashes: dict[str, list[float]] = {}  # times, by the program to blame
        self._suspected_until: dict[str, float] = {}  # end times
        self._refused_until: dict[str, float] = {}  # end times
        self._watched_lifetimes: WeakSet[EngineLifetime] = WeakSet()
        self._current: EngineLifetime | None = None  # the engine last used, until it ends
        self._entry_lock = asyncio.Lock()  # admits requests in order of arrival
        self._changed = asyncio.Event()

    def check(self, program: str) -> None:
        left_s = self._refused_until.get(program, 0.0) - self._clock()
        if left_s > 0:
            message = f"Requests from {program!r} made the engine crash or hang {MAX_CRASHES} times. Try again later."
            raise RequestRefused(429, message, "rate_limit_error", math.ceil(left_s))

    @contextlib.asynccontextmanager
    async def admitting(self, program: str) -> AsyncIterator[None]:
        """Context manager for a whole request; suspected programs run alone. Raises RequestRefused."""
        async with self._entry_lock:
            while not self._may_start(program):
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ABANDONED_S):
                        await self._changed.wait()
            self.check(program)
            self._admitted[program] += 1
        try:
            yield
        finally:
            self._admitted -= Counter([program])
            self._changed.set()

    @property
    def delays_requests(self) -> bool:
        """True while a request waits for `admitting`."""
        return self._entry_lock.locked()

    @contextlib.asynccontextmanager
    async def using_engine(self, program: str) -> AsyncIterator[None]:
        """Context manager for a program's use of the engine.

        If the engine crashes, re-raises EngineGone only after the program has been counted among the suspects.
        """
        self._in_engine[program] += 1
        try:
            yield
        except (EngineGone, asyncio.CancelledError) as error:
            self._abandoned[program] = self._clock()
            if isinstance(error, EngineGone) and error.lifetime is not None:
                self.watch(error.lifetime)
                if await error.lifetime.wait_for_end():  # judged with this program counted
                    self._abandoned.pop(program, None)
            raise
        finally:
            self._in_engine -= Counter([program])

    @contextlib.asynccontextmanager
    async def using_engine_at_once(self, program: str) -> AsyncIterator[None]:
        """Context manager for work that need not be done: refused where `admitting` would wait. Raises RequestRefused.

        It should end early if it `delays_requests`.
        """
        self.check(program)
        if self.delays_requests or not self._may_start(program):
            raise RequestRefused(503, "Other requests are waiting.", "unavailable_error")
        async with self.admitting(program), self.using_engine(program):
            yield

    def watch(self, lifetime: EngineLifetime) -> None:
        def ended() -> None:
            if lifetime.crashed:
                self._judge(hung=lifetime.failure is not None and lifetime.failure.kind is FailureKind.HANGS)
            self._current = None

        if lifetime not in self._watched_lifetimes:
            self._watched_lifetimes.add(lifetime)
            self._current = lifetime
            lifetime.on_end(ended)

    def note_abandoned(self, program: str) -> None:
        if self._in_engine[program]:
            self._abandoned[program] = self._clock()

    def _judge(self, *, hung: bool) -> None:
        now = self._clock()
        programs = set(self._in_engine) | self._recently_abandoned()
        until = now + CRASH_WINDOW_S
        if not programs:  # the engine crashes by itself
            self._crashes.clear()
        elif len(programs) > 1 or self._restored():
            self._suspected_until |= dict.fromkeys(programs, until)
        else:
            (guilty,) = programs
            self._suspected_until = {guilty: until}
            crashes = [at for at in self._crashes.get(guilty, ()) if now - at < CRASH_WINDOW_S] + [now]
            self._crashes[guilty] = crashes
            if hung or len(crashes) >= MAX_CRASHES:
                self._refused_until[guilty] = now + REFUSED_S
                del self._crashes[guilty]
        self._abandoned.clear()
        self._changed.set()

    def _may_start(self, program: str) -> bool:
        others = set(self._admitted) - {program}
        suspects = [
            name for name in (program, *others, *self._recently_abandoned() - {program}) if self._is_suspected(name)
        ]
        return not suspects or (suspects == [program] and not others)

    def _is_suspected(self, program: str) -> bool:
        return self._suspected_until.get(program, 0.0) > self._clock()

    def _recently_abandoned(self) -> set[str]:
        """Return the programs whose abandoned requests may still be queued or running in the engine."""
        now, lifetime = self._clock(), self._current
        responded_at = now if lifetime is None or lifetime.responded_at is None else lifetime.responded_at
        self._abandoned = {
            program: at for program, at in self._abandoned.items() if now - at < ABANDONED_S or at > responded_at
        }
        return set(self._abandoned)
