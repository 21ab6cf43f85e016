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


def chain(tokens: Sequence[int]) -> tuple[Segment, ...]:
    """The segments of a token list, first to last; none for an empty one."""
    packed = pack_tokens(tokens)
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


def shared_tokens(lists: Sequence[bytes], prompt: bytes) -> list[int]:
    """How many leading tokens each of these packed lists shares with the packed prompt, of up to SEGMENT tokens."""
    wanted = np.frombuffer(prompt[: SEGMENT * TOKEN_BYTES], "<i4")
    if not lists or not wanted.size:
        return [0] * len(lists)
    width = wanted.size * TOKEN_BYTES
    grid = np.frombuffer(b"".join(one[:width].ljust(width, b"\0") for one in lists), "<i4").reshape(len(lists), -1)
    differ = grid != wanted
    shared = np.where(differ.any(axis=1), differ.argmax(axis=1), wanted.size)
    counts: list[int] = np.minimum(shared, [len(one) // TOKEN_BYTES for one in lists]).tolist()
    return counts
