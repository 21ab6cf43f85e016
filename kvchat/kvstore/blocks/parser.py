"""Parser for the tokens and the layout of slot files. Unknown content raises SlotFileError.

Format (state version 4, little endian), from llama.cpp: src/llama-context.cpp (state_seq_save_file),
src/llama-kv-cache.cpp and src/llama-memory-recurrent.cpp (state_write, state_write_meta, state_write_data).
  header      magic 'ggsq' u32 | version u32 | n u32 | n x i32
In files of older servers the n words are the token list; since `server_tokens::serialize`
(tools/server/server-common.cpp) they wrap it: `-1, 1, n_tokens, tokens…, n_media, media…`, where each token of an image
is IMAGE_PLACEHOLDER. The caches follow, without a field for their kind:
  attention   n_stream u32 | n_cells u32 | cells | v_trans, n_layer, n_rot_k, n_rot_v u32
              | per layer: type i32, row_size u64, n_cells K rows | the same for V (none with MLA)
  cell        pos i32, n_seq u32, [x, y, token i32: only with M-RoPE or PLE], seq_id i32
  recurrent   n_cells u32 | pos i32, n_seq u32 | s_trans, n_layer u32
              | per recurrent layer: type i32, row_size u64, R row | the same for S
Order of the caches: plain models have one; models with a sliding window have the base, then the window; models with an
indexer (DSA, MSA) have the indexed cache, then the indexer; hybrids have attention, then recurrent. Of two caches,
the window is the one whose rows do not reach back to token 0.
Newer servers append their context checkpoints under the same state version (seen in files of b11549):
  "SCKP" u32, 1 u32, count u32 | per checkpoint: n_tokens i64, pos_min i32, pos_max i32
              | three times (target, draft, speculation): size u64, bytes
No field tells whether cells have the optional fields or whether V follows: the parser tries every combination, and
exactly one must reach the end. There is no checksum, so changed rows cannot be detected.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from io import FileIO
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvchat.kvstore.blocks.layout import (
    AttentionCache,
    Cache,
    Checkpoint,
    Header,
    Layout,
    RecurrentState,
    Region,
    Run,
    Span,
)
from kvchat.kvstore.savepoint import Tokens

MAGIC = 0x67677371  # 'ggsq'
VERSION = 4
# All state versions so far have the token list in the same place. The engine decides which versions it loads;
# a value outside this range marks a foreign file.
_PLAUSIBLE_VERSIONS = range(1, 1000)
WRAPPED_MARKER = -1  # no token has this id, so it marks the wrapped form
WRAPPED_VERSION = 1
IMAGE_PLACEHOLDER = -1  # stands for a token of an image
CHECKPOINT_VERSION = 1
CHECKPOINT_MAGIC = 0x504B4353  # "SCKP"
SHORT_CELL, LONG_CELL = 12, 24
# Bytes per block by ggml type id, for KV caches and recurrent states.
BLOCK_BYTES = {0: 4, 1: 2, 2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 20: 18, 30: 2}
# Limits above those of any model, to bound the cost of parsing a malicious file.
_MAX_LAYERS, _MAX_RUNS, _MAX_ROW_BYTES = 1024, 4096, 1 << 28
MAX_CACHES, _MAX_CHECKPOINTS, _MAX_TRIES = 4, 1024, 64

ReadBytes = Callable[[int, int], bytes]  # (offset, size)
RawTokens = npt.NDArray[np.int32]  # an array, because building a list of 128K tokens is too slow for a restore


class SlotFileError(Exception):
    """The file is not a complete slot file or has an unknown layout; the message gives the reason."""


def read_tokens(path: Path) -> RawTokens:
    """Return the token ids of the slot file at `path`, or an empty array if the slot was empty.

    Image tokens are IMAGE_PLACEHOLDER. Reads only the header, and allocates no more memory than the file's length.
    Raises SlotFileError for an empty, truncated or foreign file, OSError if the file cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block forever
        raise SlotFileError("not a file")
    with path.open("rb", buffering=0) as file:
        return _open(file).read_header()[1]


def matches_tokens(tokens: RawTokens, expected: Tokens) -> bool:
    """True if a file's tokens are the expected ones. An expected id below IMAGE_PLACEHOLDER (an image) matches any."""
    expected_tokens = np.asarray(expected, "<i4")
    pictures = expected_tokens < IMAGE_PLACEHOLDER
    if len(tokens) != len(expected_tokens) or (IMAGE_PLACEHOLDER in tokens) != pictures.any():
        return False
    return bool(((tokens == expected_tokens) | pictures).all())


def parse_layout(path: Path) -> Layout:
    """Return the layout of the slot file at `path`. Raises SlotFileError; OSError if it cannot be read.

    Reads the header, cell metadata and region heads, but no rows.
    """
    with path.open("rb", buffering=0) as file:
        return _open(file).parse()


def parse(size: int, read: ReadBytes) -> Layout:
    """Return the layout of a slot file of `size` bytes, using `read` to get its content. Raises SlotFileError."""
    return _SlotFileParser(size, read).parse()


def _open(file: FileIO) -> _SlotFileParser:
    def read(offset: int, count: int) -> bytes:
        file.seek(offset)
        return file.read(count) or b""

    return _SlotFileParser(os.fstat(file.fileno()).st_size, read)


class _SlotFileParser:
    """Parser of one slot file, which tries a bounded number of possible layouts."""

    def __init__(self, size: int, read: ReadBytes) -> None:
        self._size, self._read, self._attempts = size, read, 0

    def _read_bytes(self, offset: int, size: int, description: str) -> bytes:
        if offset < 0 or size < 0 or offset + size > self._size:
            raise SlotFileError(f"truncated in {description}")
        data = self._read(offset, size)
        if len(data) != size:
            raise SlotFileError("truncated while being read")
        return data

    def _unpack(self, offset: int, form: str, description: str) -> tuple[int, ...]:
        return struct.unpack("<" + form, self._read_bytes(offset, struct.calcsize("<" + form), description))

    def read_header(self) -> tuple[Header, RawTokens]:
        if not self._size:
            raise SlotFileError("empty")
        magic, version, count = self._unpack(0, "III", "the header")
        if magic != MAGIC or version not in _PLAUSIBLE_VERSIONS:
            raise SlotFileError("not a slot file")
        span = Span(0, 12 + 4 * count)
        words = np.frombuffer(self._read_bytes(12, 4 * count, "the token list"), dtype="<i4")
        if span.end == self._size:
            raise SlotFileError("no state after the token list")
        if not count or words[0] != WRAPPED_MARKER:
            header, tokens, least = Header(span, version, is_wrapped=False, tokens=Span(12, 4 * count)), words, 0
        else:
            if count < 4 or words[1] != WRAPPED_VERSION:
                raise SlotFileError("unknown token list format")
            end = 3 + int(words[2])
            if not 3 <= end < count:
                raise SlotFileError("the token list overlaps the state")
            tokens, least = words[3:end], IMAGE_PLACEHOLDER
            has_media = IMAGE_PLACEHOLDER in tokens
            if has_media != (words[end] != 0) or has_media != (end + 1 < count):
                raise SlotFileError("unknown token list format")
            media = Span(12 + 4 * end, 4 * (count - end)) if has_media else None
            header = Header(span, version, is_wrapped=True, tokens=Span(24, 4 * len(tokens)), media=media)
        if tokens.min(initial=0) < least:
            raise SlotFileError("invalid ids in the token list")
        return header, tokens

    def parse(self) -> Layout:
        header, self._tokens = self.read_header()
        if header.version != VERSION or not len(self._tokens):
            raise SlotFileError(f"unsupported state version {header.version} with {len(self._tokens)} tokens")
        layouts = list(islice(self._possible_layouts(header, header.span.end, ()), 2))
        if len(layouts) != 1:
            raise SlotFileError("ambiguous layout" if layouts else "unknown layout")
        return layouts[0]

    def _possible_layouts(self, header: Header, offset: int, preceding: tuple[Cache, ...]) -> Iterator[Layout]:
        """Yield all possible layouts of the file, given the caches that precede `offset`."""
        self._attempts += 1
        if self._attempts > _MAX_TRIES:
            raise SlotFileError("too many possible layouts")
        try:
            checkpoints = self._parse_checkpoints(offset) if self._is_end_of_caches(offset) else None
        except SlotFileError:
            return
        if checkpoints is not None and preceding:
            yield Layout(self._size, header, preceding, *checkpoints)
        is_last = len(preceding) == MAX_CACHES or any(isinstance(cache, RecurrentState) for cache in preceding)
        if checkpoints is None and not is_last:
            for cache in self._possible_caches(offset):
                yield from self._possible_layouts(header, cache.end, (*preceding, cache))

    def _is_end_of_caches(self, offset: int) -> bool:
        return offset == self._size or self._unpack(offset, "I", "the caches") == (CHECKPOINT_MAGIC,)

    def _possible_caches(self, offset: int) -> list[Cache]:
        ways: list[Callable[[], Cache]] = [partial(self._parse_recurrent_state, offset)]
        for cell_size in (SHORT_CELL, LONG_CELL):
            ways += [partial(self._parse_attention_cache, offset, cell_size, has_v=has_v) for has_v in (True, False)]
        caches: list[Cache] = []
        for read in ways:
            with suppress(SlotFileError):
                cache = read()
                if cache not in caches:  # without layers, with and without V are the same
                    caches.append(cache)
        return caches

    def _parse_attention_cache(self, offset: int, cell_size: int, *, has_v: bool) -> AttentionCache:
        n_stream, n_cells = self._unpack(offset, "II", "a cache's head")
        if n_stream != 1 or not 0 < n_cells <= len(self._tokens):
            raise SlotFileError(f"unsupported: {n_stream} KV streams, {n_cells} cells for {len(self._tokens)} tokens")
        cells = Span(offset + 8, n_cells * cell_size)
        runs = self._parse_cell_runs(cells, cell_size)
        v_trans, n_layer, _, _ = self._unpack(cells.end, "IIII", "a cache's head")
        if v_trans != 0 or n_layer > _MAX_LAYERS:
            raise SlotFileError(f"transposed V (flash attention is off), or invalid layer count {n_layer}")
        regions: list[Region] = []
        end = cells.end + 16
        for _ in range(2 if has_v else 1):  # K of all layers, then V
            types = set()
            for _ in range(n_layer):
                type_id, row_size = self._parse_row_head(end)
                types.add(type_id)
                regions.append(Region(end + 12, row_size))
                end += 12 + n_cells * row_size
                if end > self._size or len(types) > 1:
                    raise SlotFileError("truncated in the rows, or layers of different KV types")
        return AttentionCache(tuple(regions), runs, cells, cell_size)

    def _parse_cell_runs(self, cells: Span, cell_size: int) -> tuple[Run, ...]:
        """Check all cells and return their runs of consecutive tokens (several in a window, a ring buffer)."""
        data = self._read_bytes(cells.offset, cells.size, "the cells")
        words = np.frombuffer(data, dtype="<i4").reshape(-1, cell_size // 4)
        positions = words[:, 0]
        if (words[:, 1] != 1).any() or (words[:, -1] != words[0, -1]).any():  # any slot number, but the same one
            raise SlotFileError("cells of another sequence, or with unknown data")
        total = len(self._tokens)
        first = total - len(positions)
        if positions.min() != first or positions.max() != total - 1 or len(np.unique(positions)) != len(positions):
            raise SlotFileError("the cells do not match the last tokens")
        if cell_size == LONG_CELL and (words[:, 4] != self._tokens[positions]).any():
            raise SlotFileError("unknown data in the cells")
        breaks = np.flatnonzero(np.diff(positions) != 1) + 1
        if len(breaks) >= _MAX_RUNS:
            raise SlotFileError("the cells are not contiguous")
        edges = [0, *breaks.tolist(), len(positions)]
        return tuple(Run(start, int(positions[start]), end - start) for start, end in pairwise(edges))

    def _parse_row_head(self, offset: int) -> tuple[int, int]:
        type_id, row_size = self._unpack(offset, "iQ", "a region's head")
        block = BLOCK_BYTES.get(type_id)
        if block is None or row_size % block or row_size > _MAX_ROW_BYTES:
            raise SlotFileError(f"unsupported rows of type {type_id} with {row_size} bytes")
        return type_id, row_size

    def _parse_recurrent_state(self, offset: int) -> RecurrentState:
        n_cells, position, n_seq, s_trans, n_layer = self._unpack(offset, "IiIII", "the recurrent state")
        if (n_cells, position, n_seq, s_trans) != (1, len(self._tokens) - 1, 0, 0) or not 0 < n_layer <= _MAX_LAYERS:
            raise SlotFileError("unknown recurrent state format")
        rows: list[tuple[int, int]] = []
        end = offset + 20
        while not self._is_end_of_caches(end):
            rows.append(self._parse_row_head(end))
            end += 12 + rows[-1][1]
            if end > self._size or len(rows) > 2 * n_layer:
                raise SlotFileError("truncated in the recurrent state, or data after it")
        layers = len(rows) // 2
        if not rows or len(rows) % 2 or len(set(rows[:layers])) > 1 or len(set(rows[layers:])) > 1:
            raise SlotFileError("unknown recurrent layer format")
        return RecurrentState(offset, end - offset)

    def _parse_checkpoints(self, offset: int) -> tuple[Span | None, tuple[Checkpoint, ...]]:
        if offset == self._size:
            return None, ()
        head = Span(offset, 12)
        _, version, count = self._unpack(offset, "III", "the checkpoints' head")
        if version != CHECKPOINT_VERSION or count > _MAX_CHECKPOINTS:
            raise SlotFileError(f"unsupported: {count} checkpoints of version {version}")
        checkpoints: list[Checkpoint] = []
        end = head.end
        for _ in range(count):
            start, (n_tokens, pos_min, pos_max) = end, self._unpack(end, "qii", "a checkpoint")
            if not (0 < n_tokens <= len(self._tokens) and 0 <= pos_min <= pos_max < n_tokens):
                raise SlotFileError("a checkpoint past the last token")
            end += 16
            for _ in range(3):  # target, draft, speculation
                end += 8 + self._unpack(end, "Q", "a checkpoint")[0]
                if end > self._size:
                    raise SlotFileError("truncated in a checkpoint")
            checkpoints.append(Checkpoint(start, end - start, n_tokens, pos_min))
        if end != self._size:
            raise SlotFileError("unknown data after the checkpoints")
        return head, tuple(checkpoints)
