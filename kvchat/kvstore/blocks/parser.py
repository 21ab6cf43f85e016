"""Parser for the layout of slot files. Strict: any byte it does not understand raises UnknownLayout.

Format (state version 4, little endian), from llama.cpp: src/llama-context.cpp (state_seq_save_file),
src/llama-kv-cache.cpp and src/llama-memory-recurrent.cpp (state_write, state_write_meta, state_write_data).
After the header (see header.py) come the caches, none of which names its kind:
  attention   n_stream u32 | n_cells u32 | cells | v_trans, n_layer, n_rot_k, n_rot_v u32
              | per layer: type i32, row_size u64, n_cells K rows | the same for V, but for MLA, which has no V
  cell        pos i32, n_seq u32, [x, y, token i32: only with M-RoPE or PLE], seq_id i32
  recurrent   n_cells u32 | pos i32, n_seq u32 | s_trans, n_layer u32
              | per recurrent layer: type i32, row_size u64, R row | the same for S
Order: plain one; sliding window base, window; indexers (DSA, MSA) the indexed cache, then the indexer; hybrids
attention, then recurrent. Which of two caches is the window shows in its rows: they do not reach back to token 0.
Newer servers append their context checkpoints under the same state version (seen in files of b11549):
  "SCKP" u32, 1 u32, count u32 | per checkpoint: n_tokens i64, pos_min i32, pos_max i32
              | three times (target, draft, speculation): size u64, bytes
The file does not say whether cells are long or V follows: each way is tried; only one may reach the end.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from kvchat.kvstore.blocks.header import MAGIC, PLACEHOLDER, WRAPPED, WRAPPED_VERSION
from kvchat.kvstore.blocks.layout import (
    AttentionCache,
    Cache,
    Checkpoint,
    Header,
    Layout,
    RecurrentState,
    Region,
    RowMap,
    Run,
    Span,
    UnknownLayout,
)

VERSION = 4
CHECKPOINT_VERSION = 1
CHECKPOINT_MAGIC = 0x504B4353  # "SCKP"
SHORT_CELL, LONG_CELL = 12, 24
# Bytes per block by ggml type id, for KV caches and recurrent states.
BLOCK_BYTES = {0: 4, 1: 2, 2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 20: 18, 30: 2}
# More than any model has, few enough to limit the cost of a hostile file.
MOST_LAYERS, MOST_RUNS, MOST_ROW_BYTES = 1024, 4096, 1 << 28
MOST_CACHES, MOST_CHECKPOINTS, MOST_TRIES = 4, 1024, 64

Read = Callable[[int, int], bytes]  # (offset, size)


def parse_layout(path: Path) -> Layout:
    """Return the layout of the slot file at `path`. Raises UnknownLayout; OSError if it cannot be read.

    Reads header, cell metadata and region heads, not rows; memory is needed only for token list and metadata.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size

        def read(offset: int, count: int) -> bytes:
            file.seek(offset)
            return file.read(count) or b""

        return parse(size, read)


def read_row_map(path: Path) -> RowMap:
    """Return the row map of a slot file, empty if its layout is unknown. Raises OSError."""
    try:
        return parse_layout(path).row_map
    except UnknownLayout:
        return RowMap()


def parse(size: int, read: Read) -> Layout:
    """Return the layout of `size` bytes. `read` is only called within them. Raises UnknownLayout."""
    return _Parser(size, read).layout()


class _Parser:
    """One parse: tries a bounded number of ways to read the file."""

    def __init__(self, size: int, read: Read) -> None:
        self._size, self._read = size, read
        self._tries = 0
        self._failure: UnknownLayout | None = None

    def layout(self) -> Layout:
        header = self._read_header()
        packed = self._take(header.tokens.offset, header.tokens.size, "the token list")
        self._tokens = np.frombuffer(packed, dtype="<i4")
        least = 0 if header.media is None else PLACEHOLDER
        if not len(self._tokens) or self._tokens.min() < least:
            raise UnknownLayout("its token list is empty or holds ids that are no tokens")
        found: list[Layout] = []
        for caches, checkpoint_head, checkpoints in self._possible_endings(header.span.end, ()):
            found.append(Layout(self._size, header, caches, checkpoint_head, checkpoints))
            if len(found) > 1:
                raise UnknownLayout("it can be read in more than one way")
        if not found:
            raise self._failure or UnknownLayout("it holds no state")
        _check_cover(found[0])
        return found[0]

    def _take(self, offset: int, size: int, what: str) -> bytes:
        if offset < 0 or size < 0 or offset + size > self._size:
            raise UnknownLayout(f"it ends within {what}")
        data = self._read(offset, size)
        if len(data) != size:
            raise UnknownLayout(f"it was cut while {what} was read")
        return data

    def _words(self, offset: int, form: str, what: str) -> tuple[int, ...]:
        packed = struct.Struct("<" + form)
        return packed.unpack(self._take(offset, packed.size, what))

    def _caches_end(self, offset: int) -> bool:
        if offset == self._size:
            return True
        return self._words(offset, "I", "what follows the caches") == (CHECKPOINT_MAGIC,)

    def _read_header(self) -> Header:
        magic, version, count = self._words(0, "III", "the header")
        if magic != MAGIC:
            raise UnknownLayout("not a slot file")
        if version != VERSION:
            raise UnknownLayout(f"state version {version}")
        span = Span(0, 12 + 4 * count)
        if span.end > self._size:
            raise UnknownLayout("it ends within the token list")
        if count < 4 or self._words(12, "i", "the token list") != (WRAPPED,):
            return Header(span, wrapped=False, tokens=Span(12, 4 * count))
        wrapping, n_tokens = self._words(16, "II", "the token list")
        if wrapping != WRAPPED_VERSION or n_tokens > count - 4:
            raise UnknownLayout("its token list has an unknown form")
        tokens = Span(24, 4 * n_tokens)
        (n_media,) = self._words(tokens.end, "I", "the token list")
        if (n_media > 0) != (n_tokens < count - 4):
            raise UnknownLayout("its token list has an unknown form")
        media = Span(tokens.end, span.end - tokens.end) if n_media else None
        return Header(span, wrapped=True, tokens=tokens, media=media)

    def _possible_endings(
        self, offset: int, before: tuple[Cache, ...]
    ) -> Iterator[tuple[tuple[Cache, ...], Span | None, tuple[Checkpoint, ...]]]:
        """Yield all readings from here to the end: caches, checkpoints' head, checkpoints."""
        self._tries += 1
        if self._tries > MOST_TRIES:
            raise UnknownLayout("it can be read in too many ways")
        try:
            if self._caches_end(offset):
                if before:
                    yield before, *self._checkpoints(offset)
                return
        except UnknownLayout as failure:
            failure.at = offset
            self._note(failure)
            return
        if len(before) == MOST_CACHES or any(isinstance(cache, RecurrentState) for cache in before):
            self._note(UnknownLayout("there is more than the caches known of"))
            return
        for cache in self._possible_caches(offset):
            yield from self._possible_endings(cache.end, (*before, cache))

    def _possible_caches(self, offset: int) -> Iterator[Cache]:
        ways: list[Callable[[], Cache]] = []
        for cell_size in (SHORT_CELL, LONG_CELL):
            ways += [partial(self._attention, offset, cell_size, with_v) for with_v in (True, False)]
        ways.append(partial(self._recurrent, offset))
        seen: list[Cache] = []
        for way in ways:
            try:
                cache = way()
            except UnknownLayout as failure:
                self._note(failure)
                continue
            if cache not in seen:  # without layers both ways are equal
                seen.append(cache)
                yield cache

    def _note(self, failure: UnknownLayout) -> None:
        """Keep the failure that got farthest; on a tie, the first."""
        if self._failure is None or failure.at > self._failure.at:
            self._failure = failure

    def _attention(self, offset: int, cell_size: int, with_v: bool) -> AttentionCache:
        n_stream, n_cells = self._words(offset, "II", "a cache's head")
        if n_stream != 1:
            raise UnknownLayout(f"{n_stream} KV streams")
        if not 0 < n_cells <= len(self._tokens):
            raise UnknownLayout(f"{n_cells} cells for {len(self._tokens)} tokens")
        cells = Span(offset + 8, n_cells * cell_size)
        runs = self._cell_runs(cells, cell_size)
        try:
            regions = self._regions(cells.end, n_cells, with_v)
        except UnknownLayout as failure:
            failure.at = cells.end  # the cells were valid, so the fault lies after them
            raise
        return AttentionCache(regions, runs, cells, cell_size)

    def _regions(self, offset: int, n_cells: int, with_v: bool) -> tuple[Region, ...]:
        """Return the rows after a cache's cells: K of all layers, then V if present."""
        v_trans, n_layer, _, _ = self._words(offset, "IIII", "a cache's head")
        if v_trans != 0:
            raise UnknownLayout("V is transposed (flash attention is off)")
        if n_layer > MOST_LAYERS:
            raise UnknownLayout(f"{n_layer} layers")
        regions: list[Region] = []
        types: list[int] = []
        end = offset + 16
        for kind in range(2 if with_v else 1):
            for _ in range(n_layer):
                type_id, row_size = self._row_head(end)
                if len(types) == kind:
                    types.append(type_id)
                if types[kind] != type_id:
                    raise UnknownLayout("layers of different KV types")
                regions.append(Region(end + 12, row_size))
                end += 12 + n_cells * row_size
                if end > self._size:
                    raise UnknownLayout("it ends within the rows")
        return tuple(regions)

    def _cell_runs(self, cells: Span, cell_size: int) -> tuple[Run, ...]:
        """Check every cell and return their token runs; a window cache is a ring buffer."""
        data = self._take(cells.offset, cells.size, "the cells")
        words = np.frombuffer(data, dtype="<i4").reshape(-1, cell_size // 4)
        positions = words[:, 0]
        if (words[:, 1] != 1).any() or (words[:, -1] != words[0, -1]).any():  # any slot number, but the same one
            raise UnknownLayout("cells of other sequences than the slot's, or with unknown extras")
        total = len(self._tokens)
        first = total - len(positions)
        if positions.min() != first or positions.max() != total - 1 or len(np.unique(positions)) != len(positions):
            raise UnknownLayout("its cells are not those of its last tokens")
        if cell_size == LONG_CELL and (words[:, 4] != self._tokens[positions]).any():
            raise UnknownLayout("unknown extras in its cells")
        breaks = np.flatnonzero(np.diff(positions) != 1) + 1
        if len(breaks) >= MOST_RUNS:
            raise UnknownLayout("its cells are scattered")
        edges = [0, *breaks.tolist(), len(positions)]
        return tuple(Run(start, int(positions[start]), end - start) for start, end in itertools.pairwise(edges))

    def _row_head(self, offset: int) -> tuple[int, int]:
        type_id, row_size = self._words(offset, "iQ", "a region's head")
        block = BLOCK_BYTES.get(type_id)
        if block is None or row_size % block or not 0 <= row_size <= MOST_ROW_BYTES:
            raise UnknownLayout(f"rows of type {type_id} and {row_size} bytes")
        return type_id, row_size

    def _recurrent(self, offset: int) -> RecurrentState:
        n_cells, position, n_seq, s_trans, n_layer = self._words(offset, "IiIII", "the recurrent state")
        if (n_cells, position, n_seq, s_trans) != (1, len(self._tokens) - 1, 0, 0) or not 0 < n_layer <= MOST_LAYERS:
            raise UnknownLayout("recurrent state of an unknown form")
        rows: list[tuple[int, int]] = []
        end = offset + 20
        while not self._caches_end(end):
            if len(rows) == 2 * n_layer:
                raise UnknownLayout("more after the recurrent state")
            rows.append(self._row_head(end))
            end += 12 + rows[-1][1]
            if end > self._size:
                raise UnknownLayout("it ends within the recurrent state")
        layers = len(rows) // 2
        if not rows or len(rows) % 2 or len(set(rows[:layers])) > 1 or len(set(rows[layers:])) > 1:
            raise UnknownLayout("recurrent layers of an unknown form")
        return RecurrentState(offset, end - offset)

    def _checkpoints(self, offset: int) -> tuple[Span | None, tuple[Checkpoint, ...]]:
        if offset == self._size:
            return None, ()
        head = Span(offset, 12)
        _, version, count = self._words(offset, "III", "the checkpoints' head")
        if version != CHECKPOINT_VERSION or count > MOST_CHECKPOINTS:
            raise UnknownLayout(f"{count} checkpoints of version {version}")
        checkpoints: list[Checkpoint] = []
        end = head.end
        for _ in range(count):
            start, (n_tokens, pos_min, pos_max) = end, self._words(end, "qii", "a checkpoint")
            if not (0 < n_tokens <= len(self._tokens) and 0 <= pos_min <= pos_max < n_tokens):
                raise UnknownLayout("a checkpoint of tokens that are not there")
            end += 16
            for _ in range(3):  # target, draft, speculation
                (size,) = self._words(end, "Q", "a checkpoint")
                end += 8 + size
                if end > self._size:
                    raise UnknownLayout("it ends within a checkpoint")
            checkpoints.append(Checkpoint(start, end - start, n_tokens, pos_min))
        if end != self._size:
            raise UnknownLayout("bytes after the checkpoints")
        return head, tuple(checkpoints)


def _check_cover(layout: Layout) -> None:
    """Check that each byte is in exactly one span; a failure is a bug in this module."""
    at = 0
    for span in layout.spans:
        if span.offset != at:
            raise UnknownLayout(f"its layout has a gap or overlap at byte {at}")
        at = span.end
    if at != layout.size:
        raise UnknownLayout(f"its layout ends at byte {at} of {layout.size}")
