"""KV cache contents of each layer of a model, from its GGUF header.

As in llama.cpp b11434: llama_hparams (n_embd_k_gqa, n_embd_v_gqa, n_embd_r, n_embd_s), how src/models/*.cpp use the
header, and llama_model::create_memory, which gives each layer its kind of memory.
"""

import math
from dataclasses import dataclass, replace

from kvchat.engine.process.plan import BATCH_SIZE
from kvchat.library.gguf.parser import TENSOR_TYPES, GgufFields

# Period of sliding-window layers by architecture, where the file need not name it: every n-th layer has full attention.
# With 0, none has.
_WINDOW_PERIODS = {"deepseek4": 0, "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "plamo3": 8}
_WINDOW_PERIODS |= dict.fromkeys(("afmoe", "cohere2", "exaone-moe", "exaone4", "llama4"), 4)
_WINDOW_PERIODS |= dict.fromkeys(("mellum", "muse-glimmer", "olmo2"), 4)
_WINDOW_PERIODS_FULL_FIRST = {"cohere2moe": 4, "laguna": 4, "smallthinker": 4}  # the first of each period attends fully
_IGNORED_WINDOW_ARCHITECTURES = {"phi3"}  # files name a window, but llama.cpp ignores it
_WINDOW_DEFAULTS = {"exaone4": 4096, "gemma2": 4096, "llama4": 8192}  # tokens, if the file names none
_FIXED_WINDOW_TOKENS = {"llama4": 8192, "smallthinker": 4096}  # tokens, whatever the file names

_NO_CACHE = {"dream", "llada", "llada-moe", "rnd1"}  # diffusion models reprocess everything

_RECURRENT_ARCHITECTURES = {"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"}  # all layers, no attention
_HYBRID_PERIODS = {"minimax-01": 8, "qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4}
_HYBRID_BY_HEADS = {"lfm2", "lfm2moe", "plamo2", "jamba"}  # a layer without KV heads is recurrent
_HYBRID_BY_HEADS |= {"bailingmoe3", "glm5-next", "granitehybrid", "kimi-k3", "kimi-linear"}
# Likewise, but a layer with a feed-forward part has neither attention nor state.
_HYBRID_BY_HEADS_AND_FF = {"nemotron_h", "nemotron_h_moe"}
_HYBRID_LAYER_ARCHITECTURES = {"falcon-h1"}  # each layer has attention and recurrent state

# Sparse attention selects tokens by extra keys. Their number per token, by architecture:
_INDEX_KEYS = {"glm5-next": 3, "qwen4exp": 2}
_INDEX_KEYS |= dict.fromkeys(("deepseek32", "glm-dsa", "hy_v4", "dots3note", "minimax-m3"), 1)
_INDEX_IN_LISTED = {"glm-dsa", "hy_v4", "dots3note", "glm5-next"}  # only in layers with a nonzero `indexer.types`
_FIRST_SHARED_LAYERS = {"gemma3n": 20}  # layers from this one on use an earlier layer's rows (src/models/gemma3n.cpp)


@dataclass(frozen=True)
class LayerKv:
    keys: int = 0  # in each token's K row
    values: int = 0  # in each token's V row
    is_sliding: bool = False  # sliding window: rows of the last tokens only
    state: int = 0  # f32, independent of the context length


@dataclass(frozen=True)
class KvLayout:
    layers: tuple[LayerKv, ...]
    window: int  # sliding window in tokens; 0: no layer has one

    @property
    def is_recurrent(self) -> bool:
        return any(layer.state for layer in self.layers)


def kv_layout(fields: GgufFields) -> KvLayout:
    blocks = fields.number("block_count")
    heads_key = "attention.head_count_kv" if fields.has("attention.head_count_kv") else "attention.head_count"
    kv_heads = fields.per_layer(heads_key, blocks)
    attends, recurs = _layer_kinds(fields, kv_heads)
    slides = _sliding_layers(fields, blocks, recurs)
    state, indexed = _state_values(fields), _indexed_layers(fields, blocks)
    layers = []
    for layer in range(blocks):
        keys, values = _row_values(fields, kv_heads[layer], slides[layer], indexed[layer]) if attends[layer] else (0, 0)
        layers.append(LayerKv(keys, values, slides[layer], state if recurs[layer] else 0))
    return KvLayout(tuple(layers), _window_tokens(fields) if any(slides) else 0)


def _layer_kinds(fields: GgufFields, kv_heads: tuple[int, ...]) -> tuple[list[bool], list[bool]]:
    """Return two lists with a flag per layer: has attention, and has recurrent state.

    The layers of an unknown hybrid model get both flags, so that the size is an upper bound.
    """
    architecture, blocks = fields.prefix, len(kv_heads)
    trunk = blocks - fields.number("nextn_predict_layers")  # later layers predict further tokens, unused here
    if not 0 < trunk <= blocks:
        trunk = blocks
    in_trunk = [layer < trunk for layer in range(blocks)]
    if architecture in _NO_CACHE:
        return [False] * blocks, [False] * blocks
    if architecture in _RECURRENT_ARCHITECTURES:
        return [False] * blocks, in_trunk
    if architecture in _HYBRID_LAYER_ARCHITECTURES:
        return [True] * blocks, in_trunk
    if architecture in _HYBRID_PERIODS:
        recurs = _recurrent_layers(fields, blocks)
        attends = [in_trunk[layer] and not recurs[layer] for layer in range(blocks)]
        return attends, [recurs[layer] and in_trunk[layer] for layer in range(blocks)]
    if architecture in _HYBRID_BY_HEADS_AND_FF:
        plain = [width == 0 for width in fields.per_layer("feed_forward_length", blocks)]
        recurs = [plain[layer] and kv_heads[layer] == 0 and in_trunk[layer] for layer in range(blocks)]
        return [plain[layer] and not recurs[layer] for layer in range(blocks)], recurs
    if architecture in _HYBRID_BY_HEADS:
        recurs = [kv_heads[layer] == 0 and in_trunk[layer] for layer in range(blocks)]
        return [not recurrent for recurrent in recurs], recurs
    shared_from = blocks - fields.number("attention.shared_kv_layers")
    shared_from = min(shared_from, _FIRST_SHARED_LAYERS.get(architecture, blocks))
    attends = [in_trunk[layer] and layer < shared_from for layer in range(blocks)]
    if not _state_values(fields):
        return attends, [False] * blocks
    names_period = fields.has("attention.recurrent_layers") or fields.has("full_attention_interval")
    recurs = _recurrent_layers(fields, blocks) if names_period else [heads == 0 for heads in kv_heads]
    if any(recurs):
        return [attention and not recurs[layer] for layer, attention in enumerate(attends)], recurs
    return attends, [True] * blocks  # unknown: an upper bound


def _recurrent_layers(fields: GgufFields, blocks: int) -> list[bool]:
    """Return a flag per layer, True if recurrent, from the file's list or its interval between attention layers."""
    if fields.has("attention.recurrent_layers"):
        return [flag != 0 for flag in fields.per_layer("attention.recurrent_layers", blocks)]
    period = fields.number("full_attention_interval") or _HYBRID_PERIODS.get(fields.prefix, 1)
    return [(layer + 1) % period != 0 for layer in range(blocks)]


def _row_values(fields: GgufFields, heads: int, is_sliding: bool, has_indexer: bool) -> tuple[int, int]:
    """Return the number of values that one token adds to a layer's K cache and to its V cache."""
    key_length, value_length = head_lengths(fields)
    if is_sliding:
        key_length = fields.number("attention.key_length_swa", key_length)
        value_length = fields.number("attention.value_length_swa", value_length)
    latent = fields.number("attention.key_length_mla") and fields.number("attention.value_length_mla")
    keys, values = heads * key_length, 0 if latent else heads * value_length  # MLA: V is a view of the same row
    if has_indexer:
        keys += _INDEX_KEYS[fields.prefix] * fields.number("attention.indexer.key_length")
        values += value_length if fields.prefix == "minimax-m3" else 0
    return keys, values


def head_lengths(fields: GgufFields) -> tuple[int, int]:
    heads = next((count for count in fields.per_layer("attention.head_count", 1) if count), 0)
    heads = heads or fields.number("attention.head_count")
    length = fields.number("embedding_length") // heads if heads else 0
    return fields.number("attention.key_length", length), fields.number("attention.value_length", length)


def _indexed_layers(fields: GgufFields, blocks: int) -> list[bool]:
    """Return a flag per layer, True if the layer keeps extra keys for the indexer of sparse attention."""
    if fields.prefix in _INDEX_IN_LISTED:
        return [listed != 0 for listed in fields.per_layer("attention.indexer.types", blocks, default=1)]
    first = fields.number("leading_dense_block_count") if fields.prefix == "minimax-m3" else 0
    return [fields.prefix in _INDEX_KEYS and layer >= first for layer in range(blocks)]


def _state_values(fields: GgufFields) -> int:
    """Return the number of state values per recurrent layer (n_embd_r + n_embd_s in llama_hparams), or 0."""
    width, conv = fields.number("embedding_length"), max(fields.number("ssm.conv_kernel") - 1, 0)
    if wkv := fields.number("wkv.head_size"):  # RWKV
        return width * (fields.number("token_shift_count", 2) + wkv)
    if cache := fields.number("shortconv.l_cache"):  # LFM2
        return width * (cache - 1)
    heads = fields.number("attention.head_count")
    if head_length := fields.number("kda.head_dim"):  # Kimi
        return 3 * (conv or 3) * heads * head_length + head_length * head_length * heads
    if fields.prefix == "minimax-01":
        return head_lengths(fields)[0] ** 2 * heads
    inner, states = fields.number("ssm.inner_size"), fields.number("ssm.state_size")
    if not inner:
        return 0
    return conv * (inner + 2 * fields.number("ssm.group_count") * states) + states * inner  # Mamba, Gated DeltaNet


def _sliding_layers(fields: GgufFields, blocks: int, is_recurrent: list[bool]) -> list[bool]:
    """Return a flag per layer, True if it has a sliding window.

    If the file does not say, all flags are False, so that the size is an upper bound.
    """
    architecture, key = fields.prefix, "attention.sliding_window_pattern"
    none = [False] * blocks
    if not _window_tokens(fields):
        return none
    if architecture in ("lfm2", "lfm2moe"):
        return [not recurrent for recurrent in is_recurrent]
    listed = fields.numbers(key)
    if listed is not None:
        return [bool(slides) for slides in (listed + (0,) * blocks)[:blocks]]
    full_first = _WINDOW_PERIODS_FULL_FIRST.get(architecture)
    period = fields.number(key, -1)
    if period < 0:
        period = _WINDOW_PERIODS.get(architecture, -1) if full_first is None else full_first
    if period < 0:
        return none
    if period == 0:  # as in llama_hparams::set_swa_pattern
        return [True] * blocks
    full = 0 if full_first is not None else period - 1
    return [layer % period != full for layer in range(blocks)]


def _window_tokens(fields: GgufFields) -> int:
    """Return the size of the sliding window in tokens, or 0 if llama.cpp uses none."""
    architecture = fields.prefix
    if architecture in _IGNORED_WINDOW_ARCHITECTURES | _RECURRENT_ARCHITECTURES:
        return 0
    if architecture == "exaone4" and fields.number("block_count") != 64:  # only the 32B (src/models/exaone4.cpp)
        return 0
    tokens = fields.number("attention.sliding_window", _WINDOW_DEFAULTS.get(architecture, 0))
    return _FIXED_WINDOW_TOKENS.get(architecture, tokens) if tokens else 0


# KV types for llama-server's --cache-type-k/-v: values per block, bytes per block.
KV_TYPES = {
    name.lower(): (per_block, block_bytes)
    for name, per_block, block_bytes in TENSOR_TYPES.values()
    if name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "IQ4_NL", "Q5_0", "Q5_1")
}
CELL_PADDING = 256  # tokens; llama.cpp rounds contexts and sliding windows' caches up to this
STATE_BYTES = 4  # recurrent state is f32 for every KV type


def kv_bytes(layout: KvLayout, n_ctx: int, kv_type: str = "f16", *, swa_full: bool = False, slots: int = 1) -> int:
    """Return the total size of a KV cache for `n_ctx` tokens and `slots`. Raises ValueError for an unknown KV type."""
    if swa_full:
        layout = replace(layout, layers=tuple(replace(layer, is_sliding=False) for layer in layout.layers))
    growing = math.ceil(kv_bytes_per_token(layout, kv_type, kv_type) * pad_to_cells(n_ctx))
    return growing + kv_fixed_bytes(layout, n_ctx, kv_type, slots)


def kv_bytes_per_token(layout: KvLayout, kv_type_k: str = "f16", kv_type_v: str = "f16") -> float:
    """Return the bytes that each token of context adds to the KV cache. Raises ValueError for an unknown KV type."""
    return sum(_row_bytes(layer, kv_type_k, kv_type_v) for layer in layout.layers if not layer.is_sliding)


def kv_fixed_bytes(layout: KvLayout, n_ctx: int, kv_type: str, slots: int = 1) -> int:
    """Return the bytes of all slots' recurrent states and sliding windows (llama_kv_cache_iswa, without --swa-full)."""
    window = pad_to_cells(min(n_ctx, slots * layout.window + BATCH_SIZE))
    rows = sum(_row_bytes(layer, kv_type, kv_type) for layer in layout.layers if layer.is_sliding)
    return math.ceil(rows * window) + STATE_BYTES * slots * sum(layer.state for layer in layout.layers)


def pad_to_cells(tokens: int) -> int:
    return -(-tokens // CELL_PADDING) * CELL_PADDING


def _row_bytes(layer: LayerKv, kv_type_k: str, kv_type_v: str) -> float:
    total = 0.0
    for kv_type, values in ((kv_type_k, layer.keys), (kv_type_v, layer.values)):
        if kv_type not in KV_TYPES:
            raise ValueError(f"unknown KV type {kv_type!r}")
        per_block, block_bytes = KV_TYPES[kv_type]
        total += values * block_bytes / per_block
    return total
