"""Reads one cache of a slot file, whose form the file does not name: each way it can be read. See parser.py."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from kvchat.kvstore.blocks.layout import AttentionCache, Cache, RecurrentState, Region, Run, Span, UnknownLayout

CHECKPOINT_MAGIC = 0x504B4353  # "SCKP"
SHORT_CELL, LONG_CELL = 12, 24
# ggml type ids a KV cache or a recurrent state can have: (bytes per block).
BLOCK_BYTES = {0: 4, 1: 2, 2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 20: 18, 30: 2}
# More than any model has, and few enough that a hostile file costs little time and memory.
MOST_LAYERS, MOST_RUNS, MOST_ROW_BYTES = 1024, 4096, 1 << 28

Read = Callable[[int, int], bytes]


@dataclass(frozen=True)
class SlotBytes:
    """The bytes to be parsed. `read(offset, size)` is called inside `size` only."""

    size: int
    read: Read

    def take(self, offset: int, size: int, what: str) -> bytes:
        """`size` bytes from `offset` on, which belong to `what`. Raises UnknownLayout."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise UnknownLayout(f"it ends within {what}")
        data = self.read(offset, size)
        if len(data) != size:
            raise UnknownLayout(f"it was cut while {what} was read")
        return data

    def words(self, offset: int, form: str, what: str) -> tuple[int, ...]:
        """Little-endian numbers of these forms (see `struct`). Raises UnknownLayout."""
        packed = struct.Struct("<" + form)
        return packed.unpack(self.take(offset, packed.size, what))

    def caches_end(self, offset: int) -> bool:
        """Whether no cache begins here, but the checkpoints, or nothing."""
        if offset == self.size:
            return True
        return self.words(offset, "I", "what follows the caches") == (CHECKPOINT_MAGIC,)


class CacheReader:
    """Reads the caches of a file with these tokens. What it tried in vain goes to `note`."""

    def __init__(self, file: SlotBytes, tokens: npt.NDArray[np.int32], note: Callable[[UnknownLayout], None]) -> None:
        self._file, self._tokens, self._note = file, tokens, note

    def ways(self, offset: int) -> Iterator[Cache]:
        """All ways to read one cache from here."""
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
            if cache not in seen:  # a cache without layers has no V either way
                seen.append(cache)
                yield cache

    def _attention(self, offset: int, cell_size: int, with_v: bool) -> AttentionCache:
        n_stream, n_cells = self._file.words(offset, "II", "a cache's head")
        if n_stream != 1:
            raise UnknownLayout(f"{n_stream} KV streams")
        if not 0 < n_cells <= len(self._tokens):
            raise UnknownLayout(f"{n_cells} cells for {len(self._tokens)} tokens")
        cells = Span(offset + 8, n_cells * cell_size)
        runs = self._cell_runs(cells, cell_size)
        try:
            regions, types = self._regions(cells.end, n_cells, with_v)
        except UnknownLayout as failure:
            failure.at = cells.end  # the cells at least were right, so this is what is wrong with the file
            raise
        return AttentionCache(regions, runs, cells, cell_size, types)

    def _regions(self, offset: int, n_cells: int, with_v: bool) -> tuple[tuple[Region, ...], tuple[int, ...]]:
        """The rows behind a cache's cells, K of all layers, then V if there is any; and the types of both."""
        v_trans, n_layer, _, _ = self._file.words(offset, "IIII", "a cache's head")
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
                if end > self._file.size:
                    raise UnknownLayout("it ends within the rows")
        return tuple(regions), tuple(types)

    def _cell_runs(self, cells: Span, cell_size: int) -> tuple[Run, ...]:
        """Check every cell, and say in runs which tokens they are of."""
        data = self._file.take(cells.offset, cells.size, "the cells")
        words = np.frombuffer(data, dtype="<i4").reshape(-1, cell_size // 4)
        positions = words[:, 0]
        if (words[:, 1] != 1).any() or (words[:, -1] != words[0, -1]).any():  # the slot's number, whichever it was
            raise UnknownLayout("cells of other sequences than the slot's, or with unknown extras")
        total = len(self._tokens)
        first = total - len(positions)
        if positions.min() != first or positions.max() != total - 1 or len(np.unique(positions)) != len(positions):
            raise UnknownLayout("its cells are not those of its last tokens")
        if cell_size == LONG_CELL and (words[:, 4] != self._tokens[positions]).any():
            raise UnknownLayout("unknown extras in its cells")
        return _runs(positions)

    def _row_head(self, offset: int) -> tuple[int, int]:
        type_id, row_size = self._file.words(offset, "iQ", "a region's head")
        block = BLOCK_BYTES.get(type_id)
        if block is None or row_size % block or not 0 <= row_size <= MOST_ROW_BYTES:
            raise UnknownLayout(f"rows of type {type_id} and {row_size} bytes")
        return type_id, row_size

    def _recurrent(self, offset: int) -> RecurrentState:
        n_cells, position, n_seq, s_trans, n_layer = self._file.words(offset, "IiIII", "the recurrent state")
        if (n_cells, position, n_seq, s_trans) != (1, len(self._tokens) - 1, 0, 0) or not 0 < n_layer <= MOST_LAYERS:
            raise UnknownLayout("recurrent state of an unknown form")
        rows: list[tuple[int, int]] = []
        end = offset + 20
        while not self._file.caches_end(end):
            if len(rows) == 2 * n_layer:
                raise UnknownLayout("more after the recurrent state")
            rows.append(self._row_head(end))
            end += 12 + rows[-1][1]
            if end > self._file.size:
                raise UnknownLayout("it ends within the recurrent state")
        layers = len(rows) // 2
        if not rows or len(rows) % 2 or len(set(rows[:layers])) > 1 or len(set(rows[layers:])) > 1:
            raise UnknownLayout("recurrent layers of an unknown form")
        return RecurrentState(Span(offset, end - offset), position, layers)


def _runs(positions: npt.NDArray[np.int32]) -> tuple[Run, ...]:
    """Split where a cell is not of the token after its predecessor's: the window cache is used as a ring."""
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    if len(breaks) >= MOST_RUNS:
        raise UnknownLayout("its cells are scattered")
    edges = [0, *breaks.tolist(), len(positions)]
    return tuple(Run(first, int(positions[first]), last - first) for first, last in itertools.pairwise(edges))
