"""What lies where in a slot file: values only, no reading. `parser.py` makes them.

A slot file is a chain of named spans without gaps: header, then one cache after the other, then the engine's context
checkpoints. A layout holds offsets and counts, never rows, so that it stays some KB however large the file is. Of one
that is known the store keeps the row map: where the rows lie, and where the rest may be cut.
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
        return self.offset + self.size


@dataclass(frozen=True)
class Header:
    """Magic, state version, and the token list."""

    span: Span
    wrapped: bool  # -1, 1, n, tokens, n_media, media… as newer servers write it, or the bare tokens
    tokens: Span  # the token ids alone, 4 bytes each
    media: Span | None = None  # n_media and what follows it, where there are pictures

    @property
    def n_tokens(self) -> int:
        return self.tokens.size // 4


@dataclass(frozen=True)
class Region:
    """One layer's K or V rows of one cache, one after the other."""

    offset: int  # of the first row
    row_size: int  # bytes

    @property
    def head(self) -> Span:
        return Span(self.offset - 12, 12)


@dataclass(frozen=True)
class Run:
    """Rows that stand for consecutive tokens: row `row + i` of the cache is of token `position + i`."""

    row: int
    position: int
    rows: int  # how many


@dataclass(frozen=True)
class CacheRows:
    """Where the rows of one KV cache lie: those of a gapless range of tokens up to the file's last.

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
        """True if the oldest tokens' rows are here, or a sliding window has left them behind."""
        return "swa" if self.first_position > 0 else "full"

    def runs_between(self, first: int, last: int) -> tuple[Run, ...]:
        """The rows of the tokens first ≤ position < last, in position order."""
        cut = []
        for run in self.runs:
            start, stop = max(first, run.position), min(last, run.position + run.rows)
            if start < stop:
                cut.append(Run(run.row + start - run.position, start, stop - start))
        return tuple(sorted(cut, key=lambda run: run.position))


@dataclass(frozen=True)
class AttentionCache(CacheRows):
    """The rows of one KV cache, and what stands before them."""

    cells: Span  # metadata of each row, `cell_size` bytes each
    cell_size: int  # 12, or 24 where cells carry M-RoPE positions and their token

    @property
    def head(self) -> Span:
        return Span(self.cells.offset - 8, 8)

    @property
    def data_head(self) -> Span:
        """v_trans, n_layer, n_rot_k, n_rot_v."""
        return Span(self.cells.end, 16)

    @property
    def spans(self) -> Iterator[Span]:
        """All its bytes in file order."""
        yield from (self.head, self.cells, self.data_head)
        for region in self.regions:
            yield from (region.head, Span(region.offset, self.rows * region.row_size))

    @property
    def end(self) -> int:
        return [*self.spans][-1].end


@dataclass(frozen=True)
class RowMap:
    """Where all rows of a slot file lie; without caches the layout is unknown, or there are no rows."""

    caches: tuple[CacheRows, ...] = ()
    breaks: tuple[int, ...] = ()  # offsets where a part of the rest begins or ends that may come back by itself


@dataclass(frozen=True)
class RecurrentState:
    """The recurrent layers' state after the last token: nothing in it belongs to one token alone."""

    span: Span

    @property
    def end(self) -> int:
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
        """Where its rows lie, and which of the rest may come back by itself: recurrent state and checkpoints."""
        caches = tuple(
            CacheRows(tuple(region for region in cache.regions if region.row_size), cache.runs)
            for cache in self.attention
            if cache.row_bytes  # one of a hybrid without attention layers has cells and no rows
        )
        own = [part.span for part in (*self.checkpoints, self.recurrent) if part is not None]
        return RowMap(caches, tuple(sorted({edge for span in own for edge in (span.offset, span.end)})))

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
