"""The header of a slot file: the tokens its KV state stands for.

Format (llama.cpp `src/llama-context.cpp`, state_seq_save_file; little endian):
`magic 'ggsq' u32 | version u32 | n u32 | n x i32 | state`. In files of older servers the n words are the token list
itself; since `server_tokens::serialize` (tools/server/server-common.cpp) they wrap it:
`-1, 1, n_tokens, tokens..., n_media, media...`, where the tokens of media are PLACEHOLDER.
The file has no checksum and no total length: a truncated or corrupt state cannot be detected here.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from kvchat.kvstore.savepoint import Tokens

MAGIC = 0x67677371  # 'ggsq'
WRAPPED = -1  # no token has this id, so it marks the wrapped form
WRAPPED_VERSION = 1
PLACEHOLDER = -1  # placeholder for a token of any picture
RawTokens = npt.NDArray[np.int32]  # an array: a list of 128K tokens would take longer than a restore may
_HEADER = struct.Struct("<III")
# The token list has had the same place in every state version so far. The engine decides which versions it loads;
# a value outside this range is no version.
_PLAUSIBLE_VERSIONS = range(1, 1000)


class SlotFileError(Exception):
    """The file is not a complete slot file; the message says why."""


def read_tokens(path: Path) -> RawTokens:
    """Return the token ids of the slot file at `path`; none for the file of an empty slot.

    Image tokens are PLACEHOLDER. Reads only the header and never allocates more than the file's length.
    Raises SlotFileError for an empty, truncated or foreign file, OSError if the file cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block forever
        raise SlotFileError("not a file")
    with path.open("rb") as file:
        return _unwrap(_read_words(file))


def _read_words(file: BinaryIO) -> RawTokens:
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        raise SlotFileError("empty")
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise SlotFileError("truncated within the header")
    magic, version, count = _HEADER.unpack(header)
    if magic != MAGIC or version not in _PLAUSIBLE_VERSIONS:
        raise SlotFileError("not a slot file")
    if count * 4 > size - _HEADER.size:
        raise SlotFileError("truncated within the token list")
    if count * 4 == size - _HEADER.size:
        raise SlotFileError("truncated: no state after the token list")
    packed = file.read(count * 4)
    if len(packed) < count * 4:
        raise SlotFileError("truncated while it was read")
    return np.frombuffer(packed, dtype="<i4")


def _unwrap(words: RawTokens) -> RawTokens:
    if len(words) and words[0] == WRAPPED:
        if len(words) < 4 or words[1] != WRAPPED_VERSION:
            raise SlotFileError("its token list has an unknown form")
        end = 3 + int(words[2])
        if end < 3 or end >= len(words):
            raise SlotFileError("its token list is longer than its place")
        has_media = PLACEHOLDER in words[3:end]
        if has_media != (words[end] > 0) or has_media != (end + 1 < len(words)):
            raise SlotFileError("its token list has an unknown form")
        words, least = words[3:end], PLACEHOLDER
    else:
        least = 0
    if words.min(initial=0) < least:
        raise SlotFileError("its token list holds ids that are no tokens")
    return words


def matches_tokens(words: RawTokens, expected: Tokens) -> bool:
    """True if a slot file's words match these tokens.

    An image (ids below PLACEHOLDER) is matched by position only; the engine's words around it belong to it.
    """
    wanted = np.asarray(expected, "<i4")
    pictures = wanted < PLACEHOLDER
    if len(words) != len(wanted) or (PLACEHOLDER in words) != pictures.any():
        return False
    return bool(((words == wanted) | pictures).all())
