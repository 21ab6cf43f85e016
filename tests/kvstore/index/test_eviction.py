from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvchat.kvstore.index import eviction
from kvchat.kvstore.index.eviction import Candidate, Needs
from kvchat.kvstore.savepoint import PrunePlan

DAY = 86_400.0
NOW = 1000 * DAY
SIZES = {number: 10 * number + 5 for number in range(12)}


@dataclass(frozen=True)
class Point:
    """A save point of a conversation, and the blocks it needs."""

    id: int
    conversation_id: str
    blocks: frozenset[int]
    prefill_ms: float
    days: float  # since its last use
    kept: bool

    @property
    def created_at(self) -> float:
        return NOW - 100 * DAY + 60 * self.id


def point(
    number: int, conversation: str, blocks: set[int], *, prefill_ms: float = 1000, days: float = 0, kept: bool = False
) -> Point:
    return Point(number, conversation, frozenset(blocks), prefill_ms, days, kept)


def plan_prune(points: Sequence[Point], used: int, target: int) -> PrunePlan:
    uses = [(number, block) for number, one in enumerate(points) for block in sorted(one.blocks)]
    first = [not place or uses[place - 1][0] != number for place, (number, _) in enumerate(uses)]
    parents = [-1 if begins else place - 1 for place, begins in enumerate(first)]
    ends = [max(place for place, (number, _) in enumerate(uses) if number == one) for one in range(len(points))]
    candidates = [
        Candidate(p.id, p.conversation_id, 1, p.prefill_ms, p.created_at, NOW - p.days * DAY, p.kept) for p in points
    ]
    blocks, sizes = [block for _, block in uses], list(SIZES.values())
    needs = Needs(*(np.array(numbers, np.int64) for numbers in (ends, parents, blocks, sizes)))
    return eviction.plan_prune(candidates, needs, used, target, NOW)


candidates = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sets(st.integers(0, 11), min_size=1),
        st.integers(0, 90),
        st.integers(0, 9),
        st.booleans(),
    ),
    max_size=10,
).map(
    lambda rows: [
        point(n, name, blocks, prefill_ms=100.0 * ms, days=days, kept=kept and n % 3 == 0)
        for n, (name, blocks, days, ms, kept) in enumerate(rows)
    ]
)


def used_by(points: list[Point]) -> int:
    return sum(SIZES[block] for block in set().union(*(one.blocks for one in points)))


@given(candidates, st.integers(0, 800))
def test_a_plan_frees_what_it_says_counts_shared_blocks_once_and_stops_in_time(
    points: list[Point], target: int
) -> None:
    used = used_by(points)
    plan = plan_prune(points, used, target)
    gone = set(plan.save_point_ids)
    left = [one for one in points if str(one.id) not in gone]
    assert used_by(left) == plan.bytes_left == used - plan.bytes_freed
    assert sum(one.bytes_freed for one in plan.conversations) == plan.bytes_freed
    assert all(one.kept for one in points if one in left) or plan.bytes_left <= target
    assert not any(one.kept for one in points if str(one.id) in gone)
    if gone:
        last = plan.save_point_ids[-1]
        assert used_by([one for one in points if str(one.id) not in gone - {last}]) > target


@given(candidates, st.integers(0, 800))
def test_older_turns_go_before_a_conversations_last_unless_it_is_enough_that_the_last_goes(
    points: list[Point], target: int
) -> None:
    plan = plan_prune(points, used_by(points), target)
    order = {name: place for place, name in enumerate(plan.save_point_ids)}
    for one in points:
        last = max((p for p in points if p.conversation_id == one.conversation_id), key=lambda p: p.created_at)
        if one is not last and not one.kept and str(last.id) in order:
            assert order.get(str(one.id), -1) < order[str(last.id)]


@given(candidates, st.integers(0, 800))
def test_nothing_goes_that_could_stay(points: list[Point], target: int) -> None:
    plan = plan_prune(points, used_by(points), target)
    gone = set(plan.save_point_ids)
    stays = [one for one in points if str(one.id) not in gone]
    assert all(used_by([*stays, one]) > target for one in points if str(one.id) in gone)


def test_of_a_long_chat_only_its_end_goes_when_that_is_enough() -> None:
    """A slider at 70 MB freed 151: a chat went as a whole."""
    turns = [point(number, "a", set(range(number + 1))) for number in range(8)]
    plan = plan_prune(turns, used_by(turns), 200)
    assert plan.bytes_freed == SIZES[7] + SIZES[6]
    assert "5" not in plan.save_point_ids


def test_the_least_prefill_per_byte_goes_first_and_age_counts() -> None:
    dear = point(1, "dear", {1}, prefill_ms=9000)
    cheap = point(2, "cheap", {2}, prefill_ms=100)
    assert plan_prune([dear, cheap], 40, 39).save_point_ids == ("2",)
    old = point(1, "dear", {1}, prefill_ms=9000, days=70)
    assert plan_prune([old, cheap], 40, 39).save_point_ids == ("1",)


def test_what_another_conversation_keeps_is_neither_freed_nor_lost() -> None:
    plan = plan_prune([point(1, "a", {1, 2}), point(2, "b", {1}, kept=True)], 40, 0)
    assert plan.bytes_freed == SIZES[2]
    assert plan.conversations[0].save_points_left == 0
