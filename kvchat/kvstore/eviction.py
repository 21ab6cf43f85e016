"""Which save points to give up: pure decisions on values.

A save point is worth the prefill it spares, per byte that it keeps on disk, and half as much for every week since it
was used. What others keep as well is neither lost nor freed. Older turns go before a conversation's last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvchat.kvstore.savepoint import PrunedConversation, PrunePlan

HALF_LIFE_S = 7 * 86_400.0
OLDER_TURN_SHARE = 0.1  # how often an older turn is gone back to, against the last being gone on from (a guess)

Numbers = npt.NDArray[np.int64]


class Candidate(NamedTuple):
    """A save point as eviction sees it; a tuple, for there may be thousands. Times are seconds since 1970."""

    id: int
    conversation_id: str
    line: int  # the kind of engine: each has a last save point of its own
    prefill_ms: float
    created_at: float
    last_used_at: float
    kept: bool  # pinned, or in use: never given up


@dataclass(frozen=True, eq=False)
class Needs:
    """Which save points need which blocks."""

    points: Numbers  # ids of the save points that need the first block, none twice; of those that need the second, ...
    starts: Numbers  # where in `points` each block's begin
    sizes: Numbers  # bytes on disk of each block


def plan_prune(candidates: Sequence[Candidate], needs: Needs, used: int, target: int, now: float) -> PrunePlan:
    """What to give up so that `used` bytes become at most `target`, the least valuable first.

    Save points with `kept`, and those that are no candidates, stay, even where the target is then missed.
    """
    everything = sorted(candidates, key=lambda one: one.id)
    places = _places(everything, needs.points)
    each = np.repeat(needs.sizes, np.diff(needs.starts, append=len(needs.points)))
    held = np.bincount(places, each, len(everything) + 1).tolist()
    order = _order(everything, held, now)
    freed = _freed(order, places, len(everything), needs)
    enough = int(np.searchsorted(np.cumsum(freed), used - target)) + 1 if used > target else 0
    lost: dict[str, tuple[int, int, float]] = {}
    for place, size in zip(order[:enough], freed, strict=False):
        one = everything[place]
        points, freed_before, ms = lost.get(one.conversation_id, (0, 0, 0.0))
        ms += one.prefill_ms * size / max(held[place], 1.0)  # its share of rows that nobody else keeps
        lost[one.conversation_id] = (points + 1, freed_before + int(size), ms)
    there = Counter(one.conversation_id for one in everything)
    pruned = [PrunedConversation(name, n, size, ms / 1000, there[name] - n) for name, (n, size, ms) in lost.items()]
    total = sum(one.bytes_freed for one in pruned)
    return PrunePlan(
        tuple(str(everything[place].id) for place in order[:enough]),
        total,
        sum(one.prefill_seconds for one in pruned),
        tuple(pruned),
        used - total,
    )


def _places(everything: Sequence[Candidate], points: Numbers) -> Numbers:
    """Where in `everything`, which is sorted, each save point is; behind the end if it is not there."""
    ids = np.array([one.id for one in everything], np.int64)
    places = np.searchsorted(ids, points)
    return np.where(np.append(ids, -1)[places] == points, places, len(ids))


def _order(everything: Sequence[Candidate], held: Sequence[float], now: float) -> list[int]:
    """The places of the save points that may go, first to last. A line's last never stands before its older turns.

    What counts is the prefill spared by each byte held, decayed by age. Of what would be lost and of what would be
    freed it is the same share, so the ratio is that of the whole save point.
    """
    value = [
        one.prefill_ms / max(size, 1.0) * 0.5 ** (max(0.0, now - one.last_used_at) / HALF_LIFE_S)
        for one, size in zip(everything, held, strict=False)
    ]
    last: dict[tuple[str, int], int] = {}
    for place, one in enumerate(everything):
        before = last.setdefault((one.conversation_id, one.line), place)
        if (everything[before].created_at, before) < (one.created_at, place):
            last[one.conversation_id, one.line] = place
    keyed: list[tuple[float, bool, float, int]] = []
    for place, one in enumerate(everything):
        newest = last[one.conversation_id, one.line]
        worth = value[place] if place == newest else min(value[newest], OLDER_TURN_SHARE * value[place])
        if not one.kept:
            keyed.append((worth, place == newest, one.created_at, place))
    return [place for *_, place in sorted(keyed)]


def _freed(order: Sequence[int], places: Numbers, count: int, needs: Needs) -> list[float]:
    """The bytes each save point frees once all before it in `order` are gone: of the blocks it is the last to need."""
    turn = np.full(count + 1, len(order))  # of those that stay: after all that go
    turn[order] = np.arange(len(order))
    last = np.maximum.reduceat(turn[places], needs.starts) if len(needs.starts) else needs.starts
    freed: list[float] = np.bincount(last, needs.sizes, len(order) + 1).tolist()
    return freed[: len(order)]
