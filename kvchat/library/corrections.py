"""What earlier loads taught about a model's memory: how far the estimate was off, and what did not fit.

Kept in one small JSON file, for each model, engine build and kind of device by itself: repacked weights, larger compute
buffers or a missing flash attention are theirs. The file may always be deleted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

MOST_ENTRIES = 200  # the oldest go
LEAST_FACTOR, MOST_FACTOR = 0.05, 20.0  # beyond it the log was misread


@dataclass(frozen=True)
class Corrections:
    """Factors on the estimates, 1.0 where nothing was learned."""

    weights: float = 1.0
    kv: float = 1.0
    compute: float = 1.0
    flash_attention: bool = True  # False: it was left to the engine, and the engine could not
    share: float = 1.0  # of the free memory; a load that took more did not fit


NOTHING_LEARNED = Corrections()


@dataclass(frozen=True)
class Circumstances:
    """What corrections hold for."""

    model: str  # its identity
    build: str  # what tells one build of the engine from another
    device: str  # "CPU", "CUDA", "Vulkan", …

    @property
    def key(self) -> str:
        """One string for all of it."""
        return "|".join((self.model, self.build, self.device))


class CorrectionBook:
    """The corrections by circumstances, in a file. Each call reads it: two kvchats may run."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def find(self, circumstances: Circumstances) -> Corrections:
        """What was learned in these circumstances; nothing where the file is missing or damaged."""
        return self._entries().get(circumstances.key, NOTHING_LEARNED)

    def learn(self, circumstances: Circumstances, corrections: Corrections) -> None:
        """Remember corrections, in place of older ones. A file that cannot be written costs accuracy alone."""
        entries = self._entries()
        entries.pop(circumstances.key, None)
        entries[circumstances.key] = corrections
        newest = dict(list(entries.items())[-MOST_ENTRIES:])
        temporary = self._file.with_suffix(f".{os.getpid()}.new")
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            plain = {key: dataclasses.asdict(entry) for key, entry in newest.items()}
            temporary.write_text(json.dumps(plain, indent=1), "utf-8")
            temporary.replace(self._file)

    def _entries(self) -> dict[str, Corrections]:
        try:
            raw = json.loads(self._file.read_text("utf-8"))
            entries = {str(key): Corrections(**entry) for key, entry in raw.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
        return {key: entry for key, entry in entries.items() if _makes_sense(entry)}


def factor(actual: int, estimated: float) -> float:
    """The factor that makes an estimate true; 1.0 where one of the two says nothing."""
    if actual <= 0 or estimated <= 0:
        return 1.0
    return min(max(actual / estimated, LEAST_FACTOR), MOST_FACTOR)


def _makes_sense(entry: Corrections) -> bool:
    factors = (entry.weights, entry.kv, entry.compute)
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in (*factors, entry.share)):
        return False
    return all(LEAST_FACTOR <= value <= MOST_FACTOR for value in factors) and 0 < entry.share <= 1
