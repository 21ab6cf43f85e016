from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.kvstore.budget import GB, Kept, check_room, default_quota, prune_plan, set_aside_plan
from kvchat.kvstore.savepoint import StoreRefused

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
kept_lists = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 9)), max_size=12).map(
    lambda pairs: [Kept(str(n), size, NOON + timedelta(hours=hour)) for n, (size, hour) in enumerate(pairs)]
)


def test_the_default_quota_grows_with_the_model_and_the_disk() -> None:
    small, usual, large, chat = 64 * GB, 256 * GB, 4096 * GB, 4_300_000_000
    assert [default_quota(disk) / GB for disk in (small, usual, large)] == [3.2, 20, 20]
    assert [default_quota(disk, chat) / GB for disk in (small, usual, large)] == [3.2, 25.6, 43]
    assert default_quota(large, 60 * GB) == 600 * GB
    assert default_quota(large, 600 * GB) == round(0.2 * large), "a part of the disk at most"
    assert default_quota(large, chat, kept_bytes=70 * GB) == 70 * GB, "a smaller model takes nothing away"


@given(kept_lists, st.integers(0, 600), st.integers(-1, 11))
def test_pruning_takes_the_least_recently_used_and_no_more_than_needed(
    kept: list[Kept], quota: int, protected: int
) -> None:
    plan = prune_plan(kept, quota, str(protected))
    by_id = {one.id: one for one in kept}
    left = sum(one.size for one in kept if one.id not in plan)
    assert str(protected) not in plan
    assert left <= quota or set(by_id) - set(plan) <= {str(protected)}
    if plan:
        assert left + by_id[plan[-1]].size > quota
        spared = [one for one in kept if one.id not in plan and one.id != str(protected)]
        assert all(by_id[gone].used_at <= one.used_at for gone in plan for one in spared)


@given(kept_lists, st.integers(0, 3000))
def test_what_is_set_aside_stays_within_three_files_and_a_tenth(kept: list[Kept], quota: int) -> None:
    plan = set_aside_plan(kept, quota)
    left = [one for one in kept if one.id not in plan]
    assert len(set(plan)) == len(plan)
    assert len(left) <= 3
    assert sum(one.size for one in left) <= quota * 0.1


def test_room_is_refused_at_the_floor_and_not_before() -> None:
    check_room(100, 100, free=200, quota=100, floor=100)
    with pytest.raises(StoreRefused, match="nearly full"):
        check_room(100, 101, free=200, quota=100, floor=100)
    with pytest.raises(StoreRefused, match="larger than the limit on the disk"):
        check_room(101, 0, free=200, quota=100, floor=100)
