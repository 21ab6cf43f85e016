"""What programs have asked and what it cost, by program and day, on disk. Counts and times, no word of a prompt."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from kvchat.system.files import read_json, whole_file
from kvchat.words.reasons import ReasonCode

KEPT_DAYS = 60
MOST_PROGRAMS, MOST_CAUSES = 60, 40
_MOST_FILE = 8_000_000  # bytes
_MOST_NUMBER = 10**15
_CODES = frozenset(ReasonCode)


@dataclass
class Sum:
    """Of tokens and the time they took, or would have taken."""

    times: int = 0
    tokens: int = 0
    ms: float = 0.0

    def add(self, tokens: int, ms: float, times: int = 1) -> None:
        """Once more."""
        self.times, self.tokens, self.ms = self.times + times, self.tokens + tokens, self.ms + ms


@dataclass
class Total:
    """Of some requests of one program."""

    requests: int = 0
    prompt: int = 0  # tokens
    cached: int = 0  # of those, found
    saved_ms: float = 0.0  # reading that was spared
    last_at: float = 0.0  # time.time()
    misses: dict[str, Sum] = field(default_factory=dict)  # read again, by the code of the reason
    mended: dict[str, Sum] = field(default_factory=dict)  # spared, by rule

    def add(self, other: Total) -> None:
        """With those of another day."""
        self.requests += other.requests
        self.prompt += other.prompt
        self.cached += other.cached
        self.saved_ms += other.saved_ms
        self.last_at = max(self.last_at, other.last_at)
        for mine, theirs in ((self.misses, other.misses), (self.mended, other.mended)):
            for name, one in theirs.items():
                if name in mine or len(mine) < MOST_CAUSES:
                    mine.setdefault(name, Sum()).add(one.tokens, one.ms, one.times)

    @property
    def share(self) -> float:
        """Of the prompts' tokens, what was found."""
        return self.cached / self.prompt if self.prompt else 0.0


class Totals:
    """Kept in one small file; one that cannot be read counts as none. Of the event loop's thread, but for `write`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._writing = threading.Lock()
        self._days: dict[str, dict[str, Total]] = {}  # by day and program
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, TimeoutError):
            raw = read_json(file, _MOST_FILE)
            self._days = {
                str(day): {str(name): _total(facts) for name, facts in programs.items()}
                for day, programs in raw.items()
            }

    def count(self, program: str, total: Total) -> None:
        """Add to the program's total of the day that `total` ended at."""
        day = datetime.fromtimestamp(total.last_at).date().isoformat()
        programs = self._days.setdefault(day, {})
        if program not in programs and len(programs) >= MOST_PROGRAMS:
            program = "other"
        programs.setdefault(program, Total()).add(total)
        for old in sorted(self._days)[:-KEPT_DAYS]:
            del self._days[old]

    def by_program(self) -> dict[str, Total]:
        """Of all days that are kept."""
        found: dict[str, Total] = {}
        for _, programs in sorted(self._days.items()):
            for program, total in programs.items():
                found.setdefault(program, Total()).add(total)
        return found

    def forget(self, program: str) -> None:
        """The user wants to see it no longer."""
        for programs in self._days.values():
            programs.pop(program, None)

    def text(self) -> str:
        """What `write` is to write."""
        return json.dumps({day: {name: asdict(one) for name, one in some.items()} for day, some in self._days.items()})

    def write(self, text: str) -> None:
        """Off the event loop. Raises OSError."""
        with self._writing, whole_file(self._file, private=True) as new:
            new.write_text(text, "utf-8")


def _total(facts: Mapping[str, Any]) -> Total:
    """A stored total. Raises ValueError, TypeError or AttributeError for what is none."""
    numbers = {name: _number(facts.get(name, 0)) for name in ("requests", "prompt", "cached", "saved_ms", "last_at")}
    misses, mended = (
        {
            str(name): Sum(*(_number(one.get(part, 0)) for part in ("times", "tokens", "ms")))
            for name, one in some.items()
        }
        for some in (facts.get("misses", {}), facts.get("mended", {}))
    )
    known = {name: one for name, one in misses.items() if name in _CODES}
    return Total(**numbers, misses=known, mended=mended)


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_NUMBER:
        raise ValueError
    return value
