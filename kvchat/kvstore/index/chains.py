"""Chains: a token list as segments of 256, each named by the hash of all tokens up to its end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from kvchat.kvstore.savepoint import Tokens

SEGMENT = 256  # tokens
TOKEN_BYTES = 4
_HASH_BYTES = 16  # names are compared with the real token ids before they are believed


@dataclass(frozen=True)
class Segment:
    """Up to 256 consecutive tokens. Only the last segment of a chain is shorter."""

    name: bytes  # BLAKE3 of the name before and these tokens: equal names mean equal tokens from the very first
    end: int  # token position after the segment
    packed: bytes  # the token ids, int32 little endian


def chain(packed: bytes) -> tuple[Segment, ...]:
    """The segments of a packed token list, first to last; none for an empty one."""
    segments: list[Segment] = []
    name = b""
    for start in range(0, len(packed), SEGMENT * TOKEN_BYTES):
        part = packed[start : start + SEGMENT * TOKEN_BYTES]
        name = blake3(name + part).digest(length=_HASH_BYTES)
        segments.append(Segment(name, (start + len(part)) // TOKEN_BYTES, part))
    return tuple(segments)


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as int32 little endian."""
    return np.asarray(tokens, dtype="<i4").tobytes()


def unpack_tokens(packed: bytes) -> Tokens:
    """The token ids out of `pack_tokens`."""
    tokens: list[int] = np.frombuffer(packed, dtype="<i4").tolist()
    return tuple(tokens)


def shared_tokens(one: bytes, other: bytes) -> int:
    """How many leading tokens two packed lists share."""
    width = min(len(one), len(other))
    if one[:width] == other[:width]:
        return width // TOKEN_BYTES
    mine, theirs = (np.frombuffer(each, "<i4", width // TOKEN_BYTES) for each in (one, other))
    return int((mine != theirs).argmax())
