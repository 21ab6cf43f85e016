"""Blocks of residue: what of a slot file is no row, deflated where that makes it clearly smaller."""

from __future__ import annotations

import zlib

import xxhash
from blake3 import blake3

from kvchat.kvstore.blocks.blocks import BlockFiles
from kvchat.kvstore.layout.recipe import RESIDUE_CHUNK, BlockUse

_RAW, _DEFLATED = b"\0", b"\1"  # the first byte of a block of residue
_SAMPLE = 1 << 16
_WORTH_DEFLATING = 0.8


class DamagedBlock(Exception):
    """A block is missing, cut, or does not hold what its name says."""


def pack_residue(raw: bytes, *, deflate: bool) -> tuple[bytes, bytes]:
    """What a block of residue holds: a mark, then the bytes, deflated if that is allowed and worth it."""
    if deflate and _shrinks(raw):
        return _DEFLATED, zlib.compress(raw, 1)
    return _RAW, raw


def read_residue(use: BlockUse, blocks: BlockFiles) -> tuple[bytes, bytes]:
    """The bytes of a block of residue, proved, and its XXH3. Raises DamagedBlock."""
    try:
        with blocks.path(use.block).open("rb") as file:
            stored = file.read(min(use.size, RESIDUE_CHUNK + 1) + 1)
    except OSError as error:
        raise DamagedBlock from error
    xxh3 = xxhash.xxh3_128(stored).digest()
    if xxh3 != use.xxh3 and blake3(stored).digest() != use.block:
        raise DamagedBlock
    if stored[:1] == _RAW:
        raw = stored[1:]
    elif stored[:1] == _DEFLATED:
        raw = zlib.decompressobj().decompress(stored[1:], use.rows + 1)
    else:
        raise DamagedBlock
    if len(raw) != use.rows:
        raise DamagedBlock
    return raw, xxh3


def _shrinks(raw: bytes) -> bool:
    """Whether deflating is worth the time, judged by a sample from the middle."""
    middle = max(0, len(raw) // 2 - _SAMPLE // 2)
    sample = raw[middle : middle + _SAMPLE]
    return len(zlib.compress(sample, 1)) < _WORTH_DEFLATING * len(sample)
