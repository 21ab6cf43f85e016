"""Plans for slot files that were never saved: cut to a prefix, or with the row that a sliding window lacks.

Pure functions on layouts. A plan is the new file as a sequence of literal bytes and ranges of the stored one;
`blocks/rebuild.py` carries it out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

from kvchat.kvstore.blocks.layout import AttentionCache, Checkpoint, Header, Layout, RecurrentState, Span

Piece = bytes | Span  # of the plan itself, or a range of the stored file
Plan = tuple[Piece, ...]


def piece_size(piece: Piece) -> int:
    return piece.size if isinstance(piece, Span) else len(piece)


def size_of(plan: Plan) -> int:
    return sum(map(piece_size, plan))


def whole(size: int) -> Plan:
    return (Span(0, size),)


class CannotCompose(Exception):
    """No such file can be made of these saves; the message says why, in words for the log."""


def cut(layout: Layout, n_tokens: int) -> Plan:
    """The file for exactly the first `n_tokens` tokens: what the engine itself saves there.

    Raises CannotCompose where the state cannot be cut: recurrent state, pictures, a window that lost its oldest rows.
    """
    if not 0 < n_tokens <= layout.n_tokens:
        raise CannotCompose(f"{n_tokens} of {layout.n_tokens} tokens")
    if n_tokens < layout.n_tokens and layout.header.media is not None:
        raise CannotCompose("it holds pictures")  # the engine cuts it back itself
    if n_tokens < layout.n_tokens and layout.recurrent is not None:
        raise CannotCompose("recurrent state cannot be cut")
    if n_tokens < layout.n_tokens and layout.windows:
        raise CannotCompose(f"its window's rows begin at token {layout.windows[0].first_position:,}")
    return _compose(layout, n_tokens, _rows)


def with_masked_rows(layout: Layout, window: int) -> Plan:
    """The file with one more row, of zeros, in each window cache that has lost rows.

    An engine that keeps no checkpoints in the file uses it only if its oldest row is older than the next token's window
    of `window` tokens, and saves none that old (llama.cpp b11434, tools/server/server-context.cpp, `pos_min_thold`).
    The row is masked for every token that can follow: at this position the engine goes back by one token at most,
    which the saved rows allow. Raises CannotCompose where the rows are not those of such a window.
    """
    n_tokens = layout.n_tokens
    starts = (n_tokens - window, (n_tokens - 1) // window * window)  # of a window, of a chunk (llama4)
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
        pieces += [cache.span] if isinstance(cache, RecurrentState) else rows(cache, n_tokens)
    kept = [checkpoint for checkpoint in layout.checkpoints if checkpoint.n_tokens <= n_tokens]
    pieces += _checkpoints(layout, kept)
    return joined(pieces)


def _header(header: Header, n_tokens: int) -> Iterator[Piece]:
    """Magic and version as they are, then the first tokens in the same wrapping; pictures only if all tokens are."""
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
    """A cache with the rows of the first tokens, in their order."""
    runs = cache.runs_between(0, n_tokens)
    yield struct.pack("<II", 1, sum(run.rows for run in runs))
    for run in runs:
        yield Span(cache.cells.offset + run.row * cache.cell_size, run.rows * cache.cell_size)
    yield cache.data_head
    for region in cache.regions:
        yield region.head
        for run in runs:
            yield Span(region.offset + run.row * region.row_size, run.rows * region.row_size)


def _checkpoints(layout: Layout, kept: Sequence[Checkpoint]) -> Iterator[Piece]:
    if layout.checkpoint_head is None or not kept:
        return  # without any, servers write no appendix
    yield Span(layout.checkpoint_head.offset, 8)
    yield struct.pack("<I", len(kept))
    for checkpoint in kept:
        yield checkpoint.span


def joined(pieces: Iterable[Piece]) -> Plan:
    """The same bytes in as few pieces as possible, none of them empty."""
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
