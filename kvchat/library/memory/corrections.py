"""What earlier loads taught about a model's memory: how far the estimate was off, and what did not fit.

Kept in one small JSON file, for each model, engine build and kind of device by itself: repacked weights, larger compute
buffers or a missing flash attention are theirs. The file may always be deleted.

A load that ran out may have been short of memory that another program held just then. So what did not fit is tried
again: after a day, and after twice as long each time that it runs out once more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvchat.system.files import read_json, whole_file

MOST_ENTRIES = 200  # the oldest go
LEAST_FACTOR, MOST_FACTOR = 0.05, 20.0  # beyond it the log was misread
DAY_S, MOST_DAYS = 86_400.0, 32


@dataclass(frozen=True)
class Corrections:
    """Factors on the estimates, 1.0 where nothing was learned."""

    weights: float = 1.0
    kv: float = 1.0
    compute: float = 1.0
    flash_attention: bool = True  # False: it was left to the engine, and the engine could not
    share: float = 1.0  # of the free memory did suffice; a load that took more did not fit
    ran_out: int = 0  # so many times, a day and more apart, and no load that took more has succeeded since
    ran_out_at: float = 0.0  # the last time, in seconds since 1970
    due: bool = False  # that was long ago, and what did not fit is tried again; not kept, told by the book's clock

    @property
    def limit(self) -> float:
        """The share of free memory that may be taken; 1.0: all of it."""
        return 1.0 if self.due else self.share

    @property
    def until(self) -> float:
        """How long `share` is kept to, in seconds since 1970."""
        return self.ran_out_at + DAY_S * min(2.0 ** min(max(self.ran_out - 1, 0), 16), MOST_DAYS)

    def after_running_out(self, share: float, now: float) -> Corrections:
        """A load ran out, and what took `share` did suffice. Each trial that fails doubles the time until the next."""
        times = self.ran_out + 1 if self.due or not self.ran_out else self.ran_out
        return dataclasses.replace(self, share=min(share, 1.0), ran_out=times, ran_out_at=now, due=False)

    def after_more_did_fit(self) -> Corrections:
        """A load took more than the share and did not run out."""
        return dataclasses.replace(self, share=1.0, ran_out=0, ran_out_at=0.0, due=False)


NOTHING_LEARNED = Corrections()


@dataclass(frozen=True)
class Circumstances:
    """What corrections hold for."""

    model: str  # its identity
    size: int  # of its files, in bytes
    build: str  # what tells one build of the engine from another
    device: str  # "CPU", "CUDA", "Vulkan", …

    @property
    def key(self) -> str:
        """One string for all of it."""
        return f"{self.model}{_about(self.size, self.build, self.device)}"


class CorrectionBook:
    """The corrections by circumstances, in a file. Each call reads it: two kvchats may run."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        """`clock` tells seconds since 1970."""
        self.clock = clock
        self._file = file

    def find(self, circumstances: Circumstances) -> Corrections:
        """What was learned in these circumstances; nothing where the file is missing or damaged."""
        entry = self._entries().get(circumstances.key, NOTHING_LEARNED)
        due = not entry.ran_out_at <= self.clock() < entry.until  # nor is a date to come to be believed
        return dataclasses.replace(entry, due=due and entry.share < 1.0)

    def knows(self, size: int, build: str, device: str) -> bool:
        """Whether a model of this size, in bytes, was met with this build and kind of device."""
        return any(key.endswith(_about(size, build, device)) for key in self._entries())

    def learn(self, circumstances: Circumstances, corrections: Corrections) -> None:
        """Remember corrections, in place of older ones. A file that cannot be written costs accuracy alone."""
        entries = self._entries()
        entries.pop(circumstances.key, None)
        entries[circumstances.key] = corrections
        newest = dict(list(entries.items())[-MOST_ENTRIES:])
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            plain = {key: dataclasses.asdict(dataclasses.replace(entry, due=False)) for key, entry in newest.items()}
            with whole_file(self._file) as new:
                new.write_text(json.dumps(plain, indent=1), "utf-8")

    def _entries(self) -> dict[str, Corrections]:
        try:
            raw = read_json(self._file)
            entries = {str(key): Corrections(**entry) for key, entry in raw.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
        return {key: entry for key, entry in entries.items() if _makes_sense(entry)}


def factor(actual: int, estimated: float) -> float:
    """The factor that makes an estimate true; 1.0 where one of the two says nothing."""
    if actual <= 0 or estimated <= 0:
        return 1.0
    return min(max(actual / estimated, LEAST_FACTOR), MOST_FACTOR)


def _about(size: int, build: str, device: str) -> str:
    """How a key ends, whichever model of that size it is about."""
    return f"|{size}|{build}|{device}"


def _makes_sense(entry: Corrections) -> bool:
    factors = (entry.weights, entry.kv, entry.compute)
    numbers = (*factors, entry.share, entry.ran_out, entry.ran_out_at)
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in numbers):
        return False
    return all(LEAST_FACTOR <= value <= MOST_FACTOR for value in factors) and 0 < entry.share <= 1
