"""Result of a restore, and its verdict from the next request's counts. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kvchat.text.reasons import Reason, ReasonCode

if TYPE_CHECKING:
    from kvchat.engine.api.wire import Timings
    from kvchat.kvstore.savepoint import SavePoint, Tier

# A restore is proved if the engine reused this share of the possible tokens, hollow below the other.
PROVED_SHARE, HOLLOW_SHARE = 0.9, 0.5
# A prefix shared by all prompts, such as the template's start, proves no memory.
MIN_SHARE, MIN_TOKENS = 0.1, 64

NOTICEABLE_MS = 250.0  # users notice this delay


class Source(Enum):
    """Origin of a prompt's prefix, proved by the engine's cache_n."""

    AHEAD = "ahead"  # a good part was processed before it was requested

    HOT = "hot"  # already in the slot
    WARM = "warm"  # restored from staging in RAM; value of `Tier`
    DISK = "disk"  # restored from the cold tier; value of `Tier`
    COLD = "cold"  # prefilled


@dataclass(frozen=True)
class RestoreRecord:
    """A restore accepted by the engine, which the next request must prove."""

    save_point: SavePoint
    n_tokens: int  # its tokens that the slot should hold now
    tier: Tier
    bytes: int  # of the slot file the engine read
    ms: float  # rebuilding, verification and restore together
    finished_at: float  # time.perf_counter()

    def ms_since(self, moment: float) -> float:
        """Return how many ms of the restore fell after `moment` (time.perf_counter())."""
        return max(0.0, min(self.ms, 1000 * (self.finished_at - moment)))


@dataclass(frozen=True)
class PrefilledAhead:
    """Tokens at the end of a slot that were processed before they were requested, and the time taken."""

    tokens: int = 0
    ms: float = 0.0

    def limited_to(self, tokens: int, held_tokens: int) -> PrefilledAhead:
        """Return the part within the first `held_tokens` of the slot's `tokens`."""
        left = max(0, self.tokens - (tokens - held_tokens))
        return PrefilledAhead(left, self.ms * left / self.tokens) if left else NOTHING_AHEAD


NOTHING_AHEAD = PrefilledAhead()


@dataclass(frozen=True)
class LoadedState:
    expected_cached: int  # tokens expected from the engine's cache
    restore: RestoreRecord | None  # to be proved by the next cache_n
    miss_reason: Reason | None
    prefilled_ahead: PrefilledAhead = NOTHING_AHEAD  # of those tokens


NOTHING_LOADED = LoadedState(0, None, None)


@dataclass(frozen=True)
class Verdict:
    source: Source
    hollow: bool
    miss_reason: Reason | None


@dataclass(frozen=True)
class LoadResult:
    loaded: LoadedState
    timings: Timings
    verdict: Verdict


def judge_load(loaded: LoadedState, cached: int, prompt: int) -> Verdict:
    """Judge a load by the next request: `cached` of its `prompt` tokens came from the engine's cache."""
    expected = loaded.expected_cached
    if cached < HOLLOW_SHARE * (expected or prompt):
        if loaded.restore is None:
            return Verdict(Source.COLD, hollow=False, miss_reason=loaded.miss_reason or Reason(ReasonCode.NOT_REUSED))
        places = {"accepted": loaded.restore.save_point.n_tokens, "reused": cached}
        return Verdict(Source.COLD, hollow=True, miss_reason=Reason(ReasonCode.HOLLOW_RESTORE, places))
    source = Source(loaded.restore.tier.value) if loaded.restore else Source.HOT
    if loaded.prefilled_ahead.ms >= max(NOTICEABLE_MS, loaded.restore.ms if loaded.restore else 0.0):
        source = Source.AHEAD  # it saved a noticeable wait
    if cached >= PROVED_SHARE * expected:
        few = cached < max(MIN_SHARE * prompt, min(MIN_TOKENS, PROVED_SHARE * prompt))
        return Verdict(source, hollow=False, miss_reason=loaded.miss_reason if few else None)
    reason = Reason(ReasonCode.REUSED_LESS, {"reused": cached, "held": expected})
    return Verdict(source, hollow=False, miss_reason=reason)
