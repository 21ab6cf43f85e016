from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvchat.kvstore.index import eviction
from kvchat.kvstore.index.eviction import BlockNeeds, Candidate
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
    prefill_ms: float = 1000
    days: float = 0  # since its last use
    is_protected: bool = False

    @property
    def created_at(self) -> float:
        return NOW - 100 * DAY + 60 * self.id


def plan_prune(points: Sequence[Point], used: int, target: int) -> PrunePlan:
    uses = [(number, block) for number, point in enumerate(points) for block in sorted(point.blocks)]
    parents = [place - 1 if place and uses[place - 1][0] == number else -1 for place, (number, _) in enumerate(uses)]
    ends = [max(place for place, use in enumerate(uses) if use[0] == number) for number in range(len(points))]
    blocks, sizes = [block for _, block in uses], list(SIZES.values())
    needs = BlockNeeds(*(np.array(numbers, np.int64) for numbers in (ends, parents, blocks, sizes)))
    candidates = [
        Candidate(p.id, p.conversation_id, 1, p.prefill_ms, p.created_at, NOW - p.days * DAY, p.is_protected)
        for p in points
    ]
    return eviction.plan_prune(candidates, needs, used, target, NOW)


points_lists = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.frozensets(st.integers(0, 11), min_size=1),
        st.integers(0, 9).map(lambda hundreds: 100.0 * hundreds),
        st.integers(0, 90),
        st.booleans(),
    ),
    max_size=10,
).map(lambda rows: [Point(n, *row[:4], is_protected=row[4] and n % 3 == 0) for n, row in enumerate(rows)])


def used_by(points: Iterable[Point]) -> int:
    return sum(SIZES[block] for block in set().union(*(point.blocks for point in points)))


@given(points_lists, st.integers(0, 800))
def test_a_plan_frees_what_it_says_and_no_more_than_needed(points: list[Point], target: int) -> None:
    used = used_by(points)
    plan = plan_prune(points, used, target)
    removed = [point for point in points if str(point.id) in plan.save_point_ids]
    left = [point for point in points if point not in removed]
    assert used_by(left) == plan.bytes_left == used - plan.bytes_freed
    assert sum(pruned.bytes_freed for pruned in plan.conversations) == plan.bytes_freed
    assert all(point.is_protected for point in left) or plan.bytes_left <= target
    assert not any(point.is_protected for point in removed)
    assert all(used_by([*left, point]) > target for point in removed)


@given(points_lists, st.integers(0, 800))
def test_older_turns_are_removed_before_a_conversations_last(points: list[Point], target: int) -> None:
    """Unless removing the last alone is enough."""
    plan = plan_prune(points, used_by(points), target)
    order = {name: place for place, name in enumerate(plan.save_point_ids)}
    for point in points:
        last = max((p for p in points if p.conversation_id == point.conversation_id), key=lambda p: p.created_at)
        if point is not last and not point.is_protected and str(last.id) in order:
            assert order.get(str(point.id), -1) < order[str(last.id)]


def test_a_long_chat_loses_only_its_end_if_that_is_enough() -> None:
    """A slider at 70 MB freed 151: a chat was removed as a whole."""
    turns = [Point(number, "a", frozenset(range(number + 1))) for number in range(8)]
    plan = plan_prune(turns, used_by(turns), 200)
    assert plan.bytes_freed == SIZES[7] + SIZES[6]
    assert "5" not in plan.save_point_ids


def test_the_least_prefill_per_byte_is_removed_first_and_age_counts() -> None:
    cheap = Point(2, "cheap", frozenset({2}), prefill_ms=100)
    for days, removed in ((0, "2"), (70, "1")):
        dear = Point(1, "dear", frozenset({1}), prefill_ms=9000, days=days)
        assert plan_prune([dear, cheap], 40, 39).save_point_ids == (removed,)


def test_blocks_of_another_conversation_are_neither_freed_nor_lost() -> None:
    points = [Point(1, "a", frozenset({1, 2})), Point(2, "b", frozenset({1}), is_protected=True)]
    plan = plan_prune(points, 40, 0)
    assert plan.bytes_freed == SIZES[2]
    assert plan.conversations[0].save_points_left == 0
