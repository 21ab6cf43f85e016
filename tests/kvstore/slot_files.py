"""Synthetic slot files for tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from kvchat.kvstore.blocks.layout import Layout
from kvchat.kvstore.blocks.parser import parse
from kvchat.kvstore.savepoint import Fingerprint, Tokens

MAGIC = b"qsgg"  # 'ggsq' as a little-endian u32
FINGERPRINT = Fingerprint("smollm2:abc", "f16", "f16", "auto", 1, "")
BYTES_PER_TOKEN = 64


def slot_file_bytes(
    tokens: Sequence[int], *, wrapped: bool = True, version: int = 4, body: bytes | None = None
) -> bytes:
    """What an engine would write: the true header, and a body that differs with the tokens."""
    words = [-1, 1, len(tokens), *tokens, 0] if wrapped else list(tokens)
    if body is None:
        body = struct.pack("<II", 1, len(tokens)) + b"".join(
            token.to_bytes(4, "little") * (BYTES_PER_TOKEN // 4) for token in tokens
        )
    return MAGIC + struct.pack(f"<II{len(words)}i", version, len(words), *words) + body


def write_slot_file(path: Path, tokens: Sequence[int], *, wrapped: bool = True, body: bytes | None = None) -> int:
    """Write a synthetic slot file; returns its size, as an engine's n_written."""
    return path.write_bytes(slot_file_bytes(tokens, wrapped=wrapped, body=body))


def parse_bytes(data: bytes) -> Layout:
    """The layout of a slot file held in memory. Raises SlotFileError."""
    return parse(len(data), lambda offset, count: data[offset : offset + count])


def line(length: int, start: int = 1) -> Tokens:
    return tuple(range(start, start + length))
