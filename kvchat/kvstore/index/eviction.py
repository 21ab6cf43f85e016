"""Eviction: chooses the save points to delete. No I/O.

The value of a save point is the prefill time it saves per byte on disk, halved for every week since its last use.
Only blocks that no remaining save point uses count as freed. A conversation's older turns are deleted before its last
turn. A program has many threads under one name: its last turns are those where a thread ends or several begin.
Programs' save points are deleted before devices', and those before the user's own chats. A device's pins only protect
save points from its other ones: else it could fill the store.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvchat.kvstore.savepoint import PrunedConversation, PrunePlan, device_of

HALF_LIFE_S = 7 * 86_400.0
OLDER_TURN_SHARE = 0.1  # return rate to older turns, relative to the last one (a guess)

IntArray = npt.NDArray[np.int64]


class Candidate(NamedTuple):
    """A save point's data, as needed to choose save points to delete. Times are Unix seconds."""

    id: int
    conversation_id: str
    fingerprint_id: int  # each fingerprint of a conversation has its own last turn
    prefill_ms: float
    created_at: float
    last_used_at: float
    is_protected: bool  # in use: never removed
    is_pinned: bool = False  # a device's are removed after its other ones, all others never
    message_id: str | None = None  # last message; with sliding windows, two save points share one
    continuation_count: int | None = None  # different continuations of a program's save point; None for chats

    @property
    def is_program(self) -> bool:
        return self.continuation_count is not None


@dataclass(frozen=True, eq=False)
class BlockNeeds:
    """The blocks that each save point needs, as paths in a tree of block uses."""

    last_uses: IntArray  # last use of each candidate
    parents: IntArray  # previous use of each use, a smaller index; -1: none
    blocks: IntArray  # block of each use
    sizes: IntArray  # disk bytes of each block


def plan_prune(candidates: Sequence[Candidate], needs: BlockNeeds, used: int, target: int, now: float) -> PrunePlan:
    """Plan the removals that reduce `used` bytes to `target`, least valuable first and no more than needed.

    Protected save points stay, even if the target is missed.
    """
    order: list[int] = []
    if used > target:
        order = _removal_order(candidates, needs, now)
        freed = np.cumsum(_freed_bytes(order, needs))
        order = order[: int(np.searchsorted(freed, used - target)) + 1]
        order = _drop_needless_removals(order, needs, used - target)
    removed: dict[str, tuple[int, int]] = {}  # save points and bytes by conversation
    for place, size in zip(order, _freed_bytes(order, needs), strict=True):
        name = candidates[place].conversation_id
        points, freed_before = removed.get(name, (0, 0))
        removed[name] = points + 1, freed_before + int(size)
    counts = Counter(point.conversation_id for point in candidates)
    pruned = [PrunedConversation(name, n, size, counts[name] - n) for name, (n, size) in removed.items()]
    total = sum(conversation.bytes_freed for conversation in pruned)
    return PrunePlan(tuple(str(candidates[place].id) for place in order), total, tuple(pruned), used - total)


def plan_group(
    candidates: Sequence[Candidate], needs: BlockNeeds, target: int, now: float, is_member: Callable[[str], bool]
) -> PrunePlan:
    """Plan removals so that the blocks used only by a group's conversations take at most `target` bytes."""
    members = [is_member(point.conversation_id) for point in candidates]
    used = int(sum(_freed_bytes([place for place, member in enumerate(members) if member], needs)))
    others_protected = [
        point if member else point._replace(is_protected=True)
        for point, member in zip(candidates, members, strict=True)
    ]
    return plan_prune(others_protected, needs, used, target, now)


def _drop_needless_removals(order: list[int], needs: BlockNeeds, target: int) -> list[int]:
    """Drop save points from `order` that need not be removed to free `target` bytes."""
    gone = _last_users(order, needs) < len(order)
    sizes, blocks, parents = needs.sizes.tolist(), needs.blocks.tolist(), needs.parents.tolist()
    excess = sum(_freed_bytes(order, needs)) - target
    staying: set[int] = set()
    for place in reversed(order):
        path: set[int] = set()
        cost, use = 0, int(needs.last_uses[place])
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


def _removal_order(candidates: Sequence[Candidate], needs: BlockNeeds, now: float) -> list[int]:
    """Return the indices of the removable save points in removal order; a last turn follows its older turns.

    Prefill time and bytes are those of the whole save point: sharing blocks reduces the time lost and the bytes
    freed by a removal in the same ratio.
    """
    path_bytes: list[float] = []  # bytes on the path to each use
    for parent, size in zip(needs.parents.tolist(), needs.sizes[needs.blocks].tolist(), strict=True):
        path_bytes.append(size + (path_bytes[parent] if parent >= 0 else 0))
    values = [
        point.prefill_ms / max(path_bytes[end], 1.0) * 0.5 ** (max(0.0, now - point.last_used_at) / HALF_LIFE_S)
        for point, end in zip(candidates, needs.last_uses.tolist(), strict=False)
    ]
    newest: dict[tuple[str, int], int] = {}
    thread_ends = set[tuple[str, str | None]]()  # programs' messages where a thread ends or several begin
    for place, point in enumerate(candidates):
        before = newest.setdefault((point.conversation_id, point.fingerprint_id), place)
        if (candidates[before].created_at, before) < (point.created_at, place):
            newest[point.conversation_id, point.fingerprint_id] = place
        if point.is_program and point.continuation_count != 1:
            thread_ends.add((point.conversation_id, point.message_id))
    keyed: list[tuple[int, float, bool, float, int]] = []
    for place, point in enumerate(candidates):
        last = newest[point.conversation_id, point.fingerprint_id]
        if point.continuation_count is not None:
            ends_there = point.message_id is not None and (point.conversation_id, point.message_id) in thread_ends
            is_last = point.continuation_count != 1 or ends_there
            value = values[place] * (max(point.continuation_count, 1) if is_last else OLDER_TURN_SHARE)
        else:
            is_last = place == last or None is not point.message_id == candidates[last].message_id
            value = values[last] if is_last else min(values[last], OLDER_TURN_SHARE * values[place])
        is_device = bool(device_of(point.conversation_id))
        if not point.is_protected and (is_device or not point.is_pinned):
            rank = 0 if point.is_program else 1 + point.is_pinned if is_device else 3
            keyed.append((rank, value, is_last, point.created_at, place))
    return [place for *_, place in sorted(keyed)]


def _freed_bytes(order: Sequence[int], needs: BlockNeeds) -> list[float]:
    freed: list[float] = np.bincount(_last_users(order, needs), needs.sizes, len(order) + 1).tolist()
    return freed[: len(order)]


def _last_users(order: Sequence[int], needs: BlockNeeds) -> IntArray:
    """Return the index in `order` of each block's last user; `len(order)` if a remaining save point uses the block."""
    stays = len(order)
    turns = np.full(len(needs.last_uses), stays, np.int64)
    turns[list(order)] = np.arange(stays)
    of_uses = np.full(len(needs.parents) + 1, -1, np.int64)
    np.maximum.at(of_uses, needs.last_uses, turns)
    last = of_uses.tolist()
    for use, parent in zip(reversed(range(len(needs.parents))), reversed(needs.parents.tolist()), strict=True):
        if last[use] > last[parent]:
            last[parent] = last[use]
    of_blocks = np.full(len(needs.sizes), -1, np.int64)
    np.maximum.at(of_blocks, needs.blocks, np.array(last[:-1], np.int64))
    return np.where(of_blocks < 0, stays, of_blocks)
