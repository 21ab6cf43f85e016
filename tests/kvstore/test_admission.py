from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.kvstore.parts import GB, BadFiles, default_quota
from kvchat.kvstore.savepoint import Bounds, NotSaved
from kvchat.words.reasons import ReasonCode
from tests.kvstore.true_files import Bench


def test_the_default_quota_grows_with_the_model_and_the_disk() -> None:
    small, usual, large, chat = 64 * GB, 256 * GB, 4096 * GB, 4_300_000_000
    assert [default_quota(disk) / GB for disk in (small, usual, large)] == [3.2, 20, 20]
    assert [default_quota(disk, chat) / GB for disk in (small, usual, large)] == [3.2, 25.6, 43]
    assert default_quota(large, 60 * GB) == 600 * GB
    assert default_quota(large, 600 * GB) == round(0.2 * large), "a part of the disk at most"
    assert default_quota(large, chat, kept_bytes=70 * GB) == 70 * GB, "a smaller model takes nothing away"


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 9)), max_size=12), st.integers(0, 3000))
def test_what_is_set_aside_stays_within_three_files_and_a_tenth(files: list[tuple[int, int]], quota: int) -> None:
    """The newest stay, and as many of them as may."""
    with TemporaryDirectory() as folder:
        for number, (size, hour) in enumerate(files):
            path = Path(folder) / f"{number:02}"
            path.write_bytes(bytes(size))
            os.utime(path, (hour, hour))
        by_age = sorted(((hour, size) for size, hour in files), reverse=True)
        BadFiles(Path(folder)).trim(quota)
        left = sorted(((found.stat().st_mtime, found.stat().st_size) for found in Path(folder).iterdir()), reverse=True)
    assert left == by_age[: len(left)]
    assert len(left) <= 3
    assert sum(size for _, size in left) <= quota * 0.1
    if len(left) < min(3, len(files)):
        assert sum(size for _, size in by_age[: len(left) + 1]) > quota * 0.1


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
