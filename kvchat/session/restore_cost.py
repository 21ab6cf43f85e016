"""Whether a restore is worth it: does it beat reading, by this machine's measured rates?"""

from __future__ import annotations

import bisect
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

LONG_MS = 2000.0  # what takes so long to read is saved at once
LEAST_GAIN = 32  # tokens; below that nothing is worth a restore, whatever the rates
LEAST_TOLD = 8  # tokens; of fewer a request's own time is most
LEAST_MEASURED = 64  # tokens; a shorter prefill says more about overheads than about the rate
_PREFILLS = 50
_RESTORES = 5  # the rate is the median of so many: one may have met a busy disk
_DOUBT = 0.8  # what is left of a rate each time it keeps a restore from being tried


@dataclass(frozen=True)
class Prefill:
    """What was read at once, and how long that took."""

    tokens: int
    after: int  # so many others
    ms: float


@dataclass(frozen=True)
class BreakEven:
    """From how many tokens on a restore is quicker than reading, and the rates that say so."""

    tokens: int | None  # None: never within the context
    prefill_ms_per_token: float
    restore_ms_per_byte: float


@dataclass
class RestoreCost:
    """Measured in this run, or recalled from an earlier one with the same model; None before that."""

    prefill_ms_per_token: float | None = None
    recent: deque[Prefill] = field(default_factory=lambda: deque(maxlen=_PREFILLS), repr=False)  # the last at the end
    _model: str = field(default="", repr=False)  # that they are about
    _restores: deque[float] = field(default_factory=lambda: deque(maxlen=_RESTORES), repr=False)

    @property
    def restore_ms_per_byte(self) -> float | None:
        """The median of the last restores."""
        return statistics.median(self._restores) if self._restores else None

    def last_ms_per_token(self, many: int) -> tuple[float | None, float | None]:
        """Of what was read last, so many tokens at once or more, and fewer, which may take longer for each."""
        rates = [(one.tokens >= many, one.ms / one.tokens) for one in self.recent if one.tokens >= LEAST_TOLD]
        last = dict(rates)
        return last.get(True, self.prefill_ms_per_token), last.get(False)

    def use_model(self, model: str) -> None:
        """From now on it is this one: what was measured with another says nothing of how fast it reads."""
        if model != self._model:
            self._model, self.prefill_ms_per_token = model, None
            self.recent.clear()

    def recall_prefill(self, ms_per_token: float | None) -> None:
        """What an earlier run measured with this model holds until this one has measured."""
        if self.prefill_ms_per_token is None:
            self.prefill_ms_per_token = ms_per_token

    def learn_prefill(self, tokens: int, ms: float, after: int = 0) -> None:
        """A request, or a step of reading ahead, read `tokens` after so many others in `ms`."""
        if tokens and ms:
            self.recent.append(Prefill(tokens, after, ms))
        if tokens >= LEAST_MEASURED:
            self.prefill_ms_per_token = ms / tokens

    def lately(self, model: str) -> Sequence[Prefill]:
        """What was measured in this run with a model, the last at the end."""
        return tuple(self.recent) if model == self._model else ()

    def learn_restore(self, size: int, ms: float) -> None:
        """A slot file of `size` bytes was put together and restored in `ms`."""
        if size:
            self._restores.append(ms / size)

    def prefill_ms(self, tokens: int) -> float:
        """An estimate of reading so many tokens; 0 where nothing was measured."""
        return tokens * (self.prefill_ms_per_token or 0.0)

    def worth(self, gain: int, size: int) -> bool:
        """Whether restoring `size` bytes beats reading `gain` tokens. Until both were measured, it is tried."""
        if gain < LEAST_GAIN:
            return False
        if self.prefill_ms_per_token is None or self.restore_ms_per_byte is None:
            return True
        return size * self.restore_ms_per_byte < gain * self.prefill_ms_per_token

    def worth_trying(self, gain: int, size: int) -> bool:
        """As `worth`, for a restore that is about to be made or left.

        What is left is not measured, so each time the restores' rate is believed a little less: one slow moment must
        not be its last word.
        """
        worth = self.worth(gain, size)
        if not worth and gain >= LEAST_GAIN:
            self._restores = deque((rate * _DOUBT for rate in self._restores), maxlen=_RESTORES)
        return worth

    def break_even(self, size_of: Callable[[int], float], context_size: int) -> BreakEven | None:
        """The least gain that is `worth` its restore; None until both rates were measured.

        `size_of`: bytes of the slot file that holds so many tokens, a part that grows with them and a fixed one.
        """
        if self.prefill_ms_per_token is None or self.restore_ms_per_byte is None:
            return None
        gains = range(context_size + 1)
        tokens = bisect.bisect_left(gains, True, key=lambda gain: self.worth(gain, int(size_of(gain))))
        return BreakEven(tokens if tokens in gains else None, self.prefill_ms_per_token, self.restore_ms_per_byte)
