"""What is still being put away when kvchat ends: how much, how long it may take, and whether anybody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvchat.words.language import _
from kvchat.words.wording import rough_duration, size

_ENGINE_S_PER_BYTE, _STORE_S_PER_BYTE = 1e-9, 2e-9  # until this computer has shown its own


@dataclass(frozen=True)
class Unfinished:
    """What is to be put away before all is kept."""

    bytes: int
    seconds: float  # that it may take

    @property
    def words(self) -> str:
        """As "2.1 GB, about 12 s"."""
        return _("{bytes}, about {seconds}", bytes=size(self.bytes), seconds=rough_duration(self.seconds))


@dataclass(frozen=True)
class _Step:
    """One file on its way: from the engine into `path`, or, without one, from there into the store."""

    size: int
    path: Path | None
    began_at: float

    @property
    def written(self) -> int:
        """Bytes that the engine has written of it."""
        try:
            return self.path.stat().st_size if self.path else 0
        except OSError:
            return 0

    def left_s(self, rate: float) -> float:
        """Seconds to go: at so many a byte, or as fast as it has been written so far."""
        taken, written = time.monotonic() - self.began_at, self.written
        if written:
            return taken * max(0, self.size - written) / written
        return max(0.0, self.size * rate - taken)


class Finishing:
    """For all slots. Belongs to the event loop's thread, but for `cancelled`."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()  # nobody waits for it any more
        self._hurry = asyncio.Event()
        self._steps: list[_Step] = []  # at the same time
        self._waiting = 0  # bytes that are saved and not absorbed yet
        self._ahead: list[int] = []  # bytes that the engine saves when it has read so far
        self._read: object = None  # how far it was when it last told
        # Seconds a byte: of the engine's saves (True), of absorbing them.
        self._rates = {True: _ENGINE_S_PER_BYTE, False: _STORE_S_PER_BYTE}

    def cancel(self) -> None:
        """Nobody waits for it any more: what is not kept by now will not be."""
        self.cancelled.set()
        self._hurry.set()

    async def rested(self, idle: Awaitable[None], patience_s: float) -> bool:
        """Wait for the end of all work, or until it is cancelled; False if the engine did nothing for so long."""
        task, hurry = asyncio.ensure_future(idle), asyncio.ensure_future(self._hurry.wait())
        try:
            while not (task.done() or hurry.done()):
                before = self.progress()
                await asyncio.wait({task, hurry}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                if not (task.done() or hurry.done()) and self.progress() == before:
                    return False
            return True
        finally:
            task.cancel()
            hurry.cancel()

    async def in_time(self, work: Coroutine[Any, Any, None], patience_s: float) -> None:
        """Wait for work that ends; once it is cancelled no longer than so long, for a disk may hang."""
        task, hurry = asyncio.ensure_future(work), asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({task, hurry}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({task}, timeout=patience_s)
        hurry.cancel()

    @contextlib.contextmanager
    def reading(self, size: int) -> Iterator[Callable[[object], None]]:
        """The engine reads up to where it saves some `size` bytes; gives what is to be told how far it is."""

        def tell(progress: object) -> None:
            self._read = progress

        self._ahead.append(size)
        try:
            yield tell
        finally:
            self._ahead.remove(size)

    @contextlib.contextmanager
    def saving(self, size: int, path: Path) -> Iterator[None]:
        """The engine is about to write some `size` bytes to `path`."""
        with self._running(_Step(size, path, time.monotonic())):
            yield
        self._waiting += size

    @contextlib.contextmanager
    def absorbing(self) -> Iterator[None]:
        """The store is about to take apart what waits."""
        size, self._waiting = self._waiting, 0
        with self._running(_Step(size, None, time.monotonic())):
            yield

    def left(self) -> Unfinished | None:
        """What is still to be done, None when it is nothing."""
        steps, rates, ahead = self._steps, self._rates, sum(self._ahead)
        waiting = self._waiting + ahead + sum(step.size for step in steps if step.path)
        if not steps and not waiting:
            return None
        seconds = sum(step.left_s(rates[bool(step.path)]) for step in steps) if steps else ahead * rates[True]
        absorbed = sum(step.size for step in steps if not step.path)
        return Unfinished(max(waiting, absorbed), seconds + waiting * rates[False])

    def progress(self) -> object:
        """Equal to what it was before only if the engine wrote and read nothing meanwhile."""
        if any(step.path is None for step in self._steps):  # our own work always comes to an end
            return object()
        return [(step, step.written) for step in self._steps] or self._read

    @contextlib.contextmanager
    def _running(self, step: _Step) -> Iterator[None]:
        self._steps.append(step)
        try:
            yield
            if step.size:
                self._rates[bool(step.path)] = (time.monotonic() - step.began_at) / step.size
        finally:
            self._steps = [one for one in self._steps if one is not step]
