"""Known limits: context sizes at which loads ran out of memory, by model, engine build and kind of device.

Kept in one small JSON file, which may always be deleted. A load that ran out may have been short of memory that
another program held just then. So more is tried again: after a day, and after twice as long after each failure.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from kvchat.system.files import read_json, whole_file

MOST_ENTRIES = 200  # keeps newest
DAY_S, MOST_DAYS = 86_400.0, 32


@dataclass(frozen=True)
class LoadLimit:
    """The context size, in tokens, that loaded when a larger one ran out of memory."""

    tokens: int
    times: int  # failures at least a day apart
    at: float  # last failure in seconds since 1970, as is `until`

    @property
    def until(self) -> float:
        return self.at + DAY_S * min(2.0 ** min(self.times - 1, 16), MOST_DAYS)


@dataclass(frozen=True)
class Circumstances:
    model: str  # identity
    size: int  # bytes of its files
    build: str  # identifies the engine build
    device: str  # "CPU", "CUDA", "Vulkan", …

    @property
    def key(self) -> str:
        return f"{self.model}{_about(self.size, self.build, self.device)}"


class LoadLimits:
    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970."""
        self._file, self._clock = file, clock

    def find(self, circumstances: Circumstances) -> LoadLimit | None:
        """Return the limit in force; None if there is none or a retry is due."""
        entry = self._entries().get(circumstances.key)
        return entry if entry is not None and self._in_force(entry) else None

    def knows(self, size: int, build: str, device: str) -> bool:
        """True if a model of `size` bytes ran out of memory with this build and device type."""
        return any(key.endswith(_about(size, build, device)) for key in self._entries())

    def learn(self, circumstances: Circumstances, tokens: int, *, ran_out: bool) -> LoadLimit | None:
        """Record a load that succeeded with `tokens`; `ran_out`: after a larger one failed.

        A load above the limit removes it. Returns the limit now in force. If the file cannot be written, another
        load may run out of memory.
        """
        entries = self._entries()
        before = entries.pop(circumstances.key, None)
        if not ran_out and (before is None or tokens <= before.tokens):
            return before if before is not None and self._in_force(before) else None
        limit = None
        if ran_out:
            again = before is not None and not self._in_force(before)
            times = (before.times if before is not None else 1) + again
            limit = entries[circumstances.key] = LoadLimit(tokens, times, self._clock())
        newest = dict(list(entries.items())[-MOST_ENTRIES:])
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with whole_file(self._file) as new:
                new.write_text(json.dumps({key: asdict(entry) for key, entry in newest.items()}, indent=1), "utf-8")
        return limit

    def _in_force(self, entry: LoadLimit) -> bool:
        return entry.at <= self._clock() < entry.until  # dates in the future are ignored

    def _entries(self) -> dict[str, LoadLimit]:
        try:
            return {
                str(key): LoadLimit(int(entry["tokens"]), max(1, int(entry["times"])), float(entry["at"]))
                for key, entry in read_json(self._file).items()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return {}


def _about(size: int, build: str, device: str) -> str:
    return f"|{size}|{build}|{device}"
