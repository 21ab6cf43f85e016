"""How much memory there is: the computer's, what a container leaves of it, and the GPUs'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from kvchat.words.language import _, several

_STAYS_FREE = 4 << 30  # bytes


@dataclass(frozen=True)
class DeviceMemory:
    """The free memory of one GPU, or of another computer that shares the work, in bytes."""

    name: str  # as the engine calls its buffers: "CUDA0", "Vulkan1", "RPC0[den:50052]"
    free: int

    @property
    def kind(self) -> str:
        """The sort of device: "CUDA", "Vulkan", "RPC", …"""
        return self.name.partition("[")[0].rstrip("0123456789")


@dataclass(frozen=True)
class MemoryFacts:
    """The memory a model may use, in bytes, before it is loaded."""

    available: int  # of the computer, or of the container's limit where that is less
    limited: bool = False  # a container's or service's limit is what counts
    devices: tuple[DeviceMemory, ...] = ()
    all_there_is: int = 0  # of the computer or the container, taken or not
    staging_place: int = 0  # slot files that could lie in memory; 0 where there is no place for them

    @property
    def device_free(self) -> int:
        return sum(device.free for device in self.devices)

    @property
    def is_shared(self) -> bool:
        """True if the GPU's memory is the computer's own, as on Apple's chips."""
        return bool(self.devices) and self.devices[0].kind in ("MTL", "Metal")

    @property
    def beside(self) -> str:
        """Words for the GPUs and other computers; "" without."""
        elsewhere = [device.kind == "RPC" for device in self.devices]
        words = {
            False: several(elsewhere.count(False), "the GPU", "the GPUs"),
            True: several(elsewhere.count(True), "the other computer", "the other computers"),
        }
        return _(" and ").join(words[kind] for kind in dict.fromkeys(elsewhere))

    @property
    def device_kind(self) -> str:
        """The sort of device a model runs on: "CUDA", "Vulkan", …; "CPU" without a GPU."""
        return self.devices[0].kind if self.devices else "CPU"

    def with_staging(self, disposable: int, place: int) -> MemoryFacts:
        """The same for a model before which `disposable` bytes of slot files in memory go; `place` bytes could lie."""
        more = disposable if self.limited else 0
        available, all_there_is = self.available + disposable, self.all_there_is + more
        return replace(self, available=available, all_there_is=all_there_is, staging_place=place)

    def staging_beside(self, needed: int, margin: int) -> int:
        """Return how many bytes of slot files may lie in memory beside a model's need and a margin.

        A quarter of the memory, as long as a sixteenth, or 4 GB where that is less, stays free as well.
        """
        left = self.available - needed - max(margin, min(self.all_there_is // 16, _STAYS_FREE))
        return max(0, min(self.all_there_is // 4, self.staging_place, left))


def available_memory(devices: Sequence[DeviceMemory] = (), root: Path = Path("/")) -> MemoryFacts:
    """The memory free right now, no more than this process's control group allows. `root`: where /proc and /sys are."""
    memory, allowed = psutil.virtual_memory(), cgroup_room(root)
    if allowed is None or allowed >= memory.available:
        return MemoryFacts(memory.available, False, tuple(devices), memory.total)
    return MemoryFacts(allowed, True, tuple(devices), allowed)


def staging_room(held: int, root: Path = Path("/")) -> int:
    """Return how many bytes of slot files may lie in memory now, where `held` lie there already.

    Nothing is ever swapped out for a slot file, and what does not fit goes by way of the disk. While a model is loaded
    the store keeps to what was planned for it as well, see `MemoryFacts.staging_beside`: of what is free now, the
    pages of a model's file are no part.
    """
    memory = available_memory(root=root)
    return memory.with_staging(held, held + memory.available).staging_beside(0, 0)


def cgroup_room(root: Path = Path("/")) -> int | None:
    """Bytes this process's control group (v1 or v2) and its parents still allow; None without a limit.

    Page cache counts as used by the group but is given up on demand, so inactive file pages are added back.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    rooms: list[int] = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            mount, limit, usage = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            mount, limit, usage = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        rooms += _group_rooms(mount, group, limit, usage)
    return min(rooms, default=None)


def _group_rooms(mount: Path, group: str, limit: str, usage: str) -> list[int]:
    """The room left in a group and each of its parents, for those that have a limit."""
    rooms = []
    folder = mount / group.strip("/")
    while True:
        maximum, used = _number_in(folder / limit), _number_in(folder / usage)
        if maximum is not None and used is not None and maximum < 1 << 60:  # v1 writes a huge number for "no limit"
            rooms.append(max(0, maximum - used + _inactive_file(folder / "memory.stat")))
        if folder == mount or mount not in folder.parents:
            return rooms
        folder = folder.parent


def _inactive_file(path: Path) -> int:
    """Bytes of page cache the kernel would give up first; 0 when it does not say."""
    try:
        entries = dict(line.split(" ", 1) for line in path.read_text("ascii").splitlines())
        return int(entries.get("total_inactive_file", entries.get("inactive_file", "0")))
    except (OSError, ValueError):
        return 0


def _number_in(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None


def on_battery() -> bool:
    """Return True if this computer runs on its battery; False where that is unknown, as without a /sys."""
    try:
        battery = psutil.sensors_battery()
    except OSError:
        return False
    return battery is not None and battery.power_plugged is False
