from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from kvchat.library.memory.demand import (
    DeviceMemory,
    MemoryFacts,
    available_memory,
    cgroup_room,
    on_battery,
    staging_room,
)

MIB = 1024 * 1024
GB = 1_000_000_000
V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


def test_available_memory_without_limits_is_the_computers(tmp_path: Path) -> None:
    devices = [DeviceMemory("CUDA0", 8 * MIB), DeviceMemory("CUDA1", 4 * MIB)]
    memory = available_memory(devices, root=tmp_path)
    assert memory.available == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    assert not memory.limited
    assert memory.device_free == 12 * MIB


def fake_group(root: Path, cgroup: str, folder: str, **files: str) -> None:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / folder / name.replace("__", ".")).write_text(content)


def test_cgroup_v2_limit_of_a_parent_counts_and_page_cache_does_not(tmp_path: Path) -> None:
    group, stat = "0::/outer/inner\n", f"anon 5\ninactive_file {20 * MIB}\n"
    fake_group(tmp_path, group, f"{V2}/outer/inner", memory__max="max\n", memory__current="9\n")
    limits = {"memory__max": f"{100 * MIB}\n", "memory__current": f"{70 * MIB}\n", "memory__stat": stat}
    fake_group(tmp_path, group, f"{V2}/outer", **limits)
    assert cgroup_room(tmp_path) == 50 * MIB
    memory = available_memory(root=tmp_path)
    assert (memory.available, memory.limited) == (50 * MIB, True)


@pytest.mark.parametrize(
    ("cgroup", "folder", "files", "room"),
    [
        ("5:cpu,cpuacct:/box\n4:memory:/box\n", f"{V1}/box", (f"{64 * MIB}\n", f"{24 * MIB}\n"), 40 * MIB),
        ("4:memory:/\n", V1, ("9223372036854771712", "9"), None),
        ("0::/\n", V2, ("max\n", "9\n"), None),
    ],
)
def test_cgroup_limits(tmp_path: Path, cgroup: str, folder: str, files: tuple[str, str], room: int | None) -> None:
    assert cgroup_room(tmp_path) is None
    names = ("memory__max", "memory__current")
    if folder.startswith(V1):
        names = ("memory__limit_in_bytes", "memory__usage_in_bytes")
    fake_group(tmp_path, cgroup, folder, **dict(zip(names, files, strict=True)))
    assert cgroup_room(tmp_path) == room


def test_what_is_beside_the_computer_in_words() -> None:
    def beside(*names: str) -> str:
        return MemoryFacts(1, devices=tuple(DeviceMemory(name, 1) for name in names)).beside

    assert beside("CUDA0") == "the GPU"
    assert beside("CUDA0", "CUDA1") == "the GPUs"
    assert beside("RPC0[den:1]") == "the other computer"
    assert beside("RPC0[den:1]", "RPC0[attic:1]", "CUDA0") == "the other computers and the GPU"
    assert DeviceMemory("RPC0[den:1]", 1).kind == "RPC"


@pytest.mark.parametrize(
    ("free", "staged", "place", "needed", "left"),
    [
        (60, 0, 64, 10, 16),  # a quarter, where there is plenty
        (60, 0, 3, 10, 3),  # what /dev/shm has
        (20, 0, 64, 10, 6),  # a sixteenth stays free, or the margin
        (12, 8, 64, 10, 6),  # what is staged goes for a model and may come back
        (12, 0, 64, 10, 0),
        (5, 0, 64, 10, 0),
        (60, 0, 0, 10, 0),  # no files can be made in memory
    ],
)
def test_chats_are_kept_ready_in_what_a_model_leaves(
    free: int, staged: int, place: int, needed: int, left: int
) -> None:
    memory = MemoryFacts(free * GB, total=64 * GB).with_staging(staged * GB, place * GB)
    assert memory.available == (free + staged) * GB
    assert memory.staging_beside(needed * GB, 2 * GB) == left * GB


def test_what_a_container_leaves_for_slot_files(tmp_path: Path) -> None:
    limits = {"memory__max": f"{1024 * MIB}\n", "memory__current": f"{624 * MIB}\n"}
    fake_group(tmp_path, "0::/box\n", "sys/fs/cgroup/box", **limits)
    assert staging_room(0, tmp_path) == 100 * MIB, "a quarter of what may be used"
    assert staging_room(600 * MIB, tmp_path) == 250 * MIB, "what is staged already may be used for that"


def test_where_there_is_no_sys_nobody_is_on_battery(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container or a chroot: psutil lists /sys/class/power_supply, whether it is there or not."""

    def missing() -> None:
        raise FileNotFoundError(2, "No such file or directory", "/sys/class/power_supply")

    monkeypatch.setattr(psutil, "sensors_battery", missing, raising=False)
    assert not on_battery()
