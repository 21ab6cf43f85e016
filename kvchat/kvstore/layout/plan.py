"""Plans for slot files that were never saved: cut to a prefix, or with older sliding-window rows of other saves.

Pure functions on layouts. A plan is the new file as a sequence of literal bytes and ranges of the sources;
`blocks/rebuild.py` carries it out. What the engine asks of such a file: llama.cpp tools/server/server-context.cpp,
where `pos_min_thold` decides whether a prompt is read again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvchat.kvstore.layout.layout import AttentionCache, Checkpoint, Header, Layout, RecurrentState, Run, Span


@dataclass(frozen=True)
class Inline:
    """Bytes that stand in the plan itself."""

    data: bytes

    @property
    def size(self) -> int:
        """How many bytes."""
        return len(self.data)


@dataclass(frozen=True)
class Copy:
    """A range of the plan's source number `source`."""

    source: int
    span: Span

    @property
    def size(self) -> int:
        """How many bytes."""
        return self.span.size


Piece = Inline | Copy
Plan = tuple[Piece, ...]


def whole(size: int) -> Plan:
    """A file of so many bytes as it was saved."""
    return (Copy(0, Span(0, size)),)


def size_of(plan: Plan) -> int:
    """Bytes of the file that the plan makes."""
    return sum(piece.size for piece in plan)


class CannotCompose(Exception):
    """No such file can be made of these saves; the message says why, in words for the log."""


@dataclass(frozen=True)
class OlderSave:
    """A save whose first `shared_tokens` tokens are also the newest save's: only their rows may be used."""

    layout: Layout
    shared_tokens: int


@dataclass(frozen=True)
class _Rows:
    """Rows of consecutive tokens in one source."""

    source: int
    cache: AttentionCache
    run: Run


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
    return _compose(layout, (), n_tokens, None)


def window_reach(newest: Layout, older: Sequence[OlderSave]) -> int:
    """The oldest token from which on every window's rows can be gathered without a gap."""
    reach = 0
    for index, cache in enumerate(newest.attention):
        first = cache.first_position
        while first > 0 and (found := _covering(index, first - 1, newest, older)) is not None:
            first = older[found].layout.attention[index].first_position
        reach = max(reach, first)
    return reach


def complete_windows(newest: Layout, older: Sequence[OlderSave], first_position: int) -> Plan:
    """`newest` with the window rows of the tokens from `first_position` on, taken from older saves where it has none.

    Source 0 of the plan is `newest`, source i + 1 is `older[i]`. The engine then takes the file for what it is, and
    can cut it back to any length ≥ first_position + window + 2: it wants its oldest row to be older than the window of
    the next token, and one more when the prompt ends with what is cached. How many rows fit is the engine's choice:
    its window cache has room for the window and one micro-batch (llama-kv-cache-iswa.cpp).
    Raises CannotCompose where rows are missing.
    """
    return _compose(newest, older, newest.n_tokens, first_position)


def _compose(newest: Layout, older: Sequence[OlderSave], n_tokens: int, first_position: int | None) -> Plan:
    pieces: list[Piece] = list(_header(newest.header, n_tokens))
    index = 0
    for cache in newest.caches:
        if isinstance(cache, RecurrentState):
            pieces.append(Copy(0, cache.span))
            continue
        first = cache.first_position if first_position is None else min(cache.first_position, first_position)
        pieces += _cache(cache, _gather(index, first, n_tokens, newest, older))
        index += 1
    kept = [checkpoint for checkpoint in newest.checkpoints if checkpoint.n_tokens <= n_tokens]
    pieces += _checkpoints(newest, kept)
    return joined(pieces)


def _header(header: Header, n_tokens: int) -> Iterator[Piece]:
    """Magic and version as they are, then the first tokens in the same wrapping; pictures only if all tokens are."""
    yield Copy(0, Span(0, 8))
    media = header.media
    if header.wrapped:
        words = 3 + n_tokens + (media.size // 4 if media else 1)
        yield Inline(struct.pack("<IiII", words, -1, 1, n_tokens))
    else:
        yield Inline(struct.pack("<I", n_tokens))
    yield Copy(0, Span(header.tokens.offset, 4 * n_tokens))
    if media is not None:
        yield Copy(0, media)
    elif header.wrapped:
        yield Inline(struct.pack("<I", 0))


def _cache(cache: AttentionCache, rows: Sequence[_Rows]) -> Iterator[Piece]:
    """One cache with these rows, whatever saves they lie in."""
    yield Inline(struct.pack("<II", 1, sum(part.run.rows for part in rows)))
    for part in rows:
        size = part.cache.cell_size
        yield Copy(part.source, Span(part.cache.cells.offset + part.run.row * size, part.run.rows * size))
    yield Copy(0, cache.data_head)
    for number, region in enumerate(cache.regions):
        yield Copy(0, region.head)
        for part in rows:
            offset = part.cache.regions[number].offset + part.run.row * region.row_size
            yield Copy(part.source, Span(offset, part.run.rows * region.row_size))


def _checkpoints(layout: Layout, kept: Sequence[Checkpoint]) -> Iterator[Piece]:
    if layout.checkpoint_head is None or not kept:
        return  # without any, servers write no appendix
    yield Copy(0, Span(layout.checkpoint_head.offset, 8))
    yield Inline(struct.pack("<I", len(kept)))
    for checkpoint in kept:
        yield Copy(0, checkpoint.span)


def _gather(index: int, first: int, last: int, newest: Layout, older: Sequence[OlderSave]) -> list[_Rows]:
    """The rows of the tokens first ≤ position < last of the index-th attention cache, in position order."""
    own = newest.attention[index]
    rows = _rows(0, own, max(first, own.first_position), last)
    missing = min(own.first_position, last)
    while missing > first:
        found = _covering(index, missing - 1, newest, older)
        if found is None:
            raise CannotCompose(f"no save holds the window's rows of token {missing - 1:,}")
        theirs = older[found].layout.attention[index]
        start = max(first, theirs.first_position)
        rows = _rows(found + 1, theirs, start, missing) + rows
        missing = start
    return rows


def _rows(source: int, cache: AttentionCache, first: int, last: int) -> list[_Rows]:
    return [_Rows(source, cache, run) for run in cache.runs_between(first, last)]


def _covering(index: int, position: int, newest: Layout, older: Sequence[OlderSave]) -> int | None:
    """Which older save holds the row of that token, and of the most tokens before it."""
    best: int | None = None
    reach = position + 1
    for number, save in enumerate(older):
        if position >= min(save.shared_tokens, save.layout.n_tokens) or not _same_form(newest, save.layout):
            continue
        first = save.layout.attention[index].first_position
        if first < reach:
            best, reach = number, first
    return best


def _same_form(a: Layout, b: Layout) -> bool:
    """Whether rows can move between two files: the same caches with the same layers."""

    def form(layout: Layout) -> list[object]:
        return [
            (cache.cell_size, cache.types, [region.row_size for region in cache.regions]) for cache in layout.attention
        ]

    return a.header.version == b.header.version and form(a) == form(b)


def joined(pieces: Iterable[Piece]) -> Plan:
    """The same bytes in as few pieces as possible, none of them empty."""
    plan: list[Piece] = []
    for piece in pieces:
        if not piece.size:
            continue
        match plan[-1] if plan else None, piece:
            case Inline(before), Inline(data):
                plan[-1] = Inline(before + data)
            case Copy(source, before), Copy(same, span) if source == same and before.end == span.offset:
                plan[-1] = Copy(source, Span(before.offset, before.size + span.size))
            case _:
                plan.append(piece)
    return tuple(plan)
