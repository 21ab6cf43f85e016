"""What is still being put away when kvchat ends: how much, how long it may take, and whether anybody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvchat.words.wording import size


@dataclass(frozen=True)
class Unfinished:
    """What is to be put away before all is kept."""

    bytes: int
    seconds: float | None  # that it may take; None where nothing was measured

    @property
    def words(self) -> str:
        """As "2.1 GB, about 12 s"."""
        return size(self.bytes) + (f", about {max(1, round(self.seconds)):,} s" if self.seconds is not None else "")


@dataclass(frozen=True)
class _Step:
    """One file on its way: from the engine into `path`, or, without one, from there into the store."""

    size: int
    path: Path | None
    began_at: float

    def left_s(self, rate: float, now: float) -> float:
        """Seconds to go at so many a byte."""
        return max(0.0, self.size * rate - (now - self.began_at))


class Finishing:
    """For the slot's keeper. Belongs to the event loop's thread, but for `cancelled`."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()  # nobody waits for it any more
        self._hurry = asyncio.Event()
        self._step: _Step | None = None
        self._waiting = 0  # bytes that are saved and not absorbed yet
        self._rates: dict[bool, float] = {}  # seconds a byte: of the engine's saves (True), of absorbing them

    def cancel(self) -> None:
        """Nobody waits for it any more: what is not kept by now will not be."""
        self.cancelled.set()
        self._hurry.set()

    async def rested(self, idle: Coroutine[Any, Any, None], patience_s: float) -> bool:
        """Wait for the end of all work, or until it is cancelled; False if the engine wrote nothing for so long."""
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
        step, now = self._step, time.monotonic()
        waiting = self._waiting + (step.size if step and step.path else 0)
        if step is None and not waiting:
            return None
        size, rates = max(waiting, step.size if step else 0), self._rates
        if (step and bool(step.path) not in rates) or (waiting and False not in rates):
            return Unfinished(size, None)
        saving = step.left_s(rates[bool(step.path)], now) if step else 0.0
        return Unfinished(size, saving + waiting * rates.get(False, 0.0))

    def progress(self) -> object:
        """Equal to what it was before only if the engine wrote nothing meanwhile."""
        step = self._step
        if step is None or step.path is None:  # our own work always comes to an end
            return object() if step else None
        try:
            return step, step.path.stat().st_size
        except OSError:
            return step, 0

    @contextlib.contextmanager
    def _running(self, step: _Step) -> Iterator[None]:
        before, self._step = self._step, step
        try:
            yield
            if step.size:
                self._rates[bool(step.path)] = (time.monotonic() - step.began_at) / step.size
        finally:
            self._step = before
