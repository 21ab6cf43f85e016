"""What lies where in a slot file: values only, no reading. `parse_layout` (layout_parser) makes them.

A slot file is a chain of named spans without gaps: header, then one cache after the other, then the engine's context
checkpoints. A layout holds offsets and counts, never rows, so that it stays some KB however large the file is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


class UnknownLayout(Exception):
    """The file is not understood to its last byte; the message says why, in words for the log."""

    at = 0  # how far the reading came, in bytes


@dataclass(frozen=True)
class Span:
    """A run of bytes of the file."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """The offset of the first byte behind it."""
        return self.offset + self.size


@dataclass(frozen=True)
class Header:
    """Magic, state version, and the token list."""

    span: Span
    version: int
    wrapped: bool  # -1, 1, n, tokens, n_media, media… as newer servers write it, or the bare tokens
    tokens: Span  # the token ids alone, 4 bytes each
    media: Span | None = None  # n_media and what follows it, where there are pictures

    @property
    def n_tokens(self) -> int:
        """How many tokens the file stands for."""
        return self.tokens.size // 4


@dataclass(frozen=True)
class CellRun:
    """Cells in a row, in the file and in the conversation: row `first_row + i` is of token `position + i`."""

    first_row: int
    position: int
    count: int


@dataclass(frozen=True)
class RowRegion:
    """One layer's K or V rows of one cache, one row per cell, without gaps."""

    kind: Literal["k", "v"]
    layer: int  # counted within its cache, not the model's number
    type: int  # ggml type id
    row_size: int  # bytes
    rows: int
    head: Span  # type and row size, 12 bytes
    offset: int  # of the first row

    @property
    def span(self) -> Span:
        """All rows."""
        return Span(self.offset, self.rows * self.row_size)


@dataclass(frozen=True)
class AttentionCache:
    """One KV cache. `runs` cover a gapless range of token positions up to the file's last token, in row order.

    A full cache begins at position 0. A sliding-window cache of a conversation longer than its window does not.
    """

    head: Span  # number of streams (always 1) and of cells, 8 bytes
    cells: Span  # cell metadata, `cell_size` bytes each
    cell_size: int  # 12, or 24 where cells carry M-RoPE positions and their token
    runs: tuple[CellRun, ...]
    data_head: Span  # v_trans, n_layer, n_rot_k, n_rot_v, 16 bytes
    regions: tuple[RowRegion, ...]

    @property
    def n_cells(self) -> int:
        """Rows in every region."""
        return self.cells.size // self.cell_size

    @property
    def first_position(self) -> int:
        """The oldest token whose rows are here."""
        return min(run.position for run in self.runs)

    @property
    def end(self) -> int:
        """The offset of the first byte behind it."""
        return self.regions[-1].span.end if self.regions else self.data_head.end

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's rows in all regions."""
        return sum(region.row_size for region in self.regions)

    @property
    def spans(self) -> Iterator[Span]:
        """All its bytes in file order."""
        yield from (self.head, self.cells, self.data_head)
        for region in self.regions:
            yield from (region.head, region.span)

    def runs_between(self, first: int, last: int) -> tuple[CellRun, ...]:
        """The cells of the tokens first ≤ position < last, in position order."""
        cut = []
        for run in self.runs:
            start, stop = max(first, run.position), min(last, run.position + run.count)
            if start < stop:
                cut.append(CellRun(run.first_row + start - run.position, start, stop - start))
        return tuple(sorted(cut, key=lambda run: run.position))


@dataclass(frozen=True)
class RecurrentState:
    """The recurrent layers' state after the last token: nothing in it belongs to one token alone."""

    span: Span
    position: int  # of the last token it has seen
    layers: int  # recurrent ones

    @property
    def end(self) -> int:
        """The offset of the first byte behind it."""
        return self.span.end


@dataclass(frozen=True)
class Checkpoint:
    """A context checkpoint of the server: what cannot be cut back (window rows or recurrent state), as it was earlier.

    Once made it never changes, so the same bytes come back in every later save of the conversation.
    """

    span: Span
    n_tokens: int  # the engine can go back to this length with it
    first_position: int  # of the oldest row it holds; the last token for recurrent state


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
        """How many tokens the file stands for."""
        return self.header.n_tokens

    @property
    def attention(self) -> tuple[AttentionCache, ...]:
        """The caches that hold rows per token."""
        return tuple(cache for cache in self.caches if isinstance(cache, AttentionCache))

    @property
    def recurrent(self) -> RecurrentState | None:
        """The recurrent state, if the model has one."""
        return next((cache for cache in self.caches if isinstance(cache, RecurrentState)), None)

    @property
    def windows(self) -> tuple[AttentionCache, ...]:
        """The sliding-window caches that no longer hold the oldest tokens."""
        return tuple(cache for cache in self.attention if cache.first_position > 0)

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows; the rest is what this save point alone needs."""
        return sum(cache.row_bytes * cache.n_cells for cache in self.attention)

    @property
    def spans(self) -> Iterator[Span]:
        """All bytes of the file, in order."""
        yield self.header.span
        for cache in self.caches:
            if isinstance(cache, AttentionCache):
                yield from cache.spans
            else:
                yield cache.span
        if self.checkpoint_head is not None:
            yield self.checkpoint_head
        for checkpoint in self.checkpoints:
            yield checkpoint.span
