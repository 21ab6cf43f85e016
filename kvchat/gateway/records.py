"""Records of the gateway's requests: those in progress, the last ones, and daily totals on disk.

Never prompt text: programs, models, counts and times, named as in the headers and in `/kvchat/requests`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from kvchat.gateway.diagnosis.prompts import Divergence
from kvchat.gateway.diagnosis.rules import Change
from kvchat.kvstore.savepoint import program_owner
from kvchat.system.files import atomic_write, read_json
from kvchat.text.reasons import Reason, ReasonCode

KEPT = 500  # receipts
MOST_HEADER = 500  # characters
MOST_NAME = 200  # characters kept of a model name, which clients choose freely
# These do not explain a miss; any other reason does.
UNTOLD = (None, Reason(ReasonCode.NOTHING_ALIKE), Reason(ReasonCode.GOES_ON_OTHERWISE))
LEAST_READ, ABOUT = 64, 64  # tokens: fewer need no explanation; tolerance of a match's end
ALL_PROGRAMS = "all programs"  # owner of shared memory; no program's name contains a space
_NOT_TOLD = ("_began", "whole", "unheard", "divergence", "changes", "keyed", "kept_with")


class Stage(Enum):
    QUEUED = "queued"  # waits for others or for an engine
    LOADING = "loading"  # its saved prompt prefix is being restored
    READING = "reading"  # the rest of its prompt is processed in steps
    ANSWERING = "answering"
    DONE = "done"
    FAILED = "failed"
    LEFT = "left"  # the client left


OVER = (Stage.DONE, Stage.FAILED, Stage.LEFT)


@dataclass
class RequestRecord:
    """One request through the gateway. Times in ms; counts in tokens; None if not known (yet)."""

    id: int
    program: str
    dialect: str  # request path
    at: float  # time.time()
    model: str = ""  # named by the client
    answering_model: str = ""  # the model used; differs if the requested one is missing
    stream: bool = False
    stage: Stage = Stage.QUEUED
    status: int = 0  # HTTP status
    source: str = ""  # as in a reply's receipt: hot, warm, disk, cold; proved once `cached` is known
    found: int | None = None  # prompt tokens found in a slot or the store beforehand
    prompt: int | None = None
    read: int = 0  # so far
    cached: int | None = None  # proved by the engine's count
    predicted: int | None = None
    queue_ms: float = 0.0
    restore_ms: float = 0.0
    read_ms: float = 0.0  # steps plus the engine's processing
    first_ms: float | None = None  # until the first answer byte was sent
    write_ms: float = 0.0  # non-streamed answers: before that byte
    total_ms: float | None = None
    miss: Reason | None = None  # why tokens had to be reprocessed
    saved_ms: float = 0.0  # processing time saved by the found tokens
    slot: int | None = None
    mended: dict[str, int] = field(default_factory=dict)  # tokens saved by each rule
    whole: bool = False  # the states are usable only as a whole
    unheard: bool = False  # no similar prompt is known for the program
    divergence: Divergence | None = None  # from the closest earlier prompt; its texts are shown only in the window
    changes: tuple[Change, ...] = ()  # by enabled rules; also window-only
    keyed: bool = False  # the program used its own API key
    kept_with: str = ""  # owner of the shared memory, if not its program
    _began: float = field(default_factory=time.perf_counter, repr=False)

    def ms(self) -> float:
        return 1000 * (time.perf_counter() - self._began)

    @property
    def owner(self) -> str:
        return program_owner(self.kept_with or self.program)

    @property
    def is_known_prompt(self) -> bool:
        """True if the program is known to have sent a prompt with this beginning."""
        return not self.unheard and (self.divergence is None or self.divergence.at >= ABOUT)

    @property
    def broken(self) -> Divergence | None:
        """The divergence, if it is why much of the prompt was reprocessed."""
        divergence, known = self.divergence, self.found if self.cached is None else self.cached
        if divergence is None or self.miss not in UNTOLD:
            return None
        if self.prompt is None or known is None or self.prompt - known < LEAST_READ:
            return None
        elsewhere = not self.whole and known < divergence.at - ABOUT  # even the shared part was not found
        return None if divergence.expected or elsewhere or known > divergence.at + ABOUT else divergence

    @property
    def why(self) -> Reason | None:
        """Why more had to be processed than necessary; None if it had not."""
        divergence = self.broken
        return divergence.cause if divergence else self.miss

    def receipt(self) -> dict[str, object]:
        why = self.why
        told: dict[str, object] = {"source": self.source or None, "found": self.found}
        told |= {"miss": why.english, "miss-code": why.code.value} if why else {}
        told |= {"restore-ms": None if self.found is None else round(self.restore_ms)}
        told |= {"cached": self.cached, "prompt": self.prompt, "model": self.answering_model or None}
        return {name: value for name, value in told.items() if value is not None}

    def as_json(self) -> dict[str, Any]:
        """Return the entry for `GET /kvchat/requests`, keyed by header name where there is one."""
        names = (field.name for field in fields(self) if field.name not in _NOT_TOLD)
        told = {name.replace("_", "-"): getattr(self, name) for name in names}
        why = self.why
        told |= {"miss": why.english if why else "", "miss-code": why.code.value if why else ""}
        return told | {"stage": self.stage.value}


def is_lost(reason: Reason | None) -> bool:
    return reason is not None and reason.code in _LOST


_LOST = {
    *(ReasonCode.SET_ASIDE, ReasonCode.PRUNED, ReasonCode.PRUNED_BY_USER),
    *(ReasonCode.EXPIRED, ReasonCode.DELETED_MEANWHILE),
}


def headers_of(receipt: dict[str, object]) -> dict[str, str]:
    told = {f"x-kvchat-{name}": str(value)[:MOST_HEADER] for name, value in receipt.items()}
    return {name: "".join(c if " " <= c <= "~" else "?" for c in words) for name, words in told.items()}


class RequestLog:
    """The requests in progress and the last finished ones. Event loop thread only."""

    def __init__(self, shares: Callable[[], bool] = lambda: False) -> None:
        self.under_way: list[RequestRecord] = []  # oldest first
        self.last: deque[RequestRecord] = deque(maxlen=KEPT)  # newest last
        self._shares = shares
        self._numbers = itertools.count(1)
        self._listeners: list[Callable[[RequestRecord], None]] = []

    def subscribe(self, listener: Callable[[RequestRecord], None]) -> Callable[[], None]:
        """Call `listener` when a request comes or advances; return an unsubscriber."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def begin(self, program: str, dialect: str) -> RequestRecord:
        record = RequestRecord(next(self._numbers), program, dialect, time.time())
        record.kept_with = ALL_PROGRAMS if self._shares() else ""
        self.under_way.append(record)
        self._tell(record)
        return record

    def moved(self, record: RequestRecord, stage: Stage) -> None:
        """Set its stage; a finished one stays so."""
        if record.stage in OVER:
            return
        record.stage = stage
        if stage in OVER:
            record.total_ms = record.ms()
            self.under_way.remove(record)
            self.last.append(record)
        self._tell(record)

    def forget(self, program: str) -> None:
        self.last = deque((record for record in self.last if record.program != program), KEPT)

    def _tell(self, record: RequestRecord) -> None:
        for listener in tuple(self._listeners):
            listener(record)


KEPT_DAYS = 60
MOST_PROGRAMS, MOST_CAUSES = 60, 40
_MOST_FILE = 8_000_000  # bytes
_MOST_NUMBER = 10**15
_CODES = frozenset(ReasonCode)


@dataclass
class Cost:
    times: int = 0
    tokens: int = 0
    ms: float = 0.0

    def add(self, other: Cost) -> None:
        self.times, self.tokens, self.ms = self.times + other.times, self.tokens + other.tokens, self.ms + other.ms


@dataclass
class Total:
    requests: int = 0
    prompt: int = 0  # tokens
    cached: int = 0  # of those, found
    saved_ms: float = 0.0  # processing time saved
    last_at: float = 0.0  # time.time()
    misses: dict[str, Cost] = field(default_factory=dict)  # reprocessed tokens by reason code
    mended: dict[str, Cost] = field(default_factory=dict)  # saved, by rule

    def add(self, other: Total) -> None:
        self.requests += other.requests
        self.prompt += other.prompt
        self.cached += other.cached
        self.saved_ms += other.saved_ms
        self.last_at = max(self.last_at, other.last_at)
        for mine, theirs in ((self.misses, other.misses), (self.mended, other.mended)):
            for name, added in theirs.items():
                if name in mine or len(mine) < MOST_CAUSES:
                    mine.setdefault(name, Cost()).add(added)

    @property
    def share(self) -> float:
        return self.cached / self.prompt if self.prompt else 0.0


class Totals:
    """Stored in one small file; an unreadable one counts as empty. Event loop thread only, except `write`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._writing = threading.Lock()
        self._days: dict[str, dict[str, Total]] = {}  # by day and program
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, TimeoutError):
            for day, programs in read_json(file, _MOST_FILE).items():
                self._days[str(day)] = {str(name): _total(facts) for name, facts in programs.items()}

    def count(self, program: str, total: Total) -> None:
        day = datetime.fromtimestamp(total.last_at).date().isoformat()
        programs = self._days.setdefault(day, {})
        if program not in programs and len(programs) >= MOST_PROGRAMS:
            program = "other"
        programs.setdefault(program, Total()).add(total)
        for old in sorted(self._days)[:-KEPT_DAYS]:
            del self._days[old]

    def by_program(self) -> dict[str, Total]:
        found: dict[str, Total] = {}
        for _, programs in sorted(self._days.items()):
            for program, total in programs.items():
                found.setdefault(program, Total()).add(total)
        return found

    def forget(self, program: str) -> None:
        for programs in self._days.values():
            programs.pop(program, None)

    def text(self) -> str:
        return json.dumps({day: {name: asdict(one) for name, one in some.items()} for day, some in self._days.items()})

    def write(self, text: str) -> None:
        with self._writing, atomic_write(self._file, private=True) as new:
            new.write_text(text, "utf-8")


def _total(facts: Mapping[str, Any]) -> Total:
    """Parse stored totals. Raises ValueError, TypeError or AttributeError if invalid."""
    total = Total(*(_number(facts.get(name, 0)) for name in ("requests", "prompt", "cached", "saved_ms", "last_at")))
    for sums, stored in ((total.misses, "misses"), (total.mended, "mended")):
        for name, parts in facts.get(stored, {}).items():
            sums[str(name)] = Cost(*(_number(parts.get(part, 0)) for part in ("times", "tokens", "ms")))
    total.misses = {code: missed for code, missed in total.misses.items() if code in _CODES}
    return total


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_NUMBER:
        raise ValueError
    return value
