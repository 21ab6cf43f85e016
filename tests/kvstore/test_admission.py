from __future__ import annotations

from pathlib import Path

import pytest

from kvchat.kvstore.savepoint import GB, Bounds, NotSaved, default_quota
from kvchat.words.reasons import ReasonCode
from tests.kvstore.true_files import Bench


def test_the_default_quota_grows_with_the_model_and_the_disk() -> None:
    small, usual, large, chat = 64 * GB, 256 * GB, 4096 * GB, 4_300_000_000
    assert [default_quota(disk) / GB for disk in (small, usual, large)] == [3.2, 20, 20]
    assert [default_quota(disk, chat) / GB for disk in (small, usual, large)] == [3.2, 25.6, 43]
    assert default_quota(large, 60 * GB) == 600 * GB
    assert default_quota(large, 600 * GB) == round(0.2 * large), "a part of the disk at most"
    assert default_quota(large, chat, kept_bytes=70 * GB) == 70 * GB, "a smaller model takes nothing away"


def test_room_is_refused_at_the_floor_and_not_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", quota=100, free=200)
    store = bench.store
    store.bounds = Bounds(quota=100, free_floor=100)
    store.require_room(100, 100)
    with pytest.raises(NotSaved) as nearly_full:
        store.require_room(100, 101)
    with pytest.raises(NotSaved) as too_large:
        store.require_room(101, 0)
    codes = [one.value.reason.code for one in (nearly_full, too_large)]
    assert codes == [ReasonCode.DISK_NEARLY_FULL, ReasonCode.OVER_LIMIT]
