from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from kvchat.kvstore.eviction import Candidate, expired, plan_prune

NOW = datetime(2026, 6, 1, tzinfo=UTC)
SIZES = {number: 10 * number + 5 for number in range(12)}


def point(
    number: int, conversation: str, blocks: set[int], *, prefill_ms: float = 1000, days: float = 0, kept: bool = False
) -> Candidate:
    made = NOW - timedelta(days=100) + timedelta(minutes=number)
    used = NOW - timedelta(days=days)
    return Candidate(number, conversation, 1, 10 * number, prefill_ms, made, used, kept, frozenset(blocks))


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


def used_by(points: list[Candidate]) -> int:
    return sum(SIZES[block] for block in set().union(*(one.blocks for one in points)))


@given(candidates, st.integers(0, 800))
def test_a_plan_frees_what_it_says_counts_shared_blocks_once_and_stops_in_time(
    points: list[Candidate], target: int
) -> None:
    used = used_by(points)
    plan = plan_prune(points, SIZES, used, target, NOW)
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
def test_older_turns_go_before_a_conversations_last(points: list[Candidate], target: int) -> None:
    plan = plan_prune(points, SIZES, used_by(points), target, NOW)
    order = {name: place for place, name in enumerate(plan.save_point_ids)}
    for one in points:
        last = max((p for p in points if p.conversation_id == one.conversation_id), key=lambda p: p.created_at)
        if one is not last and not one.kept and str(last.id) in order:
            assert order[str(one.id)] < order[str(last.id)]


def test_the_least_prefill_per_byte_goes_first_and_age_counts() -> None:
    dear = point(1, "dear", {1}, prefill_ms=9000)
    cheap = point(2, "cheap", {2}, prefill_ms=100)
    assert plan_prune([dear, cheap], SIZES, 40, 39, NOW).save_point_ids == ("2",)
    old = point(1, "dear", {1}, prefill_ms=9000, days=70)
    assert plan_prune([old, cheap], SIZES, 40, 39, NOW).save_point_ids == ("1",)


def test_what_another_conversation_keeps_is_neither_freed_nor_lost() -> None:
    plan = plan_prune([point(1, "a", {1, 2}), point(2, "b", {1}, kept=True)], SIZES, 40, 0, NOW)
    assert plan.bytes_freed == SIZES[2]
    assert plan.prefill_seconds == SIZES[2] / (SIZES[1] + SIZES[2])
    assert plan.conversations[0].save_points_left == 0


def test_what_was_not_used_since_expires_unless_it_is_kept() -> None:
    points = [point(1, "a", {1}, days=40), point(2, "b", {1}, days=40, kept=True), point(3, "c", {1}, days=3)]
    assert expired(points, NOW - timedelta(days=30)) == ("1",)
