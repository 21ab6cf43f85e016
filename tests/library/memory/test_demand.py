from pathlib import Path

import psutil
import pytest

from kvchat.library.memory.demand import (
    DAY_S,
    LoadLimit,
    LoadLimits,
    MemoryFacts,
    available_memory,
    cgroup_memory_left,
    limit_key,
    on_battery,
    staging_room,
)
from kvchat.settings import GB

MIB = 1024 * 1024
V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


def fake_group(root: Path, cgroup: str, folder: str, **files: str) -> None:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / folder / name.replace("__", ".")).write_text(content)


def test_cgroup_v2_counts_parents_but_not_page_cache(tmp_path: Path) -> None:
    group, stat = "0::/outer/inner\n", f"anon 5\ninactive_file {20 * MIB}\n"
    fake_group(tmp_path, group, f"{V2}/outer/inner", memory__max="max\n", memory__current="9\n")
    limits = {"memory__max": f"{100 * MIB}\n", "memory__current": f"{70 * MIB}\n", "memory__stat": stat}
    fake_group(tmp_path, group, f"{V2}/outer", **limits)
    assert cgroup_memory_left(tmp_path) == 50 * MIB
    memory = available_memory(root=tmp_path)
    assert (memory.available, memory.is_limited) == (50 * MIB, True)


@pytest.mark.parametrize(
    ("cgroup", "folder", "files", "room"),
    [
        ("5:cpu,cpuacct:/box\n4:memory:/box\n", f"{V1}/box", (f"{64 * MIB}\n", f"{24 * MIB}\n"), 40 * MIB),
        ("4:memory:/\n", V1, ("9223372036854771712", "9"), None),
        ("0::/\n", V2, ("max\n", "9\n"), None),
    ],
)
def test_cgroup_limits(tmp_path: Path, cgroup: str, folder: str, files: tuple[str, str], room: int | None) -> None:
    assert cgroup_memory_left(tmp_path) is None
    names = ("memory__max", "memory__current")
    if folder.startswith(V1):
        names = ("memory__limit_in_bytes", "memory__usage_in_bytes")
    fake_group(tmp_path, cgroup, folder, **dict(zip(names, files, strict=True)))
    assert cgroup_memory_left(tmp_path) == room


@pytest.mark.parametrize(
    ("free", "staged", "place", "needed", "left"),
    [
        (60, 0, 64, 10, 16),  # a quarter, where there is plenty
        (60, 0, 3, 10, 3),  # what /dev/shm has
        (20, 0, 64, 10, 6),  # a sixteenth stays free, or the margin
        (12, 8, 64, 10, 6),  # what is staged goes for a model and may come back
        (12, 0, 64, 10, 0),
        (60, 0, 0, 10, 0),  # no files can be made in memory
    ],
)
def test_staging_beside_a_model(free: int, staged: int, place: int, needed: int, left: int) -> None:
    memory = MemoryFacts(free * GB, total=64 * GB).with_staging(staged * GB, place * GB)
    assert memory.available == (free + staged) * GB
    assert memory.staging_beside(needed * GB, 2 * GB) == left * GB


def test_staging_room_in_a_container(tmp_path: Path) -> None:
    limits = {"memory__max": f"{1024 * MIB}\n", "memory__current": f"{624 * MIB}\n"}
    fake_group(tmp_path, "0::/box\n", "sys/fs/cgroup/box", **limits)
    assert staging_room(0, tmp_path) == 100 * MIB, "a quarter of what may be used"
    assert staging_room(600 * MIB, tmp_path) == 250 * MIB, "what is staged already may be used for that"


def test_on_battery_without_sys(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container or chroot, psutil lists /sys/class/power_supply without checking that it exists."""

    def missing() -> None:
        raise FileNotFoundError(2, "No such file or directory", "/sys/class/power_supply")

    monkeypatch.setattr(psutil, "sensors_battery", missing, raising=False)
    assert not on_battery()


SIZE = 5_000_000_000
HERE = limit_key("model", SIZE, "version: 1", "CUDA")


class Clock:
    now = 1_800_000_000.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limits(tmp_path: Path, clock: Clock) -> LoadLimits:
    return LoadLimits(tmp_path / "state" / "limits.json", lambda: clock.now)


def test_limit_applies_to_the_same_circumstances_until_a_larger_load(limits: LoadLimits, clock: Clock) -> None:
    assert limits.find(HERE) is None
    assert limits.record_load(HERE, 8192, out_of_memory=True) == limits.find(HERE) == LoadLimit(8192, 1, clock.now)
    for other in (("other", "version: 1", "CUDA"), ("model", "version: 2", "CUDA"), ("model", "version: 1", "CPU")):
        assert limits.find(limit_key(other[0], SIZE, *other[1:])) is None
    assert limits.has_limit(SIZE, "version: 1", "CUDA")
    assert not limits.has_limit(SIZE + 1, "version: 1", "CUDA")
    assert limits.record_load(HERE, 8192, out_of_memory=False) == limits.find(HERE) is not None
    assert limits.record_load(HERE, 8448, out_of_memory=False) is None
    assert limits.find(HERE) is None
    limits.record_load(HERE, 8192, out_of_memory=True)
    clock.now -= 60
    assert limits.find(HERE) is None, "a date to come is not believed"


def test_retry_after_a_day_then_twice_as_long(limits: LoadLimits, clock: Clock) -> None:
    waits = []
    for _ in range(8):
        limit = limits.record_load(HERE, 8192, out_of_memory=True)
        assert limit is not None
        waits.append((limit.until - clock.now) / DAY_S)
        assert limits.record_load(HERE, 8192, out_of_memory=True) == limit, "within that time it counts once"
        clock.now = limit.until - 1
        assert limits.find(HERE) == limit
        clock.now = limit.until
        assert limits.find(HERE) is None
    assert waits == [1, 2, 4, 8, 16, 32, 32, 32]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": 1}', '{"a": {"tokens": "x", "times": 1, "at": 1}}', '{"a": {"tokens": 1e999}}', "\0"]
)
def test_damaged_limit_file_is_ignored(limits: LoadLimits, tmp_path: Path, text: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "limits.json").write_text(text)
    assert limits.find(HERE) is None
    limits.record_load(HERE, 8192, out_of_memory=True)
    assert limits.find(HERE) is not None
