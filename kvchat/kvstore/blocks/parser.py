"""Reads a slot file's layout. Strict: whatever is not understood to the last byte is UnknownLayout.

Format (state version 4, little endian), from llama.cpp: src/llama-context.cpp (state_seq_save_file),
src/llama-kv-cache.cpp and src/llama-memory-recurrent.cpp (state_write, state_write_meta, state_write_data).
After the header (see header.py) come the caches, each saying nothing of what it is:
  attention   n_stream u32 | n_cells u32 | cells | v_trans, n_layer, n_rot_k, n_rot_v u32
              | per layer: type i32, row_size u64, n_cells K rows | the same for V, but for MLA, which has no V
  cell        pos i32, n_seq u32, [x, y, token i32: only with M-RoPE or PLE], seq_id i32
  recurrent   n_cells u32 | pos i32, n_seq u32 | s_trans, n_layer u32
              | per recurrent layer: type i32, row_size u64, R row | the same for S
Order: plain one; sliding window base, window; indexers (DSA, MSA) the indexed cache, then the indexer; hybrids
attention, then recurrent. Which of two caches is the window is seen by its rows: they do not reach back to token 0.
Newer servers append their context checkpoints under the same state version (seen in files of b11549):
  "SCKP" u32, 1 u32, count u32 | per checkpoint: n_tokens i64, pos_min i32, pos_max i32
              | three times (target, draft, speculation): size u64, bytes
Whether cells are long, and whether V follows, is not said either: each way is tried, and only one may lead to the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvchat.kvstore.blocks.caches import CacheReader, Read, SlotBytes
from kvchat.kvstore.blocks.header import MAGIC, PLACEHOLDER, WRAPPED, WRAPPED_VERSION
from kvchat.kvstore.blocks.layout import Cache, Checkpoint, Header, Layout, RecurrentState, RowMap, Span, UnknownLayout

VERSION = 4
CHECKPOINT_VERSION = 1
# More than any model has, and few enough that a hostile file costs little time and memory.
MOST_CACHES, MOST_CHECKPOINTS, MOST_TRIES = 4, 1024, 64


def parse_layout(path: Path) -> Layout:
    """The layout of the slot file at `path`. Raises UnknownLayout; OSError where the file cannot be read.

    Reads header, cell metadata and region heads, not the rows; needs memory for the token list and the metadata alone.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size

        def read(offset: int, count: int) -> bytes:
            file.seek(offset)
            return file.read(count) or b""

        return parse(size, read)


def read_row_map(path: Path) -> RowMap:
    """Where the rows lie in a slot file; nowhere if its layout is unknown. Raises OSError."""
    try:
        return parse_layout(path).row_map
    except UnknownLayout:
        return RowMap()


def parse(size: int, read: Read) -> Layout:
    """The layout of `size` bytes that `read(offset, count)` gives. Raises UnknownLayout."""
    return _Parser(SlotBytes(size, read)).layout()


@dataclass(frozen=True)
class _End:
    """What follows the caches."""

    checkpoint_head: Span | None
    checkpoints: tuple[Checkpoint, ...]


class _Parser:
    """One parse. It tries the few ways a file can be read, and keeps count of them."""

    def __init__(self, file: SlotBytes) -> None:
        self._file = file
        self._tries = 0
        self._failure: UnknownLayout | None = None

    def layout(self) -> Layout:
        self._header = self._read_header()
        self._tokens = np.frombuffer(
            self._file.take(self._header.tokens.offset, self._header.tokens.size, "the token list"), dtype="<i4"
        )
        least = 0 if self._header.media is None else PLACEHOLDER
        if not len(self._tokens) or self._tokens.min() < least:
            raise UnknownLayout("its token list is empty or holds ids that are no tokens")
        self._caches = CacheReader(self._file, self._tokens, self._note)
        found: list[Layout] = []
        for caches, end in self._chains(self._header.span.end, ()):
            found.append(Layout(self._file.size, self._header, caches, end.checkpoint_head, end.checkpoints))
            if len(found) > 1:
                raise UnknownLayout("it can be read in more than one way")
        if not found:
            raise self._failure or UnknownLayout("it holds no state")
        _check_cover(found[0])
        return found[0]

    def _read_header(self) -> Header:
        magic, version, count = self._file.words(0, "III", "the header")
        if magic != MAGIC:
            raise UnknownLayout("not a slot file")
        if version != VERSION:
            raise UnknownLayout(f"state version {version}")
        span = Span(0, 12 + 4 * count)
        if span.end > self._file.size:
            raise UnknownLayout("it ends within the token list")
        if count < 4 or self._file.words(12, "i", "the token list") != (WRAPPED,):
            return Header(span, version, wrapped=False, tokens=Span(12, 4 * count))
        wrapping, n_tokens = self._file.words(16, "II", "the token list")
        if wrapping != WRAPPED_VERSION or n_tokens > count - 4:
            raise UnknownLayout("its token list has an unknown form")
        tokens = Span(24, 4 * n_tokens)
        (n_media,) = self._file.words(tokens.end, "I", "the token list")
        if (n_media > 0) != (n_tokens < count - 4):
            raise UnknownLayout("its token list has an unknown form")
        media = Span(tokens.end, span.end - tokens.end) if n_media else None
        return Header(span, version, wrapped=True, tokens=tokens, media=media)

    def _chains(self, offset: int, before: tuple[Cache, ...]) -> Iterator[tuple[tuple[Cache, ...], _End]]:
        """All ways to read the file from here to its end."""
        self._tries += 1
        if self._tries > MOST_TRIES:
            raise UnknownLayout("it can be read in too many ways")
        try:
            end = self._end(offset)
        except UnknownLayout as failure:
            failure.at = offset
            self._note(failure)
            return
        if end is not None:
            if before:
                yield before, end
            return
        if len(before) == MOST_CACHES or any(isinstance(cache, RecurrentState) for cache in before):
            self._note(UnknownLayout("there is more than the caches known of"))
            return
        for cache in self._caches.ways(offset):
            yield from self._chains(cache.end, (*before, cache))

    def _note(self, failure: UnknownLayout) -> None:
        """Keep the reason of the way that led farthest; of those that led nowhere, the first."""
        if self._failure is None or failure.at > self._failure.at:
            self._failure = failure

    def _end(self, offset: int) -> _End | None:
        """What follows the last cache; None where another cache does."""
        if offset == self._file.size:
            return _End(None, ())
        if not self._file.caches_end(offset):
            return None
        head = Span(offset, 12)
        _, version, count = self._file.words(offset, "III", "the checkpoints' head")
        if version != CHECKPOINT_VERSION or count > MOST_CHECKPOINTS:
            raise UnknownLayout(f"{count} checkpoints of version {version}")
        checkpoints: list[Checkpoint] = []
        end = head.end
        for _ in range(count):
            checkpoints.append(self._checkpoint(end))
            end = checkpoints[-1].span.end
        if end != self._file.size:
            raise UnknownLayout("bytes after the checkpoints")
        return _End(head, tuple(checkpoints))

    def _checkpoint(self, offset: int) -> Checkpoint:
        n_tokens, pos_min, pos_max = self._file.words(offset, "qii", "a checkpoint")
        if not (0 < n_tokens <= len(self._tokens) and 0 <= pos_min <= pos_max < n_tokens):
            raise UnknownLayout("a checkpoint of tokens that are not there")
        end = offset + 16
        for _ in range(3):
            (size,) = self._file.words(end, "Q", "a checkpoint")
            end += 8 + size
            if end > self._file.size:
                raise UnknownLayout("it ends within a checkpoint")
        return Checkpoint(Span(offset, end - offset), n_tokens, pos_min)


def _check_cover(layout: Layout) -> None:
    """Every byte is in exactly one span; anything else is a bug in this module, caught before it can do harm."""
    at = 0
    for span in layout.spans:
        if span.offset != at:
            raise UnknownLayout(f"its layout has a gap or overlap at byte {at}")
        at = span.end
    if at != layout.size:
        raise UnknownLayout(f"its layout ends at byte {at} of {layout.size}")
