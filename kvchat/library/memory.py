"""How much memory a model's KV cache takes, and how much memory there is.

Formulas follow llama.cpp: llama_hparams (n_embd_k_gqa, n_embd_r, n_embd_s) and llama_kv_cache(_iswa). Exact for full
attention; where a file does not say which layers do what, the estimate is an upper bound and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from kvchat.library.gguf_facts import GgufFacts, RecurrentState, SlidingWindow
from kvchat.library.gguf_header import TENSOR_TYPES

# The KV types llama-server's --cache-type-k/-v take: values per block, bytes per block.
KV_TYPES = {
    name.lower(): (per_block, block_bytes)
    for name, per_block, block_bytes in TENSOR_TYPES.values()
    if name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "IQ4_NL", "Q5_0", "Q5_1")
}
MICRO_BATCH = 512  # tokens; llama-server's default --ubatch-size, by which a sliding window's cache is longer
CELL_PADDING = 256  # tokens; llama.cpp rounds a sliding window's cache up to this

# Every how many-th layer attends fully, where llama.cpp knows it from the architecture and files need not say.
_WINDOW_PERIODS = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "exaone4": 4, "olmo2": 4}
_HYBRID_PERIODS = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}


@dataclass(frozen=True)
class DeviceMemory:
    """The free memory of one GPU, in bytes."""

    name: str
    free: int


@dataclass(frozen=True)
class MemoryFacts:
    """The memory a model may use, in bytes, before it is loaded."""

    available: int  # of the computer, or of the container's limit where that is less
    limited: bool = False  # a container's or service's limit is what counts
    devices: tuple[DeviceMemory, ...] = ()

    @property
    def device_free(self) -> int:
        """Free memory of all GPUs together."""
        return sum(device.free for device in self.devices)


@dataclass(frozen=True)
class KvEstimate:
    """What a KV cache takes in memory, in bytes."""

    per_token: float  # grows with the context
    fixed: int  # sliding windows and recurrent state: the same however long the conversation
    notes: tuple[str, ...]  # why this is an upper bound; empty when exact

    @property
    def exact(self) -> bool:
        """Whether the header told everything."""
        return not self.notes


def kv_bytes_per_token(facts: GgufFacts, kv_type_k: str = "f16", kv_type_v: str = "f16") -> float:
    """Bytes by which the KV cache grows with each token of context. Raises ValueError for an unknown KV type."""
    return kv_estimate(facts, facts.trained_context, kv_type_k, kv_type_v).per_token


def kv_bytes(facts: GgufFacts, n_ctx: int, kv_type_k: str = "f16", kv_type_v: str = "f16") -> int:
    """Bytes of the whole KV cache at a context of `n_ctx` tokens. Raises ValueError for an unknown KV type."""
    estimate = kv_estimate(facts, n_ctx, kv_type_k, kv_type_v)
    return math.ceil(estimate.per_token * n_ctx) + estimate.fixed


def kv_estimate(facts: GgufFacts, n_ctx: int, kv_type_k: str = "f16", kv_type_v: str = "f16") -> KvEstimate:
    """The KV cache of a context of `n_ctx` tokens, one slot. Raises ValueError for an unknown KV type."""
    recurrent, recurrent_note = _recurrent_layers(facts)
    sliding, sliding_note = _sliding_layers(facts)
    per_token, fixed = 0.0, 0
    for layer in range(facts.block_count):
        if recurrent[layer]:
            assert facts.recurrent is not None  # by construction of the list
            fixed += recurrent_bytes(facts.recurrent, facts.embedding_length)
        if layer >= facts.block_count - facts.shared_kv_layers:
            continue
        row = _row_bytes(facts, layer, sliding[layer], kv_type_k, kv_type_v)
        if sliding[layer] and facts.sliding_window is not None:
            fixed += math.ceil(row * window_cells(facts.sliding_window, n_ctx))
        else:
            per_token += row
    return KvEstimate(per_token, fixed, tuple(note for note in (recurrent_note, sliding_note) if note))


def window_cells(window: SlidingWindow, n_ctx: int) -> int:
    """Tokens a sliding-window layer keeps (llama_kv_cache_iswa, without --swa-full)."""
    cells = min(n_ctx, window.tokens + MICRO_BATCH)
    return -(-cells // CELL_PADDING) * CELL_PADDING


def recurrent_bytes(state: RecurrentState, embedding_length: int) -> int:
    """Bytes one recurrent layer keeps, f32, whatever the context (llama_hparams n_embd_r + n_embd_s)."""
    if state.wkv_head_size:
        values = embedding_length * (max(state.token_shift_count, 1) + state.wkv_head_size)
    elif state.shortconv_cache:
        values = embedding_length * (state.shortconv_cache - 1)
    else:
        channels = state.inner_size + 2 * state.group_count * state.state_size
        values = max(state.conv_kernel - 1, 0) * channels + state.state_size * state.inner_size
    return 4 * values


def _row_bytes(facts: GgufFacts, layer: int, slides: bool, kv_type_k: str, kv_type_v: str) -> float:
    """Bytes one token takes in one attention layer; 0 in a layer without attention."""
    if _is_recurrent_only(facts, layer):
        return 0.0
    latent = facts.latent_attention
    if latent is not None:  # V is a view of the same compressed row
        return type_bytes(kv_type_k, latent.kv_rank + latent.rope_length)
    key_length, value_length = facts.key_length, facts.value_length
    if slides and facts.sliding_window is not None:
        key_length, value_length = facts.sliding_window.key_length, facts.sliding_window.value_length
    heads = facts.kv_heads[layer]
    return type_bytes(kv_type_k, heads * key_length) + type_bytes(kv_type_v, heads * value_length)


def type_bytes(kv_type: str, values: int) -> float:
    """Bytes that many values take in a KV type. Raises ValueError for an unknown type."""
    if kv_type not in KV_TYPES:
        raise ValueError(f"unknown KV type {kv_type!r}")
    per_block, block_bytes = KV_TYPES[kv_type]
    return values * block_bytes / per_block


def _is_recurrent_only(facts: GgufFacts, layer: int) -> bool:
    """Whether a layer has recurrent state and no attention."""
    if facts.recurrent is None:
        return False
    if facts.recurrent.layers is not None:
        return facts.recurrent.layers[layer]
    period = facts.recurrent.full_attention_interval or _HYBRID_PERIODS.get(facts.architecture, 0)
    return facts.kv_heads[layer] == 0 or (period > 0 and (layer + 1) % period != 0)


def _recurrent_layers(facts: GgufFacts) -> tuple[list[bool], str]:
    """Which layers keep recurrent state, and what had to be assumed."""
    if facts.recurrent is None:
        return [False] * facts.block_count, ""
    only = [_is_recurrent_only(facts, layer) for layer in range(facts.block_count)]
    if any(only):
        return only, ""
    return [True] * facts.block_count, "every layer is counted both as attention and as recurrent"


def _sliding_layers(facts: GgufFacts) -> tuple[list[bool], str]:
    """Which layers have a sliding window, and what had to be assumed."""
    window = facts.sliding_window
    if window is None:
        return [False] * facts.block_count, ""
    pattern = window.layers if window.layers is not None else _WINDOW_PERIODS.get(facts.architecture)
    if pattern is None:
        note = "the file does not say which layers have a sliding window, so all are counted in full"
        return [False] * facts.block_count, note
    if isinstance(pattern, int):  # 0: every layer slides, as in llama_hparams::set_swa_pattern
        return [pattern == 0 or layer % pattern < pattern - 1 for layer in range(facts.block_count)], ""
    padded = pattern + (False,) * facts.block_count
    return list(padded[: facts.block_count]), ""


def available_memory(devices: Sequence[DeviceMemory] = (), root: Path = Path("/")) -> MemoryFacts:
    """The memory free right now, no more than this process's control group allows. `root`: where /proc and /sys are."""
    free = psutil.virtual_memory().available
    allowed = cgroup_room(root)
    if allowed is None or allowed >= free:
        return MemoryFacts(free, False, tuple(devices))
    return MemoryFacts(allowed, True, tuple(devices))


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
    """The number a one-line file holds; None for "max" or no such file."""
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
