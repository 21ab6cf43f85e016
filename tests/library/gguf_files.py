"""Small GGUF files for tests, written by llama.cpp's own `gguf` package."""

import dataclasses
from pathlib import Path

import gguf
import numpy as np

from kvchat.library.gguf.facts import GgufFacts, Weights, read_facts

LLAMA = {
    "block_count": 4,
    "context_length": 4096,
    "embedding_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "vocab_size": 1000,
}


def write_gguf(
    path: Path,
    fields: dict[str, object] | None = None,
    *,
    architecture: str = "llama",
    general: dict[str, object] | None = None,
    tokens: int = 0,
    weights: int = 1024,
) -> Path:
    """Write `{architecture}.*` and top-level fields, `tokens` vocabulary entries and one F32 tensor."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (LLAMA if fields is None else fields).items():
        _add(writer, f"{architecture}.{key}", value)
    for key, value in (general or {}).items():
        _add(writer, key, value)
    if tokens:
        writer.add_token_list([f"token {number}" for number in range(tokens)])
        writer.add_token_types([1] * tokens)
    writer.add_tensor("weights", np.arange(weights, dtype=np.float32))
    write_to_file(writer)
    return path


def write_to_file(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_8b(folder: Path) -> GgufFacts:
    """Return facts of Llama-3.1-8B's Q4_K_M: 131,072 KV bytes per token."""
    shape = {
        "block_count": 32,
        "context_length": 131_072,
        "embedding_length": 4096,
        "feed_forward_length": 14_336,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        "vocab_size": 128_256,
    }
    weights = Weights(32 * 135_000_000, 295_000_000, 305_000_000, False)
    facts = read_facts(write_gguf(folder / "large.gguf", shape))
    return dataclasses.replace(facts, size=4_920_000_000, weights=weights)


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    match value:
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case _:
            raise TypeError(f"{key}: {type(value).__name__}")
