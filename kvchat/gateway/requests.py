"""What is known of the requests that came through the door: those that wait or are answered, and the last ones.

Never a word of a prompt: programs, models, counts and times, named as in the headers and in `/kvchat/requests`.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from kvchat.gateway.medicine import Change, Parting
from kvchat.kvstore.savepoint import kept_for
from kvchat.words.reasons import Reason, ReasonCode

KEPT = 500  # receipts
MOST_HEADER = 500  # characters
MOST_NAME = 200  # characters of a model's name that are remembered: clients may name anything
# These leave open why; any other reason is the true one.
UNTOLD = (None, Reason(ReasonCode.NOTHING_ALIKE), Reason(ReasonCode.GOES_ON_OTHERWISE))
LEAST_READ, ABOUT = 64, 64  # tokens: fewer that are read are not worth a word; what is found ends about there
ALL_PROGRAMS = "all programs"  # whose memory it is where programs share it; none is called so, for it has a space
_NOT_TOLD = ("_began", "chat", "reply", "whole", "unheard", "parting", "changes", "keyed", "kept_with")


class Stage(Enum):
    """How far a request is."""

    QUEUED = "queued"  # others are before it, or no engine is ready yet
    LOADING = "loading"  # what is kept of its prompt is being restored
    READING = "reading"  # the rest of its prompt is being read, in steps
    ANSWERING = "answering"
    DONE = "done"
    FAILED = "failed"
    LEFT = "left"  # the client went away


OVER = (Stage.DONE, Stage.FAILED, Stage.LEFT)


@dataclass
class Passage:
    """One request's way through the door. Times in ms; counts in tokens; None where it is not known (yet)."""

    id: int
    program: str
    dialect: str  # the path it came by
    at: float  # time.time()
    model: str = ""  # that the client named
    answering_model: str = ""  # that answers, which is another one where nobody has the named one
    stream: bool = False
    stage: Stage = Stage.QUEUED
    status: int = 0  # of the answer
    source: str = ""  # as a reply's receipt has it: hot, warm, disk, cold; proved once `cached` is known
    found: int | None = None  # of the prompt's tokens, in a slot or in the store, before it was read
    prompt: int | None = None
    read: int = 0  # so far
    cached: int | None = None  # what the engine's own count proved
    predicted: int | None = None
    queue_ms: float = 0.0
    restore_ms: float = 0.0
    read_ms: float = 0.0  # of steps and of the engine's own reading
    first_ms: float | None = None  # until the first byte of the answer went out
    write_ms: float = 0.0  # of an answer in one piece, before that byte
    total_ms: float | None = None
    miss: Reason | None = None  # why more had to be read than need be
    saved_ms: float = 0.0  # what reading the found tokens would have taken
    slot: int | None = None
    mended: dict[str, int] = field(default_factory=dict)  # tokens that each rule has spared
    whole: bool = False  # the model's states serve all of their tokens, or none
    unheard: bool = False  # nothing like it is remembered of the program
    parting: Parting | None = None  # from the closest prompt before it; its texts are never told outside the window
    changes: tuple[Change, ...] = ()  # of the rules that are on; so are theirs
    keyed: bool = False  # the program has shown a key that is its own
    kept_with: str = ""  # whose memory it shares, if not its own program's
    _began: float = field(default_factory=time.perf_counter, repr=False)

    def ms(self) -> float:
        """Since it came."""
        return 1000 * (time.perf_counter() - self._began)

    @property
    def owner(self) -> str:
        """Whose its state is in the slots and in the store."""
        return kept_for(self.kept_with or self.program)

    @property
    def was_known(self) -> bool:
        """Whether the program has asked before what begins like it, as far as is remembered."""
        return not self.unheard and (self.parting is None or self.parting.at >= ABOUT)

    @property
    def broken(self) -> Parting | None:
        """Where its prompt parted, if that is why much of it had to be read: not if more was found elsewhere."""
        parting, known = self.parting, self.found if self.cached is None else self.cached
        if parting is None or self.miss not in UNTOLD:
            return None
        if self.prompt is None or known is None or self.prompt - known < LEAST_READ:
            return None
        elsewhere = not self.whole and known < parting.at - ABOUT  # even what is the same was not found
        return None if parting.expected or elsewhere or known > parting.at + ABOUT else parting

    @property
    def why(self) -> Reason | None:
        """Why more had to be read than need be; None where it had not."""
        parting = self.broken
        return parting.cause if parting else self.miss

    def receipt(self) -> dict[str, object]:
        """What is known of it so far, by the names of the headers."""
        why = self.why
        told: dict[str, object] = {"source": self.source or None, "found": self.found}
        told |= {"miss": why.english, "miss-code": why.code.value} if why else {}
        told |= {"restore-ms": None if self.found is None else round(self.restore_ms)}
        told |= {"cached": self.cached, "prompt": self.prompt, "model": self.answering_model or None}
        return {name: value for name, value in told.items() if value is not None}

    def as_json(self) -> dict[str, Any]:
        """What `GET /kvchat/requests` tells of it, by the names of the headers where they tell it, too."""
        told = {
            one.name.replace("_", "-"): getattr(self, one.name) for one in fields(self) if one.name not in _NOT_TOLD
        }
        why = self.why
        told |= {"miss": why.english if why else "", "miss-code": why.code.value if why else ""}
        return told | {"stage": self.stage.value}


def is_lost(reason: Reason | None) -> bool:
    """True if something that was kept is kept no longer."""
    return reason is not None and reason.code in _LOST


_LOST = {
    *(ReasonCode.SET_ASIDE, ReasonCode.PRUNED, ReasonCode.PRUNED_BY_USER),
    *(ReasonCode.EXPIRED, ReasonCode.DELETED_MEANWHILE),
}


def headers_of(receipt: dict[str, object]) -> dict[str, str]:
    """It as an answer's headers can hold it."""
    told = {f"x-kvchat-{name}": str(value)[:MOST_HEADER] for name, value in receipt.items()}
    return {name: "".join(c if " " <= c <= "~" else "?" for c in words) for name, words in told.items()}


class Passages:
    """The requests that are under way, and the last ones that are over. Of the event loop's thread."""

    def __init__(self, shares: Callable[[], bool] = lambda: False) -> None:
        """`shares`: whether all programs share their memory."""
        self.under_way: list[Passage] = []  # oldest first
        self.last: deque[Passage] = deque(maxlen=KEPT)  # newest last
        self._shares = shares
        self._numbers = itertools.count(1)
        self._listeners: list[Callable[[Passage], None]] = []

    def subscribe(self, listener: Callable[[Passage], None]) -> Callable[[], None]:
        """Call `listener` whenever a request came or got on; returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def begin(self, program: str, dialect: str) -> Passage:
        """A request has come."""
        passage = Passage(next(self._numbers), program, dialect, time.time())
        passage.kept_with = ALL_PROGRAMS if self._shares() else ""
        self.under_way.append(passage)
        self._tell(passage)
        return passage

    def moved(self, passage: Passage, stage: Stage) -> None:
        """It got on; what is over stays over."""
        if passage.stage in OVER:
            return
        passage.stage = stage
        if stage in OVER:
            passage.total_ms = passage.ms()
            self.under_way.remove(passage)
            self.last.append(passage)
        self._tell(passage)

    def forget(self, program: str) -> None:
        """Those of a program that are over."""
        kept = [one for one in self.last if one.program != program]
        self.last.clear()
        self.last.extend(kept)

    def _tell(self, passage: Passage) -> None:
        for listener in tuple(self._listeners):
            listener(passage)
