"""Measured rates of processing and restoring on this machine, and whether a restore is faster."""

import bisect
import statistics
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kvchat.text.formatting import TimeRange

LONG_PREFILL_MS = 2000.0  # processing this long is saved at once
MIN_GAIN = 32  # tokens; restoring fewer is never worth it
MIN_LEARNED_TOKENS = 8  # for fewer, overhead dominates
# Tokens; fewer measure overhead, not the rate. On a CPU, llama.cpp's attention takes two to five times as long
# per token for fewer tokens, growing with their depth.
MIN_MEASURED_TOKENS = 64
_MAX_SAMPLES = 50  # kept per model
_FORECAST_SAMPLES = 5  # used for a forecast
_MAX_EXTRAPOLATION = 20  # factor: a sample does not predict much longer texts
_STEADY_SPREAD, _MAX_SPREAD = 1.5, 4.0  # rate spread up to which one figure or a range is given
_RESTORE_SAMPLES = 5  # the rate is the median of these: one may have hit a busy disk
_SKIP_FACTOR = 0.8  # factor applied to a rate each time it prevents a restore


class PrefillSample(NamedTuple):
    tokens: int
    ms: float
    end: int = -1  # tokens in the slot afterwards; -1: unknown


class PrefillSpeed:
    """A model's processing speed on this machine: the only source of forecasts.

    No estimate is made for texts much longer than those measured so far, because overhead dominates short ones.
    """

    def __init__(self) -> None:
        self.samples: deque[PrefillSample] = deque(maxlen=_MAX_SAMPLES)  # newest last
        self.has_earlier_samples = False  # earlier runs are loaded
        self._steps: dict[bool, float] = {}  # ms per token of the last step; True: a whole step

    def learn(self, tokens: int, ms: float, preceding: int) -> None:
        """Record that `tokens` were processed in `ms`, with `preceding` tokens before them in the slot."""
        if not (tokens and ms):
            return
        if tokens >= MIN_LEARNED_TOKENS:
            self._steps[tokens >= MIN_MEASURED_TOKENS] = ms / tokens
        before = PrefillSample(0, 0.0)
        if self.samples and self.samples[-1].end == preceding >= 0:
            before = self.samples.pop()
        self.samples.append(PrefillSample(before.tokens + tokens, before.ms + ms, preceding + tokens))

    def add_earlier_samples(self, samples: Iterable[tuple[int, float]]) -> None:
        """Add samples of earlier runs as (tokens, ms), oldest first. Only the first call has an effect."""
        if not self.has_earlier_samples:
            self.has_earlier_samples = True
            self.samples = deque((*(PrefillSample(*sample) for sample in samples), *self.samples), maxlen=_MAX_SAMPLES)

    def step_rates(self) -> dict[bool, float]:
        """Return ms per token of the last full-size step (True) and of the last smaller one, which may be slower."""
        average = self.ms_per_token
        return ({True: average} if average else {}) | self._steps

    @property
    def ms_per_token(self) -> float | None:
        """Median of the last samples, or None until one sample is long enough."""
        rates = self._rates(0)
        return statistics.median(rates) if rates else None

    def estimate_ms(self, tokens: int) -> float | None:
        """Estimate a single time for decisions; `forecast` is for display."""
        rates = self._rates(tokens)
        rate = statistics.median(rates) if rates else self.ms_per_token
        return rate and tokens * rate

    def forecast(self, tokens: int, extra_ms: float = 0.0) -> TimeRange | None:
        """Estimate the time to process `tokens`, plus `extra_ms`; None if too little is known.

        One figure if the last samples agree, a range if they differ, None if they are too far apart. Of five, the
        slowest and fastest are dropped as busy or idle moments.
        """
        rates = sorted(self._rates(tokens))
        if len(rates) == _FORECAST_SAMPLES:
            rates = rates[1:-1]
        if not rates or rates[-1] > _MAX_SPREAD * rates[0]:
            return None
        if rates[-1] <= _STEADY_SPREAD * rates[0]:
            rates = [statistics.median(rates)]
        least, most = ((extra_ms + tokens * rate) / 1000 for rate in (rates[0], rates[-1]))
        return TimeRange(least, most)

    def _rates(self, tokens: int) -> list[float]:
        """Return ms per token of the last samples long enough to be valid for this many tokens."""
        least = max(MIN_MEASURED_TOKENS, tokens / _MAX_EXTRAPOLATION)
        return [sample.ms / sample.tokens for sample in self.samples if sample.tokens >= least][-_FORECAST_SAMPLES:]


@dataclass(frozen=True)
class BreakEven:
    tokens: int | None  # None: never within the context
    prefill_ms_per_token: float
    restore_ms_per_byte: float


class RestoreCost:
    def __init__(self) -> None:
        self._speeds: dict[str, PrefillSpeed] = {}  # by model
        self.speed = self.speed_of("")  # of the model in use
        self._restores: deque[float] = deque(maxlen=_RESTORE_SAMPLES)

    @property
    def restore_ms_per_byte(self) -> float | None:
        return statistics.median(self._restores) if self._restores else None

    def speed_of(self, model: str) -> PrefillSpeed:
        """Return the speed of a model, by its fingerprint name."""
        return self._speeds.setdefault(model, PrefillSpeed())

    def use_model(self, model: str) -> None:
        self.speed = self.speed_of(model)

    def record_restore(self, size: int, ms: float) -> None:
        """Record that a slot file of `size` bytes was assembled and restored in `ms`."""
        if size:
            self._restores.append(ms / size)

    def prefill_ms(self, tokens: int) -> float:
        """Estimate the processing time; 0 if nothing was measured."""
        return self.speed.estimate_ms(tokens) or 0.0

    def is_worthwhile(self, gain: int, size: int) -> bool:
        """True if `gain` tokens are enough and restoring `size` bytes beats processing, or if a rate is unknown."""
        if gain < MIN_GAIN:
            return False
        rate = self.speed.ms_per_token
        if rate is None or self.restore_ms_per_byte is None:
            return True
        return size * self.restore_ms_per_byte < gain * rate

    def is_worth_trying(self, gain: int, size: int) -> bool:
        """Like `is_worthwhile`, for a restore about to be made or skipped.

        A skipped restore is not measured, so each skip lowers the restore rate a little: one slow moment must not be
        final.
        """
        is_worthwhile = self.is_worthwhile(gain, size)
        if not is_worthwhile and gain >= MIN_GAIN:
            self._restores = deque((rate * _SKIP_FACTOR for rate in self._restores), maxlen=_RESTORE_SAMPLES)
        return is_worthwhile

    def break_even(self, size_of: Callable[[int], float], context_size: int) -> BreakEven | None:
        """Return the smallest number of tokens worth restoring; None until both rates are measured.

        `size_of`: slot file bytes for a number of tokens: a fixed part plus one that grows with it.
        """
        rate = self.speed.ms_per_token
        if rate is None or self.restore_ms_per_byte is None:
            return None
        gains = range(context_size + 1)
        tokens = bisect.bisect_left(gains, True, key=lambda gain: self.is_worthwhile(gain, int(size_of(gain))))
        return BreakEven(tokens if tokens in gains else None, rate, self.restore_ms_per_byte)
