"""Available memory of the computer (or container) and the GPUs, and estimates of a model's needs, in bytes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from kvchat.engine.process.plan import BATCH_SIZE, CONTEXT_CHECKPOINTS
from kvchat.library.gguf.facts import GgufFacts
from kvchat.library.gguf.kv_cache import kv_bytes, kv_fixed_bytes, pad_to_cells
from kvchat.system.files import atomic_write, read_json
from kvchat.text.formatting import format_size
from kvchat.text.language import _, join_list, plural

COMPUTER = "memory"  # name of the device in the use of main memory
ENGINE_BYTES = 128 * 1024 * 1024  # the engine's process, HTTP threads and small buffers
MARGIN_SHARE = 0.10  # of free memory, left for other uses
MIN_MARGIN_BYTES = 256 * 1024 * 1024
_MAX_RESERVED_BYTES = 4 << 30
MAX_ENTRIES = 200  # number of load limits kept; the oldest are dropped
DAY_S, MAX_DAYS = 86_400.0, 32  # a larger context is tried again after one day at first, 32 days at most


@dataclass(frozen=True)
class DeviceMemory:
    """Free memory, in bytes, of a GPU or of another computer that runs part of the model."""

    name: str  # as in the engine's buffer names: "CUDA0", "Vulkan1", "RPC0[den:50052]"
    free: int

    @property
    def kind(self) -> str:
        """Type of the device, such as "CUDA", "Vulkan" or "RPC"."""
        return self.name.partition("[")[0].rstrip("0123456789")

    @property
    def is_remote(self) -> bool:
        return self.kind == "RPC"


@dataclass(frozen=True)
class MemoryFacts:
    """Memory that a model can use, in bytes, before it is loaded."""

    available: int  # of the computer, or the container's limit if lower
    is_limited: bool = False  # a container or service has a lower limit than the computer
    devices: tuple[DeviceMemory, ...] = ()
    total: int = 0  # total of the computer or container
    staging_capacity: int = 0  # room for slot files in memory; 0 if they cannot be there

    @property
    def device_free(self) -> int:
        return sum(device.free for device in self.devices)

    @property
    def is_shared(self) -> bool:
        """True if the GPU uses the computer's main memory, as on Apple silicon."""
        return bool(self.devices) and self.devices[0].kind in ("MTL", "Metal")

    @property
    def device_names(self) -> str:
        elsewhere = [device.is_remote for device in self.devices]
        names = {
            False: plural(elsewhere.count(False), "the GPU", "the GPUs"),
            True: plural(elsewhere.count(True), "the other computer", "the other computers"),
        }
        return _(" and ").join(names[kind] for kind in dict.fromkeys(elsewhere))

    @property
    def device_kind(self) -> str:
        """Type of the device that runs the model, such as "CUDA", or "CPU" without a GPU."""
        return self.devices[0].kind if self.devices else "CPU"

    def with_staging(self, disposable: int, capacity: int) -> MemoryFacts:
        """Return the facts as if `disposable` bytes of slot files were deleted from memory.

        `capacity`: number of bytes of slot files that may be kept in memory.
        """
        total = self.total + (disposable if self.is_limited else 0)
        return replace(self, available=self.available + disposable, total=total, staging_capacity=capacity)

    def staging_beside(self, needed: int, margin: int) -> int:
        """Return how many bytes of slot files fit in memory beside a model and a margin.

        This is at most a quarter of the memory, and leaves a sixteenth or 4 GB free, whichever is less.
        """
        left = self.available - needed - max(margin, min(self.total // 16, _MAX_RESERVED_BYTES))
        return max(0, min(self.total // 4, self.staging_capacity, left))


def available_memory(devices: Sequence[DeviceMemory] = (), root: Path = Path("/")) -> MemoryFacts:
    """Return the free memory of the computer, or of this process's cgroup if that allows less, and of `devices`.

    `root` is the root of the file system, for tests.
    """
    memory, allowed = psutil.virtual_memory(), cgroup_memory_left(root)
    if allowed is None or allowed >= memory.available:
        return MemoryFacts(memory.available, False, tuple(devices), memory.total)
    return MemoryFacts(allowed, True, tuple(devices), allowed)


def staging_room(held_bytes: int, root: Path = Path("/")) -> int:
    """Return how many bytes of slot files fit in main memory in total. `held_bytes` of them are there already.

    While a model is loaded, the store also respects `MemoryFacts.staging_beside`, because the pages of the model file
    count as free.
    """
    memory = available_memory(root=root)
    return memory.with_staging(held_bytes, held_bytes + memory.available).staging_beside(0, 0)


def cgroup_memory_left(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process's cgroup (v1 or v2) and its parents still allow; None if unlimited."""
    try:
        groups = (root / "proc/self/cgroup").read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    rooms: list[int] = []
    for entry in groups:
        _number, controllers, group = entry.split(":", 2)
        if controllers == "":
            mount, limit, usage = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            mount, limit, usage = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = mount / group.strip("/")
        for level in (folder, *(parent for parent in folder.parents if parent == mount or mount in parent.parents)):
            with suppress(OSError, ValueError):  # the root group has no such files; "max" means no limit
                room = int((level / limit).read_text("ascii"))
                if room < 1 << 60:  # v1 writes a huge number for "no limit"
                    room -= int((level / usage).read_text("ascii"))
                    with suppress(OSError, ValueError):  # add page cache, which the kernel drops first
                        lines = (level / "memory.stat").read_text("ascii").splitlines()
                        stat = dict(line.split(" ", 1) for line in lines)
                        room += int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))
                    rooms.append(max(0, room))
    return min(rooms, default=None)


def on_battery() -> bool:
    """Return True if this computer runs on battery power; False if unknown, for example without /sys."""
    try:
        battery = psutil.sensors_battery()
    except OSError:
        return False
    return battery is not None and battery.power_plugged is False


def margin_bytes(free: int) -> int:
    return min(free, round(max(MIN_MARGIN_BYTES, MARGIN_SHARE * free)))


def usable_bytes(free: int) -> int:
    return free - margin_bytes(free)


@dataclass(frozen=True)
class MemoryUse:
    """Use of the memory of one device, in bytes. The parts are estimates unless `measured`."""

    device: str  # name of a GPU, or COMPUTER
    free: int  # before the load
    margin: int  # part of `free` that kvchat never uses
    weights: int
    kv: int
    compute: int  # compute buffers
    other: int  # engine process, projector, state checkpoints
    measured: bool = False
    staging: int = 0  # maximum size of slot files in the remaining memory

    @property
    def name(self) -> str:
        """Name for the user; the address of an RPC server instead of "RPC0[den:50052]"."""
        if self.device == COMPUTER:
            return _("System memory")
        if match := re.fullmatch(r"RPC(\d+)\[(.+)\]", self.device):
            number, worker = int(match[1]), match[2]
            return _("{worker}, device {number}", worker=worker, number=number + 1) if number else worker
        return self.device

    @property
    def needed(self) -> int:
        return self.weights + self.kv + self.compute + self.other

    @property
    def unused(self) -> int:
        return max(0, self.free - self.margin - self.needed - self.staging)

    @property
    def summary(self) -> str:
        parts = (
            (self.weights, _("weights")),
            (self.kv, _("KV cache")),
            (self.compute, _("buffers")),
            (self.other, _("engine")),
        )
        taken = join_list(f"{format_size(size)} {what}" for size, what in parts if size)
        left = ((self.staging, _("for cached chats")), (self.unused, _("unused")), (self.margin, _("reserved")))
        rest = join_list(f"{format_size(size)} {what}" for size, what in left if size)
        return _("{used}; {unused}, of {free} free", used=taken, unused=rest, free=format_size(self.free))

    @property
    def fits(self) -> bool:
        return self.needed <= self.free - self.margin


def with_freed_memory(memory: MemoryFacts, uses: tuple[MemoryUse, ...]) -> MemoryFacts:
    """Return the memory that would be available after unloading the model whose memory use is `uses`.

    Its weights in main memory are pages of a file, which already count as free.
    """
    taken = {use.device: use.needed for use in uses}
    host = sum(use.needed - use.weights for use in uses if use.device == COMPUTER)
    devices = tuple(replace(device, free=device.free + taken.get(device.name, 0)) for device in memory.devices)
    return replace(memory, available=memory.available + host, devices=devices)


@dataclass(frozen=True)
class LoadLimit:
    """The context size, in tokens, that could be loaded after a larger one ran out of memory.

    Since another program may have used that memory, a larger size is tried again after a day. Each further failure
    doubles the delay.
    """

    tokens: int
    failures: int  # counts those within a retry period once
    failed_at: float  # last failure, in seconds since 1970

    @property
    def until(self) -> float:
        return self.failed_at + DAY_S * min(2.0 ** min(self.failures - 1, 16), MAX_DAYS)


def limit_key(model: str, size: int, build: str, device: str) -> str:
    """Return the key of a limit: the identity and size of the model, the engine build, and "CPU", "CUDA", …"""
    return f"{model}|{size}|{build}|{device}"


class LoadLimits:
    """The known limits by `limit_key`, in a JSON file. Deleting the file only loses the limits."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        self._file, self._clock = file, clock

    def find(self, key: str) -> LoadLimit | None:
        """Return the limit for a key, or None if there is none or it is time to try a larger size again."""
        entry = self._entries().get(key)
        return entry if entry is not None and self._is_in_force(entry) else None

    def has_limit(self, size: int, build: str, device: str) -> bool:
        """Return True if a limit is recorded for any model of `size` bytes with this build and device type."""
        return any(key.endswith(limit_key("", size, build, device)) for key in self._entries())

    def record_load(self, key: str, tokens: int, *, out_of_memory: bool) -> LoadLimit | None:
        """Record that a context of `tokens` was loaded, and return the limit now in force, or None.

        With `out_of_memory`, a larger context failed before, so `tokens` becomes the limit. Otherwise, loading more
        than the limit deletes it. Errors writing the file are ignored.
        """
        entries = self._entries()
        before = entries.pop(key, None)
        if not out_of_memory and (before is None or tokens <= before.tokens):
            return before if before is not None and self._is_in_force(before) else None
        limit = None
        if out_of_memory:
            again = before is not None and not self._is_in_force(before)
            failures = (before.failures if before is not None else 1) + again
            limit = entries[key] = LoadLimit(tokens, failures, self._clock())
        newest = dict(list(entries.items())[-MAX_ENTRIES:])
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            stored = {
                key: {"tokens": limit.tokens, "times": limit.failures, "at": limit.failed_at}
                for key, limit in newest.items()
            }
            with atomic_write(self._file) as new:
                new.write_text(json.dumps(stored, indent=1), "utf-8")
        return limit

    def _is_in_force(self, entry: LoadLimit) -> bool:
        return entry.failed_at <= self._clock() < entry.until  # dates in the future are ignored

    def _entries(self) -> dict[str, LoadLimit]:
        try:
            return {
                str(key): LoadLimit(int(entry["tokens"]), max(1, int(entry["times"])), float(entry["at"]))
                for key, entry in read_json(self._file).items()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return {}


@dataclass(frozen=True)
class ModelDemand:
    """A model to run, with the settings that determine its memory needs."""

    facts: GgufFacts
    kv_type: str = "f16"
    swa_full: bool = False
    projector_bytes: int = 0  # of the vision projector
    slots: int = 1  # parallel chats sharing the context
    limit: LoadLimit | None = None  # from a load that ran out of memory

    def memory_uses(self, tokens: int, memory: MemoryFacts, *, on_gpu: bool = True) -> tuple[MemoryUse, ...]:
        """Estimate the memory use of each GPU, then of main memory. Raises ValueError for an unknown KV type.

        If the model does not fit on the GPUs, the estimate moves weights to main memory; llama.cpp's `--fit` decides
        later. Layers are distributed by free GPU memory. Each GPU has a full compute buffer. The token embedding always
        stays in main memory.
        """
        weights = self.facts.weights
        kv = kv_bytes(self.facts.kv, tokens, self.kv_type, swa_full=self.swa_full, slots=self.slots)
        compute, other = self._compute_buffer_bytes(tokens), ENGINE_BYTES
        if not self.swa_full:  # checkpoints of models whose state cannot be truncated (server-context.cpp)
            fixed = kv_fixed_bytes(self.facts.kv, tokens, self.kv_type)
            other += fixed * CONTEXT_CHECKPOINTS * self.slots
        layers = weights.layer_bytes + weights.output_bytes
        movable = layers + (weights.embedding_bytes if weights.output_is_embedding else 0) + kv
        room = sum(usable_bytes(device.free) - compute for device in memory.devices) - self.projector_bytes
        if memory.is_shared:
            room = movable
        if not memory.devices or not on_gpu or room <= 0:
            parts = layers + weights.embedding_bytes, kv, compute, other + self.projector_bytes
            gpus = (MemoryUse(gpu.name, gpu.free, margin_bytes(gpu.free), 0, 0, 0, 0) for gpu in memory.devices)
            return (*gpus, self._computer_use(memory, *parts))
        weights_beside = min(max(0, movable - room), movable - kv)
        kv_beside = max(0, movable - room - weights_beside)
        uses = []
        for device in memory.devices:
            part = device.free / memory.device_free
            on_device = round((movable - kv - weights_beside) * part), round((kv - kv_beside) * part)
            projector = round(self.projector_bytes * part)
            uses.append(MemoryUse(device.name, device.free, margin_bytes(device.free), *on_device, compute, projector))
        # A GPU has input buffers in main memory: mask and embeddings of a micro-batch (measured with Vulkan). Layers in
        # main memory add almost nothing, since the GPU also computes their prefill and decoding needs one row.
        inputs = BATCH_SIZE * 4 * (pad_to_cells(tokens) + 2 * self.facts.embedding_length)
        beside = weights.embedding_bytes + weights_beside, kv_beside, inputs, other
        return (*uses, self._computer_use(memory, *beside))

    def _computer_use(self, memory: MemoryFacts, weights: int, kv: int, compute: int, other: int) -> MemoryUse:
        free, reserved = memory.available, margin_bytes(memory.available)
        staging = memory.staging_beside(weights + kv + compute + other, reserved)
        return MemoryUse(COMPUTER, free, reserved, weights, kv, compute, other, staging=staging)

    def _compute_buffer_bytes(self, tokens: int) -> int:
        """Estimate llama.cpp's compute buffer: one micro-batch in a layer (measured on b11434, rounded up).

        Builds a year older also hold the logits of a whole micro-batch, which the margin covers.
        """
        facts = self.facts
        activations = 5 * facts.embedding_length + 3 * facts.inner_length + 2 * facts.heads * facts.key_length
        size = 4 * BATCH_SIZE * activations
        if any(layer.keys for layer in facts.kv.layers):
            size += BATCH_SIZE * 2 * pad_to_cells(tokens)  # f16 mask
        return size
