"""Eviction: which save points to delete. Pure decisions on values.

A save point is worth the prefill it saves per byte it keeps on disk, halved for every week since its last use. What
others keep as well is neither lost nor freed. Older turns go before any save point of a conversation's last turn.
Other programs have many threads under one name: for them, a last turn is where a thread ends, or where several
begin. All of it goes before anything of a chat's.
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
OLDER_TURN_SHARE = 0.1  # return rate to older turns, relative to the last one (a guess)

Numbers = npt.NDArray[np.int64]


class Candidate(NamedTuple):
    """A save point as eviction sees it; a tuple, as there may be thousands. Times are Unix seconds.

    Candidates are always given in the order of their ids.
    """

    id: int
    conversation_id: str
    line: int  # kind of engine; each has its own last save point
    prefill_ms: float
    created_at: float
    last_used_at: float
    kept: bool  # pinned or in use: never removed
    message_id: str | None = None  # message it ends in; with sliding windows two share one and are used together
    continuation_count: int | None = None  # for programs: number of continuations; None for a conversation

    @property
    def is_end(self) -> bool:
        """True if a program's thread ends here, or several share it."""
        return self.continuation_count is not None and self.continuation_count != 1


@dataclass(frozen=True, eq=False)
class Needs:
    """Which save points need which blocks: those on the path to its end in a tree of uses."""

    ends: Numbers  # last use of each candidate
    parents: Numbers  # previous use of each use, always a smaller number; -1: none
    blocks: Numbers  # block of each use
    sizes: Numbers  # disk bytes of each block


def plan_prune(candidates: Sequence[Candidate], needs: Needs, used: int, target: int, now: float) -> PrunePlan:
    """Plan the removals that reduce `used` bytes to `target`: the least valuable first, no more than needed.

    Save points that are `kept` or no candidates stay, even if the target is missed.
    """
    held = _held_bytes(needs)
    order = _order(candidates, held, now)
    freed = np.cumsum(_freed(order, needs))
    if used > target:
        order = order[: int(np.searchsorted(freed, used - target)) + 1]
        order = _spare_unneeded(order, needs, used - target)
    else:
        order = []
    lost: dict[str, tuple[int, int]] = {}
    for place, size in zip(order, _freed(order, needs), strict=True):
        point = candidates[place]
        points, freed_before = lost.get(point.conversation_id, (0, 0))
        lost[point.conversation_id] = points + 1, freed_before + int(size)
    there = Counter(point.conversation_id for point in candidates)
    pruned = [PrunedConversation(name, n, size, there[name] - n) for name, (n, size) in lost.items()]
    total = sum(point.bytes_freed for point in pruned)
    return PrunePlan(tuple(str(candidates[place].id) for place in order), total, tuple(pruned), used - total)


def plan_programs(candidates: Sequence[Candidate], needs: Needs, target: int, now: float) -> PrunePlan:
    """Plan removals so that programs keep at most `target` bytes that no chat also keeps."""
    programs = [place for place, point in enumerate(candidates) if point.continuation_count is not None]
    used = int(sum(_freed(programs, needs)))
    alone = [point if point.continuation_count is not None else point._replace(kept=True) for point in candidates]
    return plan_prune(alone, needs, used, target, now)


def _held_bytes(needs: Needs) -> list[float]:
    sums: list[float] = []
    for parent, size in zip(needs.parents.tolist(), needs.sizes[needs.blocks].tolist(), strict=True):
        sums.append(size + (sums[parent] if parent >= 0 else 0))
    return [sums[end] for end in needs.ends.tolist()]


def _spare_unneeded(order: list[int], needs: Needs, wanted: int) -> list[int]:
    """Spare what need not go: after removing a chat's last turn, older ones may be small enough to stay."""
    gone = _last_turns(order, needs) < len(order)
    sizes, blocks, parents = needs.sizes.tolist(), needs.blocks.tolist(), needs.parents.tolist()
    excess = sum(_freed(order, needs)) - wanted
    staying: set[int] = set()
    for place in reversed(order):
        path: set[int] = set()
        cost, use = 0, int(needs.ends[place])
        while use >= 0 and cost <= excess:
            block = blocks[use]
            if gone[block] and block not in path:
                path.add(block)
                cost += sizes[block]
            use = parents[use]
        if cost <= excess:
            staying.add(place)
            excess -= cost
            gone[list(path)] = False
    return [place for place in order if place not in staying]


def _order(everything: Sequence[Candidate], held: Sequence[float], now: float) -> list[int]:
    """Return the removable save points' indices, first to go first; a line's last follows its older turns.

    Ranked by prefill time saved per byte held, decayed by age. The lost and the freed part are the same share,
    so the ratio is that of the whole save point.
    """
    value = [
        point.prefill_ms / max(size, 1.0) * 0.5 ** (max(0.0, now - point.last_used_at) / HALF_LIFE_S)
        for point, size in zip(everything, held, strict=False)
    ]
    last: dict[tuple[str, int], int] = {}
    for place, point in enumerate(everything):
        before = last.setdefault((point.conversation_id, point.line), place)
        if (everything[before].created_at, before) < (point.created_at, place):
            last[point.conversation_id, point.line] = place
    ends = {
        (point.conversation_id, point.message_id)
        for point in everything
        if point.is_end and point.message_id is not None
    }
    keyed: list[tuple[bool, float, bool, float, int]] = []
    for place, point in enumerate(everything):
        newest = last[point.conversation_id, point.line]
        if point.continuation_count is not None:
            is_last = point.is_end or (point.conversation_id, point.message_id) in ends
            worth = value[place] * (max(point.continuation_count, 1) if is_last else OLDER_TURN_SHARE)
        else:
            is_last = place == newest or None is not point.message_id == everything[newest].message_id
            worth = value[newest] if is_last else min(value[newest], OLDER_TURN_SHARE * value[place])
        if not point.kept:
            keyed.append((point.continuation_count is None, worth, is_last, point.created_at, place))
    return [place for *_, place in sorted(keyed)]


def _freed(order: Sequence[int], needs: Needs) -> list[float]:
    freed: list[float] = np.bincount(_last_turns(order, needs), needs.sizes, len(order) + 1).tolist()
    return freed[: len(order)]


def _last_turns(order: Sequence[int], needs: Needs) -> Numbers:
    """Return the index in `order` of each block's last user; `len(order)` if a remaining one needs it."""
    stays = len(order)
    turns = np.full(len(needs.ends), stays, np.int64)
    turns[list(order)] = np.arange(stays)
    of_uses = np.full(len(needs.parents) + 1, -1, np.int64)
    np.maximum.at(of_uses, needs.ends, turns)
    last = of_uses.tolist()
    for use, parent in zip(reversed(range(len(needs.parents))), reversed(needs.parents.tolist()), strict=True):
        if last[use] > last[parent]:
            last[parent] = last[use]
    of_blocks = np.full(len(needs.sizes), -1, np.int64)
    np.maximum.at(of_blocks, needs.blocks, np.array(last[:-1], np.int64))
    return np.where(of_blocks < 0, stays, of_blocks)
