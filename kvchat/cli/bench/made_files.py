"""What `bench --size` measures with: a model with the KV cache of an 8B, and slot files that no engine saved.

Both have random content: nothing in them repeats, and no store can make them smaller than they are.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvchat.cli.bench.home import BenchFailed
from kvchat.kvstore.savepoint import Tokens

LAYERS, HEADS, HEAD = 32, 8, 128
ROW = 2 * HEADS * HEAD  # bytes of one token's K, or V, of one layer in f16
TOKEN_BYTES = 2 * LAYERS * ROW  # 128 KB, as of Llama-3.1-8B
WIDTH = 256
CONTEXT = 131_072
_F16 = 1
_AT_ONCE = 8192  # rows written at a time
_Q4_BLOCK, _Q4_BYTES = 32, 18  # Q4_0: an f16 scale and 16 bytes of nibbles for 32 weights


def write_slot_file(path: Path, tokens: Tokens) -> int:
    """Write what an engine would save for these tokens (see kvstore/layout/parser.py); returns its size.

    The rows of a token are the same in every file whose first tokens are as many: a longer file goes on from a
    shorter one as a chat does.
    """
    words = [-1, 1, len(tokens), *tokens, 0]
    cells = np.zeros((len(tokens), 3), "<i4")
    cells[:, 0], cells[:, 1] = np.arange(len(tokens)), 1
    with path.open("wb") as file:
        file.write(struct.pack(f"<4sII{len(words)}i", b"qsgg", 4, len(words), *words))
        file.write(struct.pack("<II", 1, len(tokens)) + cells.tobytes() + struct.pack("<IIII", 0, LAYERS, HEAD, HEAD))
        for region in range(2 * LAYERS):
            file.write(struct.pack("<iQ", _F16, ROW))
            for first in range(0, len(tokens), _AT_ONCE):
                file.write(_rows(region, first, min(_AT_ONCE, len(tokens) - first)))
        return file.tell()


def _rows(region: int, first: int, count: int) -> memoryview:
    """Rows of consecutive tokens, each different from every other."""
    rows = np.tile(np.random.default_rng(region).integers(0, 2**63, ROW // 8, dtype=np.int64), (count, 1))
    rows += np.arange(first, first + count, dtype=np.int64)[:, None] * 0x9E3779B97F4A7C1
    return rows.data.cast("B")


def write_kv_model(out: Path) -> None:
    """Write a llama of next to no weights (23 MB), random, that reads byte by byte, with an 8B's KV cache.

    Raises BenchFailed without the package that writes GGUF files, OSError.
    """
    try:
        import gguf
    except ImportError as error:
        advice = "Install it where kvchat is installed: pip install gguf"
        raise BenchFailed("A package is missing", "The model to measure with is written by `gguf`.", advice) from error
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


def _matrices(vocabulary: int) -> list[tuple[str, int, int]]:
    """The names, rows and columns of all weight matrices."""
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
