"""What kvchat wants to know about a model file, read from its GGUF header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.library.gguf_header import TENSOR_TYPES, CutShort, GgufHeader, HeaderFault, Value, read_header
from kvchat.library.split_files import part_name

# llama_ftype in llama.cpp's include/llama.h, as people name the files.
FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
    39: "NVFP4",
    40: "Q1_0",
}
MOST_BLOCKS = 4096  # far more layers than any model has; keeps a damaged header from asking for endless lists


class NotAModel(KvchatError):
    """The path does not lead to a GGUF model that can chat; says what it is instead."""


@dataclass(frozen=True)
class SlidingWindow:
    """Sliding-window attention: some layers look back only so far."""

    tokens: int
    layers: tuple[bool, ...] | int | None  # which layers slide, or every how many-th does not; None: the file is silent
    key_length: int  # values per head; may differ from the other layers'
    value_length: int


@dataclass(frozen=True)
class RecurrentState:
    """The sizes of recurrent layers (Mamba, Gated DeltaNet, RWKV, short convolutions); 0 where the file has no such."""

    conv_kernel: int
    inner_size: int
    state_size: int
    group_count: int
    wkv_head_size: int
    token_shift_count: int
    shortconv_cache: int
    full_attention_interval: int  # every n-th layer is attention, the others recurrent
    layers: tuple[bool, ...] | None  # which layers are recurrent; None: the file is silent


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one compressed row of rank + rotary values stands for all heads."""

    kv_rank: int
    rope_length: int


@dataclass(frozen=True)
class GgufFacts:
    """The facts of one model. Lengths in values, contexts in tokens, sizes in bytes."""

    path: Path
    architecture: str
    name: str
    quantisation: str  # e.g. "Q4_K_M"
    size: int  # all parts together
    trained_context: int
    original_context: int  # before RoPE scaling stretched it; a longer one is counted otherwise. 0: the file is silent
    block_count: int
    embedding_length: int
    heads: int
    kv_heads: tuple[int, ...]  # one per layer; 0 for a layer without attention
    key_length: int
    value_length: int
    shared_kv_layers: int  # this many last layers use an earlier layer's KV cache
    sliding_window: SlidingWindow | None
    recurrent: RecurrentState | None
    latent_attention: LatentAttention | None
    vocabulary_size: int
    has_chat_template: bool
    parts: tuple[Path, ...]  # more than one for a split model
    header_size: int

    @property
    def split_count(self) -> int:
        """How many files the model consists of."""
        return len(self.parts)


def read_facts(path: Path) -> GgufFacts:
    """The facts of the model at `path`, checked to be whole. Takes some hundredths of a second.

    For a split model give the first part; the others must lie beside it. Raises NotAModel.
    """
    header = _read_whole(path)
    _check_kind(header.values)
    parts = _parts(path, header.values)
    for part in parts[1:]:
        _read_whole(part)
    return _facts(path, header, parts)


def _read_whole(path: Path) -> GgufHeader:
    """The header of a file that is a GGUF and as long as it should be. Raises NotAModel."""
    try:
        if path.is_dir():
            raise NotAModel("This is a folder, not a model", str(path), "Choose a file whose name ends in .gguf.")
        header = read_header(path)
        size = path.stat().st_size
    except FileNotFoundError:
        raise NotAModel("The model file is missing", str(path), "It may have been moved: choose it again.") from None
    except CutShort:
        raise _half_downloaded(path) from None
    except HeaderFault as fault:
        raise _not_gguf(path, str(fault)) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if header.data_end > size:
        raise _half_downloaded(path)
    return header


def unreadable(path: Path, error: OSError) -> NotAModel:
    """The error for a model file that is there and cannot be read."""
    return NotAModel(
        "The model file cannot be read", f"{path}: {error.strerror}", "Check its permissions and its disk."
    )


def _half_downloaded(path: Path) -> NotAModel:
    return NotAModel(
        "The model file is not whole",
        f"{path} ends before its last weights: it looks half-downloaded.",
        "Download it again, or wait until the download is done.",
    )


def _not_gguf(path: Path, fault: str) -> NotAModel:
    if fault == "big-endian":
        return NotAModel("This model is for big-endian machines", str(path), "Look for its ordinary GGUF file.")
    if fault.startswith("GGUF version"):
        return NotAModel(
            "This GGUF version is unknown",
            f"{path} says {fault}; kvchat reads versions 2 and 3.",
            "Look for a newer download of this model.",
        )
    return NotAModel("This is not a GGUF model", f"{path}: {fault}.", "Choose a file in llama.cpp's GGUF format.")


def _check_kind(values: Mapping[str, Value]) -> None:
    """Raise NotAModel for GGUF files that are no language model by themselves."""
    kind, architecture = _text(values, "general.type"), _text(values, "general.architecture")
    if kind == "mmproj" or architecture == "clip":
        raise NotAModel(
            "This file only adds sight or hearing to a model",
            "It is a multimodal projector (mmproj).",
            "Choose the model file that came with it.",
        )
    if kind == "adapter":
        raise NotAModel("This is a LoRA adapter, not a model", "", "Choose the model that it was made for.")
    if kind == "imatrix":
        raise NotAModel("This is an importance matrix, not a model", "", "Choose the model that it was made for.")
    if not architecture or not _whole(values, f"{architecture}.context_length"):
        raise NotAModel(
            "This is not a language model",
            "The GGUF file names no architecture and trained context.",
            "Choose a text model.",
        )
    if not 0 < _whole(values, f"{architecture}.block_count") <= MOST_BLOCKS:
        raise NotAModel("This is not a GGUF model", "Its number of layers makes no sense.", "Download it again.")
    if any(count < 0 for count in _per_layer(values.get(f"{architecture}.attention.head_count_kv"), MOST_BLOCKS)):
        raise NotAModel("This is not a GGUF model", "Its number of heads makes no sense.", "Download it again.")
    if "bert" in architecture or architecture in ("t5encoder", "gemma-embedding"):
        raise NotAModel(
            "This is an embedding model", "It makes vectors of text and cannot chat.", "Choose a chat model."
        )


def _parts(path: Path, values: Mapping[str, Value]) -> tuple[Path, ...]:
    """All files of the model, `path` being the first. Raises NotAModel when `path` is a later part."""
    count = _whole(values, "split.count")
    if count < 2:
        return (path,)
    part = part_name(path.name)
    if part is None or part.count != count:
        raise NotAModel(
            "This file is one part of a model",
            f"{path.name} is one of {count} parts, and its name does not say which.",
            "Give the parts their original names back.",
        )
    if part.number != 1:
        raise NotAModel(
            "This is a later part of a split model", path.name, f"Choose the first part, {part.all_names[0]}."
        )
    return (path, *(path.with_name(name) for name in part.all_names[1:]))


def _facts(path: Path, header: GgufHeader, parts: tuple[Path, ...]) -> GgufFacts:
    values, architecture = header.values, _text(header.values, "general.architecture")

    def number(key: str, default: int = 0) -> int:
        return _whole(values, f"{architecture}.{key}", default)

    blocks, width = number("block_count"), number("embedding_length")
    heads = max(_per_layer(values.get(f"{architecture}.attention.head_count"), blocks), default=0)
    head_length = width // heads if heads else 0
    key_length = number("attention.key_length", head_length)
    value_length = number("attention.value_length", head_length)
    return GgufFacts(
        path=path,
        architecture=architecture,
        name=_text(values, "general.name") or path.stem,
        quantisation=_quantisation(header),
        size=sum(part.stat().st_size for part in parts),
        trained_context=number("context_length"),
        original_context=number("rope.scaling.original_context_length"),
        block_count=blocks,
        embedding_length=width,
        heads=heads,
        kv_heads=_per_layer(values.get(f"{architecture}.attention.head_count_kv", heads), blocks),
        key_length=key_length,
        value_length=value_length,
        shared_kv_layers=number("attention.shared_kv_layers"),
        sliding_window=_sliding_window(values, architecture, key_length, value_length),
        recurrent=_recurrent(values, architecture, blocks),
        latent_attention=_latent_attention(values, architecture),
        vocabulary_size=number("vocab_size") or header.array_lengths.get("tokenizer.ggml.tokens", 0),
        has_chat_template="tokenizer.chat_template" in values,
        parts=parts,
        header_size=header.data_offset,
    )


def _sliding_window(
    values: Mapping[str, Value], architecture: str, key_length: int, value_length: int
) -> SlidingWindow | None:
    prefix = f"{architecture}.attention."
    tokens = _whole(values, f"{prefix}sliding_window")
    if not tokens:
        return None
    pattern = values.get(f"{prefix}sliding_window_pattern")
    layers: tuple[bool, ...] | int | None = None
    if isinstance(pattern, tuple):
        layers = tuple(bool(slides) for slides in pattern)
    elif isinstance(pattern, int):
        layers = pattern
    return SlidingWindow(
        tokens,
        layers,
        _whole(values, f"{prefix}key_length_swa", key_length),
        _whole(values, f"{prefix}value_length_swa", value_length),
    )


def _recurrent(values: Mapping[str, Value], architecture: str, blocks: int) -> RecurrentState | None:
    layers = values.get(f"{architecture}.attention.recurrent_layers")

    def number(key: str) -> int:
        return _whole(values, f"{architecture}.{key}")

    state = RecurrentState(
        conv_kernel=number("ssm.conv_kernel"),
        inner_size=number("ssm.inner_size"),
        state_size=number("ssm.state_size"),
        group_count=number("ssm.group_count"),
        wkv_head_size=number("wkv.head_size"),
        token_shift_count=number("token_shift_count"),
        shortconv_cache=number("shortconv.l_cache"),
        full_attention_interval=number("full_attention_interval"),
        layers=None if layers is None else tuple(flag != 0 for flag in _per_layer(layers, blocks)),
    )
    return state if state.inner_size or state.wkv_head_size or state.shortconv_cache else None


def _latent_attention(values: Mapping[str, Value], architecture: str) -> LatentAttention | None:
    """Set where llama.cpp keeps the compressed rows: files converted with the MLA key lengths."""
    rank = _whole(values, f"{architecture}.attention.kv_lora_rank")
    if not rank or not _whole(values, f"{architecture}.attention.key_length_mla"):
        return None
    return LatentAttention(rank, _whole(values, f"{architecture}.rope.dimension_count"))


def _quantisation(header: GgufHeader) -> str:
    """The file's own word for its type, or else the type that most of its bytes have."""
    named = FILE_TYPES.get(_whole(header.values, "general.file_type", -1))
    if named:
        return named
    totals: dict[int, int] = {}
    for tensor in header.tensors:
        totals[tensor.type] = totals.get(tensor.type, 0) + tensor.bytes
    commonest = max(totals, key=lambda kind: totals[kind], default=-1)
    return TENSOR_TYPES[commonest][0] if commonest in TENSOR_TYPES else "unknown"


def _per_layer(value: Value | None, blocks: int) -> tuple[int, ...]:
    """A header field that is either one number for all layers or a list with one per layer.

    A list that is too short is filled up with its largest number.
    """
    if isinstance(value, tuple):
        numbers = tuple(int(entry) for entry in value[:blocks])
        return numbers + (max(numbers, default=0),) * (blocks - len(numbers))
    return (int(value),) * blocks if isinstance(value, int) else (0,) * blocks


def _whole(values: Mapping[str, Value], key: str, default: int = 0) -> int:
    """A whole number; of a per-layer list its largest, so that estimates err on the high side."""
    value = values.get(key)
    if isinstance(value, tuple):
        return max((entry for entry in value if isinstance(entry, int)), default=default)
    return value if isinstance(value, int) else default


def _text(values: Mapping[str, Value], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""
