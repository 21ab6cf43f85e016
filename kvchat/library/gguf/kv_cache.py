"""How much memory a model's KV cache takes: so much for each token of context, and what is the same for any context."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvchat.engine.running.plan import BATCH_SIZE
from kvchat.library.gguf.facts import GgufFacts
from kvchat.library.gguf.header import TENSOR_TYPES
from kvchat.library.gguf.kv_layers import KvLayout, LayerKv

# The KV types llama-server's --cache-type-k/-v take: values per block, bytes per block.
KV_TYPES = {
    name.lower(): (per_block, block_bytes)
    for name, per_block, block_bytes in TENSOR_TYPES.values()
    if name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "IQ4_NL", "Q5_0", "Q5_1")
}
CELL_PADDING = 256  # tokens; llama.cpp rounds contexts and sliding windows' caches up to this
STATE_BYTES = 4  # recurrent state is f32 whatever the KV type


@dataclass(frozen=True)
class KvEstimate:
    """What a KV cache takes in memory, in bytes."""

    per_token: float  # grows with the context
    fixed: int  # sliding windows and recurrent state: the same however long the conversation


def kv_bytes_per_token(facts: GgufFacts, kv_type_k: str = "f16", kv_type_v: str = "f16") -> float:
    """Bytes by which the KV cache grows with each token of context. Raises ValueError for an unknown KV type."""
    return kv_estimate(facts, facts.trained_context, kv_type_k, kv_type_v).per_token


def kv_bytes(
    facts: GgufFacts, n_ctx: int, kv_type_k: str = "f16", kv_type_v: str = "f16", *, swa_full: bool = False
) -> int:
    """Bytes of the whole KV cache at a context of `n_ctx` tokens. Raises ValueError for an unknown KV type."""
    return sum(layer_bytes(facts.kv, n_ctx, kv_type_k, kv_type_v, swa_full=swa_full))


def layer_bytes(
    layout: KvLayout,
    n_ctx: int,
    kv_type_k: str = "f16",
    kv_type_v: str = "f16",
    *,
    swa_full: bool = False,
    slots: int = 1,
) -> tuple[int, ...]:
    """The same for each layer by itself, with so many slots that share the context.

    Raises ValueError for an unknown KV type.
    """
    cells = padded(n_ctx)
    window = cells if swa_full else window_cells(slots * layout.window, cells)
    return tuple(
        math.ceil(row_bytes(layer, kv_type_k, kv_type_v) * (window if layer.slides else cells))
        + STATE_BYTES * slots * layer.state
        for layer in layout.layers
    )


def kv_estimate(facts: GgufFacts, n_ctx: int, kv_type_k: str = "f16", kv_type_v: str = "f16") -> KvEstimate:
    """The KV cache of a context of `n_ctx` tokens, one slot. Raises ValueError for an unknown KV type."""
    per_token, fixed = 0.0, 0
    for layer in facts.kv.layers:
        row = row_bytes(layer, kv_type_k, kv_type_v)
        if layer.slides:
            fixed += math.ceil(row * window_cells(facts.kv.window, n_ctx))
        else:
            per_token += row
        fixed += STATE_BYTES * layer.state
    return KvEstimate(per_token, fixed)


def padded(tokens: int) -> int:
    """`tokens` as llama.cpp rounds context sizes."""
    return -(-tokens // CELL_PADDING) * CELL_PADDING


def window_cells(window: int, n_ctx: int) -> int:
    """Tokens a sliding-window layer keeps (llama_kv_cache_iswa, without --swa-full)."""
    return padded(min(n_ctx, window + BATCH_SIZE))


def row_bytes(layer: LayerKv, kv_type_k: str, kv_type_v: str) -> float:
    """Bytes one token takes in one layer."""
    return type_bytes(kv_type_k, layer.keys) + type_bytes(kv_type_v, layer.values)


def type_bytes(kv_type: str, values: int) -> float:
    """Bytes that many values take in a KV type. Raises ValueError for an unknown type."""
    if kv_type not in KV_TYPES:
        raise ValueError(f"unknown KV type {kv_type!r}")
    per_block, block_bytes = KV_TYPES[kv_type]
    return values * block_bytes / per_block
