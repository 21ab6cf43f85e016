"""How long the next reply will be waited for, by what earlier ones took on this machine. Pure values and functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

import numpy as np
import numpy.typing as npt

from kvchat.chat.record.messages import Receipt
from kvchat.session.proof import Source
from kvchat.session.reading import WHOLE_STEP
from kvchat.session.restore_cost import Prefill
from kvchat.words.language import N_, _, several
from kvchat.words.wording import STILL_LOADED, rough_duration, roughly

NOTICEABLE_MS = 1000.0  # a shorter wait is not told
SHORT_MESSAGE = 32  # tokens that any message has
_RESTORED = (Source.WARM, Source.DISK)
_JUST_NOW = 3  # so many that were read last say whether the machine is busy
_SAMPLES_FOR_ONE = 2  # more, for each number that is learned beyond the first
_ROUNDS = 10  # of weighing
_FAR = 20  # times as many tokens as were read before: what is true of a greeting is not of a book

Numbers = npt.NDArray[np.float64]
Sample = tuple[Sequence[float], float]  # what something depends on, and how long it took in ms


@dataclass(frozen=True)
class Forecast:
    """What the next reply of a chat will wait for."""

    source: Source  # where what was said so far will come from
    to_read: int  # tokens, after Send
    ms: float | None = None  # to the first token; None where nothing like it was measured yet
    begun: bool = True  # something was said

    @property
    def noticeable(self) -> bool:
        """Whether the wait is worth a word."""
        return self.ms is not None and self.ms >= NOTICEABLE_MS

    @property
    def short(self) -> str:
        """For a narrow place: "4 s"; empty where nobody would notice."""
        return rough_duration(self.ms / 1000) if self.ms is not None and self.noticeable else ""

    @property
    def of_chat(self) -> str:
        """For a chat in a list: where it is, and what that means."""
        if not self.begun:
            return _("nothing said yet")
        where = _(_WHERE[self.source])
        if self.ms is not None and self.noticeable:
            return _("{where}: answers in {time}", where=where, time=roughly(self.ms / 1000))
        return f"{where}: {_(_OTHERWISE[self.source])}" if self.source in _OTHERWISE else where

    @property
    def of_message(self) -> str:
        """For a message that is being written: "about 4 s: 2,100 tokens to read"; empty where nobody would notice."""
        if self.ms is None or not self.noticeable:
            return ""
        time = roughly(self.ms / 1000)
        if self.source in _RESTORED:
            return several(
                self.to_read,
                "{time}: loading it, and {count} token to read",
                "{time}: loading it, and {count} tokens to read",
                time=time,
            )
        return several(self.to_read, "{time}: {count} token to read", "{time}: {count} tokens to read", time=time)


_WHERE = {
    Source.AHEAD: STILL_LOADED,
    Source.HOT: STILL_LOADED,
    Source.WARM: N_("remembered, in memory"),
    Source.DISK: N_("remembered, on disk"),
    Source.COLD: N_("must be read again"),
}
_OTHERWISE = dict.fromkeys(_RESTORED, N_("comes back in a moment")) | {
    Source.AHEAD: N_("answers at once"),
    Source.HOT: N_("answers at once"),
}


@dataclass(frozen=True)
class Rates:
    """What this machine takes with one model. Weights, one for each number that `_load` and `_work` make of a case."""

    first_token_ms: float = 0.0
    prefill: Sequence[float] = ()  # empty: never measured
    slowness: float = 1.0  # by so much everything takes longer just now
    restore: dict[Source, Sequence[float]] = field(default_factory=dict)
    reach: tuple[int, int] = (0, 0)  # how deep was read so far, at all and in small steps

    @classmethod
    def learned(cls, receipts: Iterable[Receipt], lately: Sequence[Prefill] = ()) -> Rates:
        """From receipts of one model, in any order, and what was read with it in this run, the last at the end."""
        receipts = list(receipts)
        told = [
            Prefill(one.prompt_tokens - one.cached_tokens, one.cached_tokens, one.prefill_ms)
            for one in receipts
            if one.prefill_ms > 0 and one.prompt_tokens > one.cached_tokens
        ]
        reach = _reach(told, lately)
        read, now = ([(_work(one.tokens, one.after, reach), one.ms) for one in some] for some in (told, lately))
        prefill = _fitted([*read, *now])
        restored = {
            source: _fitted(
                (_load(one.restored_bytes), one.restore_ms)
                for one in receipts
                if one.source is source and one.restored_bytes and one.restore_ms > 0
            )
            for source in _RESTORED
        }
        usual = median(one.first_token_ms for one in receipts) if receipts else 0.0
        known = {source: weights for source, weights in restored.items() if weights}
        return cls(usual, prefill, _slowness(prefill, now[-_JUST_NOW:]), known, reach)

    def prefill_ms(self, tokens: int, after: int) -> float:
        """Reading so many tokens after so many others. 0 where nothing was ever read."""
        return _sum(self.prefill, _work(tokens, after, self.reach)) if self.prefill else 0.0

    def restore_ms(self, source: Source, size: int) -> float:
        """Restoring so many bytes from there; from elsewhere, where only that was measured."""
        weights = self.restore.get(source) or next(iter(self.restore.values()), ())
        return _sum(weights, _load(size)) if weights else 0.0

    def ttft_ms(self, tokens: int, after: int, source: Source = Source.HOT, size: int = 0) -> float | None:
        """From Send to the first token: a restore of `size` bytes, then reading. None: nothing like it was measured."""
        if not self.prefill or tokens > _FAR * self.reach[0]:
            return None
        restore = self.restore_ms(source, size) if source in _RESTORED else 0.0
        return self.slowness * (restore + self.prefill_ms(tokens, after) + self.first_token_ms)


def _work(tokens: int, after: int, reach: tuple[int, int]) -> tuple[float, ...]:
    """What reading costs: by the token, by the request, and more for each the deeper it stands, most in small steps.

    No deeper than was read before: a few short messages at a chat's beginning say nothing of one after thousands of
    tokens, and what little they differ by would become minutes there.
    """
    deep, short = (tokens * min(after + tokens / 2, most) for most in reach)
    return float(tokens), 1.0, deep, short if tokens < WHOLE_STEP else 0.0


def _reach(*read: Iterable[Prefill]) -> tuple[int, int]:
    ends = [(one.after + one.tokens, one.tokens < WHOLE_STEP) for some in read for one in some]
    return max((end for end, _ in ends), default=0), max((end for end, short in ends if short), default=0)


def _slowness(weights: Sequence[float], last: Sequence[Sample]) -> float:
    """What the last ones took by what they should have; where they do not agree that it was more, or less: nothing."""
    ratios = [took / usual for case, took in last if (usual := _sum(weights, case)) > 0]
    agree = len(ratios) >= _JUST_NOW and (min(ratios) > 1 or max(ratios) < 1)
    return median(ratios) if agree else 1.0


def _load(size: int) -> tuple[float, ...]:
    """What restoring costs: by the byte, and by the request."""
    return float(size), 1.0


def _sum(weights: Sequence[float], case: Sequence[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, case, strict=True))


def _fitted(samples: Iterable[Sample]) -> Sequence[float]:
    """What each number of a case weighs, none less than nothing; empty without samples.

    With few samples only the first numbers count.
    """
    samples = list(samples)
    if not samples:
        return ()
    cases, took = np.array([case for case, _ in samples]), np.array([ms for _, ms in samples])
    known, best, least = cases.shape[1], np.zeros(cases.shape[1]), np.inf
    for count in range(min(known, 1 + (len(samples) - 1) // _SAMPLES_FOR_ONE)):
        for others in combinations(range(1, known), count):
            chosen = [0, *others]
            weights, off = _least_off(cases[:, chosen], took)
            if (weights >= 0).all() and off < least:
                best, least = np.zeros(known), off
                best[chosen] = weights
    return tuple(map(float, best))


def _least_off(cases: Numbers, took: Numbers) -> tuple[Numbers, float]:
    """The weights that are least off, and by how much, each by the square root of what was measured.

    So a long wait counts more than a short one, but not by its length. Not the squares but the errors themselves are
    least, by weighing the squares anew a few times: one reply that met a busy machine changes little.
    """
    scale, trust = cases.mean(axis=0), 1 / np.sqrt(took)
    scale[scale == 0] = 1.0
    for _round in range(_ROUNDS):
        weights = np.linalg.lstsq(cases / scale * trust[:, None], took * trust, rcond=None)[0]
        off = np.abs(cases / scale @ weights - took)
        trust = 1 / np.sqrt(np.sqrt(took) * np.maximum(off, 0.01 * took))
    return weights / scale, float((off / np.sqrt(took)).sum())
