"""Available memory (the computer's, within a container's limits, and the GPUs'), and a model's needs.

Estimated before the load. Sizes in bytes.
"""

from __future__ import annotations

import json
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

COMPUTER = "memory"  # bar name of main memory
ENGINE_BYTES = 128 * 1024 * 1024  # the engine's process, HTTP threads and small buffers
MARGIN_SHARE = 0.10  # of free memory, left for other uses
MIN_MARGIN_BYTES = 256 * 1024 * 1024
_MAX_RESERVED_BYTES = 4 << 30
MAX_ENTRIES = 200  # load limits kept, newest first
DAY_S, MAX_DAYS = 86_400.0, 32  # until a larger context is tried again


@dataclass(frozen=True)
class DeviceMemory:
    """Free memory, in bytes, of one GPU or of another computer that shares the work."""

    name: str  # as in the engine's buffer names: "CUDA0", "Vulkan1", "RPC0[den:50052]"
    free: int

    @property
    def kind(self) -> str:
        """Device type: "CUDA", "Vulkan", "RPC", …"""
        return self.name.partition("[")[0].rstrip("0123456789")


@dataclass(frozen=True)
class MemoryFacts:
    """Memory available to a model before it is loaded, in bytes."""

    available: int  # of the computer, or the container's limit if lower
    is_limited: bool = False  # a container's or service's limit applies
    devices: tuple[DeviceMemory, ...] = ()
    total: int = 0  # total of the computer or container
    staging_capacity: int = 0  # bytes for slot files in memory; 0: no place for them

    @property
    def device_free(self) -> int:
        return sum(device.free for device in self.devices)

    @property
    def is_shared(self) -> bool:
        """True if the GPU shares the computer's memory, as on Apple silicon."""
        return bool(self.devices) and self.devices[0].kind in ("MTL", "Metal")

    @property
    def device_names(self) -> str:
        elsewhere = [device.kind == "RPC" for device in self.devices]
        names = {
            False: plural(elsewhere.count(False), "the GPU", "the GPUs"),
            True: plural(elsewhere.count(True), "the other computer", "the other computers"),
        }
        return _(" and ").join(names[kind] for kind in dict.fromkeys(elsewhere))

    @property
    def device_kind(self) -> str:
        """Device type the model runs on: "CUDA", "Vulkan", …, or "CPU" without a GPU."""
        return self.devices[0].kind if self.devices else "CPU"

    def with_staging(self, disposable: int, capacity: int) -> MemoryFacts:
        """Return the facts once `disposable` bytes of in-memory slot files are gone; `capacity`: room for new ones."""
        total = self.total + (disposable if self.is_limited else 0)
        return replace(self, available=self.available + disposable, total=total, staging_capacity=capacity)

    def staging_beside(self, needed: int, margin: int) -> int:
        """Return how many bytes of slot files fit in memory beside a model's need and a margin.

        At most a quarter of the memory; at least a sixteenth, or 4 GB if less, stays free.
        """
        left = self.available - needed - max(margin, min(self.total // 16, _MAX_RESERVED_BYTES))
        return max(0, min(self.total // 4, self.staging_capacity, left))


def available_memory(devices: Sequence[DeviceMemory] = (), root: Path = Path("/")) -> MemoryFacts:
    """Return the memory free now, capped by this process's cgroup. `root`: parent of /proc and /sys."""
    memory, allowed = psutil.virtual_memory(), cgroup_memory_left(root)
    if allowed is None or allowed >= memory.available:
        return MemoryFacts(memory.available, False, tuple(devices), memory.total)
    return MemoryFacts(allowed, True, tuple(devices), allowed)


def staging_room(held_bytes: int, root: Path = Path("/")) -> int:
    """Return how many bytes of slot files may be in memory now, where `held_bytes` already are.

    While a model is loaded, the store also keeps to its plan (`MemoryFacts.staging_beside`): free memory does not
    include the pages of a model's file.
    """
    memory = available_memory(root=root)
    return memory.with_staging(held_bytes, held_bytes + memory.available).staging_beside(0, 0)


def cgroup_memory_left(root: Path = Path("/")) -> int | None:
    """Return the bytes this process's cgroup (v1 or v2) and its parents allow; None if unlimited."""
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
            with suppress(OSError, ValueError):  # the root has no files; "max" is no limit
                room = int((level / limit).read_text("ascii"))
                if room < 1 << 60:  # v1 writes a huge number for "no limit"
                    room -= int((level / usage).read_text("ascii"))
                    with suppress(OSError, ValueError):  # page cache that the kernel would drop first
                        lines = (level / "memory.stat").read_text("ascii").splitlines()
                        stat = dict(line.split(" ", 1) for line in lines)
                        room += int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))
                    rooms.append(max(0, room))
    return min(rooms, default=None)


def on_battery() -> bool:
    """Return True if this computer runs on battery; False if unknown, as without /sys."""
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
class MemoryBar:
    """One device's memory. Unless `measured`, the parts are pre-load estimates."""

    device: str  # a GPU's name, or COMPUTER
    free: int  # before the load
    margin: int  # of that, never used by kvchat
    weights: int
    kv: int
    compute: int
    other: int  # the engine itself, a projector, and its state checkpoints
    measured: bool = False
    staging: int = 0  # limit of the remaining memory for keeping chats ready

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
        return _("{taken}; {rest}, of {free} free", taken=taken, rest=rest, free=format_size(self.free))

    @property
    def fits(self) -> bool:
        return self.needed <= self.free - self.margin


def with_freed_memory(memory: MemoryFacts, bars: tuple[MemoryBar, ...]) -> MemoryFacts:
    """Return the memory available once the model of these bars is unloaded.

    Weights in main memory are file pages, which already count as free.
    """
    taken = {bar.device: bar.needed for bar in bars}
    host = sum(bar.needed - bar.weights for bar in bars if bar.device == COMPUTER)
    devices = tuple(replace(device, free=device.free + taken.get(device.name, 0)) for device in memory.devices)
    return replace(memory, available=memory.available + host, devices=devices)


@dataclass(frozen=True)
class LoadLimit:
    """The context size, in tokens, that loaded when a larger one ran out of memory.

    Another program may have held that memory, so a larger size is retried after a day; each further failure doubles
    the wait.
    """

    tokens: int
    failures: int  # failures at least a day apart
    failed_at: float  # last failure, in seconds since 1970 (like `until`)

    @property
    def until(self) -> float:
        return self.failed_at + DAY_S * min(2.0 ** min(self.failures - 1, 16), MAX_DAYS)


def limit_key(model: str, size: int, build: str, device: str) -> str:
    """Return what a limit depends on: a model's identity and bytes, the engine build and "CPU", "CUDA", …"""
    return f"{model}|{size}|{build}|{device}"


class LoadLimits:
    """Known limits by `limit_key`, in one JSON file, which may always be deleted."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970."""
        self._file, self._clock = file, clock

    def find(self, key: str) -> LoadLimit | None:
        """Return the limit in force; None if there is none or a retry is due."""
        entry = self._entries().get(key)
        return entry if entry is not None and self._is_in_force(entry) else None

    def has_limit(self, size: int, build: str, device: str) -> bool:
        """True if a model of `size` bytes ran out of memory with this build and device type."""
        return any(key.endswith(limit_key("", size, build, device)) for key in self._entries())

    def record_load(self, key: str, tokens: int, *, out_of_memory: bool) -> LoadLimit | None:
        """Record a load that succeeded with `tokens`; `out_of_memory`: after a larger one failed.

        A load above the limit removes it. Returns the limit now in force. If the file cannot be written, another
        load may run out of memory.
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
    """A model to run: everything its need depends on except context size and available memory."""

    facts: GgufFacts
    kv_type: str = "f16"
    swa_full: bool = False
    projector: int = 0  # bytes of the vision projector
    slots: int = 1  # parallel chats sharing the context
    limit: LoadLimit | None = None  # from a load that ran out of memory

    def bars(self, tokens: int, memory: MemoryFacts, *, on_gpu: bool = True) -> tuple[MemoryBar, ...]:
        """Return one bar per GPU, then one for main memory. `on_gpu`: the GPUs may be used.

        An estimate: if not everything fits on the GPUs, llama.cpp's `--fit` decides what stays off them; here weights
        do. It distributes layers by free GPU memory; each GPU also gets a full compute buffer. The token embedding is
        never on a GPU.
        Raises ValueError for an unknown KV type.
        """
        weights = self.facts.weights
        kv = kv_bytes(self.facts.kv, tokens, self.kv_type, self.kv_type, swa_full=self.swa_full, slots=self.slots)
        compute, other = self._compute(tokens), ENGINE_BYTES
        if not self.swa_full:  # checkpoints of models that cannot be cut (server-context.cpp)
            fixed = kv_fixed_bytes(self.facts.kv, tokens, self.kv_type, self.kv_type)
            other += fixed * CONTEXT_CHECKPOINTS * self.slots
        layers = weights.layers + weights.output
        movable = layers + (weights.embedding if weights.output_is_embedding else 0) + kv
        room = sum(usable_bytes(device.free) - compute for device in memory.devices) - self.projector
        if memory.is_shared:
            room = movable
        if not memory.devices or not on_gpu or room <= 0:
            parts = layers + weights.embedding, kv, compute, other + self.projector
            gpus = (MemoryBar(gpu.name, gpu.free, margin_bytes(gpu.free), 0, 0, 0, 0) for gpu in memory.devices)
            return (*gpus, self._computer_bar(memory, *parts))
        weights_beside = min(max(0, movable - room), movable - kv)
        kv_beside = max(0, movable - room - weights_beside)
        bars = []
        for device in memory.devices:
            part = device.free / memory.device_free
            on_device = round((movable - kv - weights_beside) * part), round((kv - kv_beside) * part)
            projector = round(self.projector * part)
            bars.append(MemoryBar(device.name, device.free, margin_bytes(device.free), *on_device, compute, projector))
        # A GPU's input buffers in main memory: mask and embeddings of a micro-batch (measured: Vulkan). Layers off the
        # GPU add almost nothing: it computes their prefill too, and decoding needs one row.
        inputs = BATCH_SIZE * 4 * (pad_to_cells(tokens) + 2 * self.facts.embedding_length)
        beside = weights.embedding + weights_beside, kv_beside, inputs, other
        return (*bars, self._computer_bar(memory, *beside))

    def _computer_bar(self, memory: MemoryFacts, weights: int, kv: int, compute: int, other: int) -> MemoryBar:
        free, reserved = memory.available, margin_bytes(memory.available)
        staging = memory.staging_beside(weights + kv + compute + other, reserved)
        return MemoryBar(COMPUTER, free, reserved, weights, kv, compute, other, staging=staging)

    def _compute(self, tokens: int) -> int:
        """Estimate llama.cpp's compute buffer: a micro-batch inside a layer (measured on b11434, rounded up).

        Builds a year older also keep the logits of a whole micro-batch; the margin covers them.
        """
        facts = self.facts
        activations = 5 * facts.embedding_length + 3 * facts.inner_length + 2 * facts.heads * facts.key_length
        size = 4 * BATCH_SIZE * activations
        if any(layer.keys for layer in facts.kv.layers):
            size += BATCH_SIZE * 2 * pad_to_cells(tokens)  # f16 mask
        return size
