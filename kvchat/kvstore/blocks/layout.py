"""The layout of slot files, and plans for files that were never saved. Values only, no reading.

A slot file is a chain of named spans without gaps: header, one cache after the other, then the engine's context
checkpoints. A layout (made by `parser.py`) holds offsets and counts, never rows, so it stays some KB however large
the file is. The store keeps its row map: where the rows lie, and where the rest may be cut.

A plan is a new file as a sequence of literal bytes and ranges of the stored one: cut to a prefix, or with the row
that a sliding window lacks. `rebuild.py` carries it out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal


class UnknownLayout(Exception):
    """The file could not be parsed to its last byte; the message gives the reason for the log."""

    at = 0  # bytes parsed before the failure


class CannotCompose(Exception):
    """The file cannot be composed from these saves; the message is for the log."""


@dataclass(frozen=True)
class Span:
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True)
class Header:
    """Magic, state version, and the token list."""

    span: Span
    wrapped: bool  # True: -1, 1, n, tokens, n_media, media… (newer servers); else bare tokens
    tokens: Span  # token ids only, 4 bytes each
    media: Span | None = None  # n_media and the following data, if pictures exist

    @property
    def n_tokens(self) -> int:
        return self.tokens.size // 4


@dataclass(frozen=True)
class Region:
    """One layer's K or V rows in one cache, contiguous."""

    offset: int  # of the first row
    row_size: int  # bytes

    @property
    def head(self) -> Span:
        return Span(self.offset - 12, 12)


@dataclass(frozen=True)
class Run:
    """Rows of consecutive tokens: row `row + i` of the cache holds token `position + i`."""

    row: int
    position: int
    rows: int  # count


@dataclass(frozen=True)
class CacheRows:
    """The positions of a KV cache's rows, for a contiguous range of tokens up to the file's last.

    A full cache begins at position 0. A sliding-window cache of a conversation longer than its window does not.
    """

    regions: tuple[Region, ...]  # in file order
    runs: tuple[Run, ...]  # in row order, without gaps

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    @property
    def row_bytes(self) -> int:
        return sum(region.row_size for region in self.regions)

    @property
    def first_position(self) -> int:
        return min((run.position for run in self.runs), default=0)

    @property
    def kind(self) -> Literal["full", "swa"]:
        """Return "full" if the oldest tokens' rows are present, "swa" if a sliding window dropped them."""
        return "swa" if self.first_position > 0 else "full"

    def runs_between(self, first: int, last: int) -> tuple[Run, ...]:
        """Return runs of the rows of tokens with first ≤ position < last, in position order."""
        cut = []
        for run in self.runs:
            start, stop = max(first, run.position), min(last, run.position + run.rows)
            if start < stop:
                cut.append(Run(run.row + start - run.position, start, stop - start))
        return tuple(sorted(cut, key=lambda run: run.position))


@dataclass(frozen=True)
class AttentionCache(CacheRows):
    cells: Span  # metadata of each row, `cell_size` bytes each
    cell_size: int  # 12, or 24 if cells carry M-RoPE positions and their token

    @property
    def head(self) -> Span:
        return Span(self.cells.offset - 8, 8)

    @property
    def data_head(self) -> Span:
        """v_trans, n_layer, n_rot_k, n_rot_v."""
        return Span(self.cells.end, 16)

    @property
    def spans(self) -> Iterator[Span]:
        yield from (self.head, self.cells, self.data_head)
        for region in self.regions:
            yield from (region.head, Span(region.offset, self.rows * region.row_size))

    @property
    def end(self) -> int:
        return [*self.spans][-1].end


@dataclass(frozen=True)
class RowMap:
    """The positions of all rows in a slot file; no caches if the layout is unknown or has no rows."""

    caches: tuple[CacheRows, ...] = ()
    breaks: tuple[int, ...] = ()  # offsets that split the residue into parts that may recur


@dataclass(frozen=True)
class RecurrentState(Span):
    """The recurrent layers' state after the last token; it cannot be split by token."""


@dataclass(frozen=True)
class Checkpoint(Span):
    """A context checkpoint of the server: an earlier copy of window rows or recurrent state.

    It never changes, so every later save of the conversation contains the same bytes.
    """

    n_tokens: int  # length the engine can roll back to
    first_position: int  # of its oldest row; the last token for recurrent state


Cache = AttentionCache | RecurrentState


@dataclass(frozen=True)
class Layout:
    """A whole slot file: `spans` name each of its `size` bytes exactly once."""

    size: int
    header: Header
    caches: tuple[Cache, ...]  # in file order
    checkpoint_head: Span | None  # the engine's "SCKP" appendix: magic, version, count
    checkpoints: tuple[Checkpoint, ...]

    @property
    def n_tokens(self) -> int:
        return self.header.n_tokens

    @property
    def attention(self) -> tuple[AttentionCache, ...]:
        return tuple(cache for cache in self.caches if isinstance(cache, AttentionCache))

    @property
    def recurrent(self) -> RecurrentState | None:
        return next((cache for cache in self.caches if isinstance(cache, RecurrentState)), None)

    @property
    def windows(self) -> tuple[AttentionCache, ...]:
        return tuple(cache for cache in self.attention if cache.kind == "swa")

    @property
    def row_map(self) -> RowMap:
        """Its row positions, with breaks at recurrent state and checkpoints, which may recur in later saves."""
        caches = tuple(
            CacheRows(tuple(region for region in cache.regions if region.row_size), cache.runs)
            for cache in self.attention
            if cache.row_bytes  # a hybrid without attention layers has cells but no rows
        )
        own = [span for span in (*self.checkpoints, self.recurrent) if span is not None]
        return RowMap(caches, tuple(sorted({edge for span in own for edge in (span.offset, span.end)})))

    @property
    def spans(self) -> Iterator[Span]:
        yield self.header.span
        for cache in self.caches:
            if isinstance(cache, AttentionCache):
                yield from cache.spans
            else:
                yield cache
        if self.checkpoint_head is not None:
            yield self.checkpoint_head
        yield from self.checkpoints


Piece = bytes | Span  # literal bytes or a range of the stored file
Plan = tuple[Piece, ...]


def piece_size(piece: Piece) -> int:
    return piece.size if isinstance(piece, Span) else len(piece)


def plan_size(plan: Plan) -> int:
    return sum(map(piece_size, plan))


def cut(layout: Layout, n_tokens: int) -> Plan:
    """Plan the file for exactly the first `n_tokens` tokens, as the engine itself would save it.

    Raises CannotCompose if the state cannot be cut: recurrent state, pictures, a window that lost its oldest rows.
    """
    if not 0 < n_tokens <= layout.n_tokens:
        raise CannotCompose(f"{n_tokens} of {layout.n_tokens} tokens")
    if n_tokens < layout.n_tokens and layout.header.media is not None:
        raise CannotCompose("it holds pictures")  # the engine truncates it
    if n_tokens < layout.n_tokens and layout.recurrent is not None:
        raise CannotCompose("recurrent state cannot be cut")
    if n_tokens < layout.n_tokens and layout.windows:
        raise CannotCompose(f"its window's rows begin at token {layout.windows[0].first_position:,}")
    return _compose(layout, n_tokens, _rows)


def with_masked_rows(layout: Layout, window: int) -> Plan:
    """Plan the file with an added row of zeros in each window cache that has lost rows.

    An engine that keeps no checkpoints in the file uses it only if its oldest row is older than the next token's
    window of `window` tokens, but saves no row that old (llama.cpp b11434, tools/server/server-context.cpp,
    `pos_min_thold`). The row is masked for every token that can follow: at this position the engine goes back by
    one token at most, which the saved rows allow. Raises CannotCompose if the rows do not match such a window.
    """
    n_tokens = layout.n_tokens
    starts = (n_tokens - window, (n_tokens - 1) // window * window)  # window or chunk (llama4) start
    if not layout.windows or any(cache.first_position not in starts for cache in layout.windows):
        raise CannotCompose(f"its rows are not those of a window of {window:,} tokens")

    def with_masked_row(cache: AttentionCache, n_tokens: int) -> Iterator[Piece]:
        if cache.kind == "full":
            yield from _rows(cache, n_tokens)
            return
        cell = struct.pack("<ii", max(0, n_tokens - window - 2), 1) + bytes(cache.cell_size - 8)
        yield struct.pack("<II", 1, cache.rows + 1) + cell
        yield cache.cells
        yield cache.data_head
        for region in cache.regions:
            yield region.head
            yield bytes(region.row_size)
            yield Span(region.offset, cache.rows * region.row_size)

    return _compose(layout, n_tokens, with_masked_row)


def _compose(layout: Layout, n_tokens: int, rows: Callable[[AttentionCache, int], Iterator[Piece]]) -> Plan:
    pieces: list[Piece] = list(_header(layout.header, n_tokens))
    for cache in layout.caches:
        pieces += [cache] if isinstance(cache, RecurrentState) else rows(cache, n_tokens)
    kept = [checkpoint for checkpoint in layout.checkpoints if checkpoint.n_tokens <= n_tokens]
    if layout.checkpoint_head is not None and kept:  # servers write no empty appendix
        pieces += [Span(layout.checkpoint_head.offset, 8), struct.pack("<I", len(kept)), *kept]
    return merge_adjacent(pieces)


def _header(header: Header, n_tokens: int) -> Iterator[Piece]:
    """Return the header for the first tokens, with the same magic, version and wrapping.

    Images are kept only if no token is removed.
    """
    yield Span(0, 8)
    media = header.media
    if header.wrapped:
        words = 3 + n_tokens + (media.size // 4 if media else 1)
        yield struct.pack("<IiII", words, -1, 1, n_tokens)
    else:
        yield struct.pack("<I", n_tokens)
    yield Span(header.tokens.offset, 4 * n_tokens)
    if media is not None:
        yield media
    elif header.wrapped:
        yield struct.pack("<I", 0)


def _rows(cache: AttentionCache, n_tokens: int) -> Iterator[Piece]:
    runs = cache.runs_between(0, n_tokens)
    yield struct.pack("<II", 1, sum(run.rows for run in runs))
    for run in runs:
        yield Span(cache.cells.offset + run.row * cache.cell_size, run.rows * cache.cell_size)
    yield cache.data_head
    for region in cache.regions:
        yield region.head
        for run in runs:
            yield Span(region.offset + run.row * region.row_size, run.rows * region.row_size)


def merge_adjacent(pieces: Iterable[Piece]) -> Plan:
    plan: list[Piece] = []
    for piece in pieces:
        before = plan[-1] if plan else None
        if not piece_size(piece):
            continue
        if isinstance(before, bytes) and isinstance(piece, bytes):
            plan[-1] = before + piece
        elif isinstance(before, Span) and isinstance(piece, Span) and before.end == piece.offset:
            plan[-1] = Span(before.offset, before.size + piece.size)
        else:
            plan.append(piece)
    return tuple(plan)
