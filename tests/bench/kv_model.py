"""A model with the KV cache of an 8B and next to no weights, random: no store can make what it saves smaller."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tests.bench.size import HEAD, HEADS, LAYERS

WIDTH = 256
CONTEXT = 131_072
_Q4_BLOCK, _Q4_BYTES = 32, 18  # Q4_0: an f16 scale and 16 bytes of nibbles for 32 weights


def write_kv_model(out: Path) -> Path:
    """Write a llama (23 MB) that reads byte by byte, and return its path."""
    writer = gguf.GGUFWriter(out, "llama")
    kind = gguf.TokenType
    space = "\u2581"  # as the tokenizer writes it
    tokens = {"<unk>": kind.UNKNOWN, "<s>": kind.CONTROL, "</s>": kind.CONTROL, space: kind.NORMAL}
    tokens |= {f"<0x{byte:02X}>": kind.BYTE for byte in range(256)}
    writer.add_tokenizer_model("llama")
    writer.add_token_list(list(tokens))
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(list(tokens.values()))
    writer.add_add_space_prefix(False)
    writer.add_name("kvchat bench")
    writer.add_vocab_size(len(tokens))
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(500_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    random = np.random.default_rng(0)
    for name, rows, columns in _matrices(len(tokens)):
        weights = _random_q4_0(rows, columns, random)
        writer.add_tensor(name, weights, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    for name in ("output_norm", *(f"blk.{n}.{norm}_norm" for n in range(LAYERS) for norm in ("attn", "ffn"))):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _matrices(vocabulary: int) -> list[tuple[str, int, int]]:
    shapes = [("token_embd.weight", vocabulary, WIDTH), ("output.weight", vocabulary, WIDTH)]
    inner = HEADS * HEAD
    for n in range(LAYERS):
        shapes += [(f"blk.{n}.attn_{one}.weight", inner, WIDTH) for one in "qkv"]
        shapes += [(f"blk.{n}.attn_output.weight", WIDTH, inner)]
        shapes += [(f"blk.{n}.ffn_{one}.weight", WIDTH, WIDTH) for one in ("gate", "up", "down")]
    return shapes


def _random_q4_0(rows: int, columns: int, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """A Q4_0 matrix as its bytes, scaled so that what it is multiplied with stays of the same size."""
    blocks = columns // _Q4_BLOCK
    pattern = random.integers(0, 256, (257, blocks, _Q4_BYTES), dtype=np.uint8)
    scale = np.float16(1.0 / (4.6 * np.sqrt(columns)))  # nibbles 0 to 15, minus 8, have a standard deviation of 4.6
    pattern[:, :, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return np.resize(pattern.reshape(257, -1), (rows, blocks * _Q4_BYTES))
