"""Which save points to give up: pure decisions on values.

A save point is worth the prefill it spares, per byte that only it keeps on disk, and half as much for every week since
it was used. What others keep as well is neither lost nor freed. Older turns go before a conversation's last.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from kvchat.kvstore.savepoint import PrunedConversation, PrunePlan

HALF_LIFE_S = 7 * 86_400.0
OLDER_TURN_SHARE = 0.1  # how often an older turn is gone back to, against the last being gone on from (a guess)


@dataclass(frozen=True)
class Candidate:
    """A save point as eviction sees it."""

    id: int
    conversation_id: str
    line: int  # the kind of engine: each has a last save point of its own
    n_tokens: int
    prefill_ms: float
    created_at: datetime
    last_used_at: datetime
    kept: bool  # pinned, or in use: never given up
    blocks: frozenset[int]


class _Shelf:
    """The save points that are left while a plan is made."""

    def __init__(self, candidates: Sequence[Candidate], sizes: Mapping[int, int], now: datetime) -> None:
        self._sizes, self._now = sizes, now
        self._users = Counter(block for one in candidates for block in one.blocks)
        self.left = {one.id: one for one in candidates}

    def freed(self, one: Candidate) -> int:
        """Bytes that only this save point keeps."""
        return sum(self._sizes[block] for block in one.blocks if self._users[block] == 1)

    def lost_ms(self, one: Candidate) -> float:
        """Prefill it would take to have it again: its share of rows that nobody else keeps."""
        total = sum(self._sizes[block] for block in one.blocks)
        return one.prefill_ms * self.freed(one) / total if total else 0.0

    def density(self, one: Candidate, weight: float) -> float:
        """Milliseconds of prefill lost for each byte freed, decayed by age.

        Of what is lost and what is freed it is the same share, so the ratio is that of the whole save point.
        """
        age = max(0.0, (self._now - one.last_used_at).total_seconds())
        total = sum(self._sizes[block] for block in one.blocks)
        return float(weight * one.prefill_ms / max(total, 1) * 0.5 ** (age / HALF_LIFE_S))

    def drop(self, one: Candidate) -> tuple[int, float]:
        """Give it up; returns the bytes freed and the prefill lost."""
        freed, lost = self.freed(one), self.lost_ms(one)
        self._users.subtract(one.blocks)
        del self.left[one.id]
        return freed, lost


def plan_prune(
    candidates: Iterable[Candidate], sizes: Mapping[int, int], used: int, target: int, now: datetime
) -> PrunePlan:
    """What to give up so that `used` bytes become at most `target`, the least valuable first.

    `sizes` are the bytes of each block. Save points with `kept` stay, even where the target is then missed.
    """
    everything = list(candidates)
    shelf = _Shelf(everything, sizes, now)
    order = _order(everything, shelf)
    gone: list[str] = []
    lost: dict[str, tuple[int, int, float]] = {}
    freed = 0
    while order and used - freed > target:
        one = shelf.left[heapq.heappop(order)[-1]]
        bytes_freed, ms = shelf.drop(one)
        freed += bytes_freed
        gone.append(str(one.id))
        points, size, time = lost.get(one.conversation_id, (0, 0, 0.0))
        lost[one.conversation_id] = (points + 1, size + bytes_freed, time + ms)
    remaining = Counter(one.conversation_id for one in shelf.left.values())
    pruned = [PrunedConversation(name, n, size, ms / 1000, remaining[name]) for name, (n, size, ms) in lost.items()]
    return PrunePlan(tuple(gone), freed, sum(one.prefill_seconds for one in pruned), tuple(pruned), used - freed)


def expired(candidates: Iterable[Candidate], used_before: datetime) -> tuple[str, ...]:
    """The save points not used since then, pinned ones apart."""
    return tuple(str(one.id) for one in candidates if not one.kept and one.last_used_at < used_before)


def _order(candidates: Sequence[Candidate], shelf: _Shelf) -> list[tuple[float, float, float, int]]:
    """A heap of the save points that may go. A line's last never stands before its older turns."""
    lines: dict[tuple[str, int], list[Candidate]] = {}
    for one in candidates:
        lines.setdefault((one.conversation_id, one.line), []).append(one)
    heap: list[tuple[float, float, float, int]] = []
    for line in lines.values():
        line.sort(key=lambda one: (one.created_at, one.id))
        *older, last = line
        value = shelf.density(last, 1.0)
        entries = [(min(value, shelf.density(one, OLDER_TURN_SHARE)), 0.0, one) for one in older]
        entries.append((value, 1.0, last))
        heap += [(v, rank, one.created_at.timestamp(), one.id) for v, rank, one in entries if not one.kept]
    heapq.heapify(heap)
    return heap
