"""Records of the gateway's requests: active and recent requests in memory, daily totals on disk.

Reports and files contain programs, models, counts and times, never prompt text.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from kvchat.gateway.diagnosis.prompts import Divergence
from kvchat.gateway.diagnosis.rules import PromptChange
from kvchat.kvstore.savepoint import is_device, program_owner
from kvchat.system.files import atomic_write, read_json
from kvchat.text.reasons import Reason, ReasonCode

MAX_RECENT = 500  # finished requests
MAX_HEADER = 500  # characters
MAX_MODEL_NAME = 200  # characters kept of the name that a client chose
# These do not explain a miss; any other reason does.
UNEXPLAINED = (None, Reason(ReasonCode.NOTHING_ALIKE), Reason(ReasonCode.GOES_ON_OTHERWISE))
MIN_EXPLAINED, TOLERANCE = 64, 64  # tokens: fewer need no explanation; tolerance for a match's length
ALL_PROGRAMS = "all programs"  # owner of shared memory; no program's name contains a space


class Stage(Enum):
    QUEUED = "queued"  # waits for others or for an engine
    LOADING = "loading"  # its saved prompt prefix is being restored
    READING = "reading"  # the rest of its prompt is processed in steps
    ANSWERING = "answering"
    DONE = "done"
    FAILED = "failed"
    LEFT = "left"  # the client disconnected


FINISHED = (Stage.DONE, Stage.FAILED, Stage.LEFT)
# Published names in `GET /kvchat/requests`, where they differ from the fields' names.
_JSON_NAMES = {
    **{"started_at": "at", "found_tokens": "found", "processed_tokens": "read"},
    **{"prompt_tokens": "prompt", "cached_tokens": "cached", "generated_tokens": "predicted"},
    **{"processing_ms": "read_ms", "generation_ms": "write_ms"},
}


@dataclass
class RequestRecord:
    """A request to the gateway. Times are in ms, counts in tokens; None means not known yet."""

    id: int
    program: str
    dialect: str  # request path
    started_at: float  # time.time()
    model: str = ""  # named by the client
    answering_model: str = ""  # the model used; differs if the requested one is missing
    stream: bool = False
    stage: Stage = Stage.QUEUED
    status: int = 0  # HTTP status
    source: str = ""  # as in a reply's receipt: hot, warm, disk, cold; proved once `cached_tokens` is known
    found_tokens: int | None = None  # of the prompt, found in a slot or the store beforehand
    prompt_tokens: int | None = None
    processed_tokens: int = 0  # so far
    cached_tokens: int | None = None  # proved by the engine's count
    generated_tokens: int | None = None
    queue_ms: float = 0.0
    restore_ms: float = 0.0
    restored_bytes: int = 0
    ahead_tokens: int = 0  # processed before the request came
    ahead_ms: float = 0.0
    processing_ms: float = 0.0  # steps plus the engine's processing
    first_ms: float | None = None  # until the first answer byte was sent
    generation_ms: float = 0.0  # generation time of a non-streamed answer
    total_ms: float | None = None
    miss: Reason | None = None  # why tokens had to be reprocessed, apart from a divergence
    saved_ms: float = 0.0  # processing time saved
    slot: int | None = None
    saved_by_rule: dict[str, int] = field(default_factory=dict)  # tokens, by rule name
    cannot_cut_states: bool = False  # the engine cannot cut states
    is_unlike_stored: bool = False  # no similar prompt is known for the program
    divergence: Divergence | None = None  # from the closest earlier prompt; its texts are shown only in the window
    changes: tuple[PromptChange, ...] = ()  # by enabled rules; shown only in the window
    has_own_key: bool = False  # the program used its own API key
    shares_memory: bool = False  # all programs share their memory
    chat: str = ""  # the client's name of the chat
    should_save: bool = True
    _began: float = field(default_factory=time.perf_counter, repr=False)

    def elapsed_ms(self) -> float:
        return 1000 * (time.perf_counter() - self._began)

    @property
    def owner(self) -> str:
        return program_owner(ALL_PROGRAMS if self.shares_memory else self.program, self.chat)

    @property
    def is_known_prompt(self) -> bool:
        """True if the program is known to have sent another prompt that begins in the same way."""
        return not self.is_unlike_stored and (self.divergence is None or self.divergence.shared_tokens >= TOLERANCE)

    @property
    def costly_divergence(self) -> Divergence | None:
        """The divergence if it explains why much of the prompt was reprocessed, else None."""
        divergence, known = self.divergence, self.found_tokens if self.cached_tokens is None else self.cached_tokens
        if divergence is None or divergence.is_expected or self.miss not in UNEXPLAINED:
            return None
        if self.prompt_tokens is None or known is None or self.prompt_tokens - known < MIN_EXPLAINED:
            return None
        found_less = (
            not self.cannot_cut_states and known < divergence.shared_tokens - TOLERANCE
        )  # not even the shared part
        return None if found_less or known > divergence.shared_tokens + TOLERANCE else divergence

    @property
    def miss_reason(self) -> Reason | None:
        divergence = self.costly_divergence
        return divergence.cause if divergence else self.miss

    def receipt(self) -> dict[str, object]:
        reason = self.miss_reason
        values: dict[str, object] = {"source": self.source or None, "found": self.found_tokens}
        values |= {"miss": reason.english, "miss-code": reason.code.value} if reason else {}
        if self.found_tokens is not None:
            values |= {"restore-ms": round(self.restore_ms), "restore-bytes": self.restored_bytes or None}
            values |= {"ahead": self.ahead_tokens or None, "ahead-ms": round(self.ahead_ms) or None}
        values |= {"cached": self.cached_tokens, "prompt": self.prompt_tokens, "model": self.answering_model or None}
        return {name: value for name, value in values.items() if value is not None}

    def as_json(self) -> dict[str, Any]:
        """Return the entry for `GET /kvchat/requests`, with the same names as in response headers."""
        names = [field.name for field in fields(self)]
        values = {
            _JSON_NAMES.get(name, name).replace("_", "-"): getattr(self, name)
            for name in names[: names.index("cannot_cut_states")]
        }
        reason = self.miss_reason
        values |= {"miss": reason.english if reason else "", "miss-code": reason.code.value if reason else ""}
        return values | {"stage": self.stage.value}


def is_lost(reason: Reason | None) -> bool:
    return reason is not None and reason.code in _LOST


_LOST = {
    *(ReasonCode.SET_ASIDE, ReasonCode.PRUNED, ReasonCode.PRUNED_BY_USER),
    *(ReasonCode.EXPIRED, ReasonCode.DELETED_MEANWHILE),
}


def headers_of(receipt: dict[str, object]) -> dict[str, str]:
    headers = {f"x-kvchat-{name}": str(value)[:MAX_HEADER] for name, value in receipt.items()}
    return {name: "".join(c if " " <= c <= "~" else "?" for c in value) for name, value in headers.items()}


class RequestLog:
    """The active and the most recently finished requests. Event loop thread only."""

    def __init__(self, shares: Callable[[], bool] = lambda: False) -> None:
        self.active: list[RequestRecord] = []  # oldest first
        self.recent: deque[RequestRecord] = deque(maxlen=MAX_RECENT)  # newest last
        self._shares = shares
        self._numbers = itertools.count(1)
        self._listeners: list[Callable[[RequestRecord], object]] = []

    def subscribe(self, listener: Callable[[RequestRecord], object]) -> Callable[[], None]:
        """Call `listener` when a request arrives or progresses; return a function to unsubscribe."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def add(self, program: str, dialect: str) -> RequestRecord:
        shares = self._shares() and not is_device(program)
        record = RequestRecord(next(self._numbers), program, dialect, time.time(), shares_memory=shares)
        self.active.append(record)
        self.set_stage(record, Stage.QUEUED)
        return record

    def set_stage(self, record: RequestRecord, stage: Stage) -> None:
        """Set a request's stage and notify listeners, unless the request has already finished."""
        if record.stage in FINISHED:
            return
        record.stage = stage
        if stage in FINISHED:
            record.total_ms = record.elapsed_ms()
            self.active.remove(record)
            self.recent.append(record)
        for listener in tuple(self._listeners):
            listener(record)

    def forget(self, program: str) -> None:
        self.recent = deque((record for record in self.recent if record.program != program), MAX_RECENT)


MAX_DAYS = 60
MAX_PROGRAMS, MAX_CAUSES = 60, 40
_MAX_FILE = 8_000_000  # bytes
_MAX_NUMBER = 10**15
_CODES = frozenset(ReasonCode)


@dataclass
class TokenCost:
    times: int = 0
    tokens: int = 0
    ms: float = 0.0

    def add(self, other: TokenCost) -> None:
        self.times, self.tokens, self.ms = self.times + other.times, self.tokens + other.tokens, self.ms + other.ms


@dataclass
class ProgramTotal:
    requests: int = 0
    prompt: int = 0  # tokens
    cached: int = 0  # prompt tokens that were cached
    saved_ms: float = 0.0  # processing time saved
    last_at: float = 0.0  # time.time()
    misses: dict[str, TokenCost] = field(default_factory=dict)  # reprocessed tokens by reason code
    saved_by_rule: dict[str, TokenCost] = field(default_factory=dict)

    @classmethod
    def of(cls, record: RequestRecord, prefill_ms: Callable[[int], float]) -> ProgramTotal:
        """Return the totals of one request; `prefill_ms` estimates the time to process a number of tokens."""
        prompt, cached, divergence = record.prompt_tokens or 0, record.cached_tokens or 0, record.costly_divergence
        total = cls(1, prompt, cached, record.saved_ms, time.time())
        if reason := divergence.cause if divergence else record.miss if is_lost(record.miss) else None:
            total.misses[reason.code] = TokenCost(1, prompt - cached, record.processing_ms)
        total.saved_by_rule |= {
            rule: TokenCost(1, tokens, prefill_ms(tokens)) for rule, tokens in record.saved_by_rule.items()
        }
        return total

    def add(self, other: ProgramTotal) -> None:
        self.requests += other.requests
        self.prompt += other.prompt
        self.cached += other.cached
        self.saved_ms += other.saved_ms
        self.last_at = max(self.last_at, other.last_at)
        for own, theirs in ((self.misses, other.misses), (self.saved_by_rule, other.saved_by_rule)):
            for name, cost in theirs.items():
                if name in own or len(own) < MAX_CAUSES:
                    own.setdefault(name, TokenCost()).add(cost)

    @property
    def cached_share(self) -> float:
        return self.cached / self.prompt if self.prompt else 0.0


class DailyTotals:
    """Daily totals in one file; an unreadable file counts as empty. Event loop thread only, except `write`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._writing = threading.Lock()
        self._days: dict[str, dict[str, ProgramTotal]] = {}  # by day and program
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, TimeoutError):
            for day, programs in read_json(file, _MAX_FILE).items():
                self._days[str(day)] = {str(name): _parse_total(facts) for name, facts in programs.items()}

    def count(self, program: str, total: ProgramTotal) -> None:
        day = datetime.fromtimestamp(total.last_at).date().isoformat()
        programs = self._days.setdefault(day, {})
        if program not in programs and len(programs) >= MAX_PROGRAMS:
            program = "other"
        programs.setdefault(program, ProgramTotal()).add(total)
        for old in sorted(self._days)[:-MAX_DAYS]:
            del self._days[old]

    def by_program(self) -> dict[str, ProgramTotal]:
        totals: dict[str, ProgramTotal] = {}
        for _, programs in sorted(self._days.items()):
            for program, total in programs.items():
                totals.setdefault(program, ProgramTotal()).add(total)
        return totals

    def forget(self, program: str) -> None:
        for programs in self._days.values():
            programs.pop(program, None)

    def as_text(self) -> str:
        return json.dumps(self._days, default=asdict)

    def write(self, text: str) -> None:
        with self._writing, atomic_write(self._file, private=True) as new:
            new.write_text(text, "utf-8")


def _parse_total(facts: Mapping[str, Any]) -> ProgramTotal:
    """Parse stored totals. Raises ValueError, TypeError or AttributeError if invalid."""

    def numbers(values: Mapping[str, Any], *names: str) -> Iterator[Any]:
        for name in names:
            if type(value := values.get(name, 0)) not in (int, float) or not 0 <= value < _MAX_NUMBER:
                raise ValueError
            yield value

    misses, saved_by_rule = (
        {key: TokenCost(*numbers(values, "times", "tokens", "ms")) for key, values in facts.get(name, {}).items()}
        for name in ("misses", "saved_by_rule")
    )
    total = ProgramTotal(*numbers(facts, "requests", "prompt", "cached", "saved_ms", "last_at"))
    total.misses = {code: cost for code, cost in misses.items() if code in _CODES}
    total.saved_by_rule = saved_by_rule
    return total
