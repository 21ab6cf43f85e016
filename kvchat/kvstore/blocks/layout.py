"""The layout of slot files, and plans for new files composed from stored ones. No I/O.

A slot file consists of a header, the caches and the engine's context checkpoints, without gaps. A layout (created by
`parser.py`) has offsets and counts, but no rows, so it takes a few KB whatever the file's size. The store keeps its
row map: the positions of the rows, and the offsets at which to split the rest.

A plan describes a new file as a sequence of literal bytes and ranges of the stored file. The new file is cut to a
prefix, or has the row that a sliding window needs. `rebuild.py` executes plans.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass


class CannotCompose(Exception):
    """A file cannot be composed from the stored one; the message is for the log."""


@dataclass(frozen=True)
class Span:
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size

    def __len__(self) -> int:
        return self.size


@dataclass(frozen=True)
class Header:
    span: Span
    version: int
    is_wrapped: bool  # True: -1, 1, n, tokens, n_media, media… (newer servers); else bare tokens
    tokens: Span  # token ids only, 4 bytes each
    media: Span | None = None  # n_media and the data after it; None without images


@dataclass(frozen=True)
class Region:
    """The contiguous K or V rows of one layer in one cache."""

    offset: int  # of the first row
    row_size: int  # bytes

    @property
    def head(self) -> Span:
        return Span(self.offset - 12, 12)


@dataclass(frozen=True)
class Run:
    """Rows of consecutive tokens. Row `row + i` of the cache belongs to token `position + i`."""

    row: int
    position: int
    rows: int  # count

    @property
    def end(self) -> tuple[int, int]:
        """The row and the token position after the last row."""
        return self.row + self.rows, self.position + self.rows


@dataclass(frozen=True)
class CacheRows:
    """The positions of a KV cache's rows. Their tokens are a contiguous range that ends with the file's last token."""

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
    def is_window(self) -> bool:
        """True if the rows of the oldest tokens are missing, because these tokens have left the sliding window."""
        return self.first_position > 0

    def runs_between(self, first: int, end: int) -> tuple[Run, ...]:
        """Return the runs of tokens with first ≤ position < end, in order of position."""
        cut = []
        for run in sorted(self.runs, key=lambda run: run.position):
            start, stop = max(first, run.position), min(end, run.end[1])
            if start < stop:
                cut.append(Run(run.row + start - run.position, start, stop - start))
        return tuple(cut)


@dataclass(frozen=True)
class AttentionCache(CacheRows):
    cells: Span  # metadata of each row, `cell_size` bytes each
    cell_size: int  # 12, or 24 if cells carry M-RoPE positions and their token

    @property
    def data_head(self) -> Span:
        """The span of the fields v_trans, n_layer, n_rot_k and n_rot_v."""
        return Span(self.cells.end, 16)

    @property
    def end(self) -> int:
        return max((r.offset + self.rows * r.row_size for r in self.regions), default=self.data_head.end)


@dataclass(frozen=True)
class RowMap:
    """The positions of all rows in a slot file; without caches if the layout is unknown or has no rows."""

    caches: tuple[CacheRows, ...] = ()
    breaks: tuple[int, ...] = ()  # file offsets at which the residue is split, see `Layout.row_map`


@dataclass(frozen=True)
class RecurrentState(Span):
    """The state of the recurrent layers after the last token. It cannot be cut to fewer tokens."""


@dataclass(frozen=True)
class Checkpoint(Span):
    """A context checkpoint of the server: a copy of window rows or recurrent state. Later saves repeat it."""

    n_tokens: int  # number of tokens to which the engine can roll back
    first_position: int  # token position of its oldest row; of the last token for recurrent state


Cache = AttentionCache | RecurrentState


@dataclass(frozen=True)
class Layout:
    """The layout of a slot file. Its parts cover each of the `size` bytes exactly once."""

    size: int
    header: Header
    caches: tuple[Cache, ...]  # in file order
    checkpoint_head: Span | None  # the engine's "SCKP" appendix: magic, version, count
    checkpoints: tuple[Checkpoint, ...]

    @property
    def n_tokens(self) -> int:
        return self.header.tokens.size // 4

    @property
    def attention_caches(self) -> tuple[AttentionCache, ...]:
        return tuple(cache for cache in self.caches if isinstance(cache, AttentionCache))

    @property
    def recurrent_state(self) -> RecurrentState | None:
        return next((cache for cache in self.caches if isinstance(cache, RecurrentState)), None)

    @property
    def window_caches(self) -> tuple[AttentionCache, ...]:
        return tuple(cache for cache in self.attention_caches if cache.is_window)

    @property
    def row_map(self) -> RowMap:
        """The file's row map, with breaks around recurrent state and checkpoints, as later saves may repeat these."""
        caches = tuple(
            CacheRows(tuple(region for region in cache.regions if region.row_size), cache.runs)
            for cache in self.attention_caches
            if cache.row_bytes  # a hybrid without attention layers has cells but no rows
        )
        own = [span for span in (*self.checkpoints, self.recurrent_state) if span is not None]
        return RowMap(caches, tuple(sorted({edge for span in own for edge in (span.offset, span.end)})))


Piece = bytes | Span  # literal bytes or a range of the stored file
Plan = tuple[Piece, ...]


def cut(layout: Layout, n_tokens: int) -> Plan:
    """Plan a file of only the first `n_tokens` tokens, identical to one saved by the engine.

    Raises CannotCompose if the state contains images, recurrent layers or a window that has lost its oldest rows.
    """
    if not 0 < n_tokens <= layout.n_tokens:
        raise CannotCompose(f"cannot keep {n_tokens} of {layout.n_tokens} tokens")
    if n_tokens < layout.n_tokens:
        if layout.header.media is not None:
            raise CannotCompose("it contains images")  # the engine truncates it
        if layout.recurrent_state is not None:
            raise CannotCompose("recurrent state cannot be shortened")
        if layout.window_caches:
            raise CannotCompose(f"its sliding window starts at token {layout.window_caches[0].first_position:,}")
    return _compose(layout, n_tokens)


def with_masked_rows(layout: Layout, window: int) -> Plan:
    """Plan the file with a row of zeros added to each window cache that has lost rows.

    Without checkpoints in the file, the engine uses a window only if its oldest row is older than the next token's
    window of `window` tokens, but saves no row that old (llama.cpp b11434, tools/server/server-context.cpp,
    `pos_min_thold`). The added row is masked for all later tokens, since the engine goes back by one token at most,
    which the saved rows allow. Raises CannotCompose if the rows do not match a window of this size.
    """
    n_tokens = layout.n_tokens
    starts = (n_tokens - window, (n_tokens - 1) // window * window)  # window or chunk (llama4) start
    if not layout.window_caches or any(cache.first_position not in starts for cache in layout.window_caches):
        raise CannotCompose(f"its rows do not match a sliding window of {window:,} tokens")
    return _compose(layout, n_tokens, max(0, n_tokens - window - 2))


def _compose(layout: Layout, n_tokens: int, masked_position: int | None = None) -> Plan:
    """Plan a file of `n_tokens` tokens. `masked_position`: token position of a row of zeros for window caches."""
    header, media = layout.header, layout.header.media
    pieces: list[Piece] = [Span(0, 8)]  # magic and version
    if header.is_wrapped:
        words = 3 + n_tokens + (media.size // 4 if media is not None else 1)
        pieces.append(struct.pack("<IiII", words, -1, 1, n_tokens))
    else:
        pieces.append(struct.pack("<I", n_tokens))
    pieces.append(Span(header.tokens.offset, 4 * n_tokens))
    if header.is_wrapped:
        pieces.append(media if media is not None else struct.pack("<I", 0))
    for cache in layout.caches:
        if isinstance(cache, RecurrentState):
            pieces.append(cache)
        else:
            pieces += _cache_pieces(cache, n_tokens, masked_position if cache.is_window else None)
    checkpoints = [checkpoint for checkpoint in layout.checkpoints if checkpoint.n_tokens <= n_tokens]
    if layout.checkpoint_head is not None and checkpoints:  # servers write no empty appendix
        pieces += [Span(layout.checkpoint_head.offset, 8), struct.pack("<I", len(checkpoints)), *checkpoints]
    plan: list[Piece] = []  # with adjacent pieces merged
    for piece in pieces:
        before = plan[-1] if plan else None
        if isinstance(before, bytes) and isinstance(piece, bytes):
            plan[-1] = before + piece
        elif isinstance(before, Span) and isinstance(piece, Span) and before.end == piece.offset:
            plan[-1] = Span(before.offset, before.size + piece.size)
        elif len(piece):
            plan.append(piece)
    return tuple(plan)


def _cache_pieces(cache: AttentionCache, n_tokens: int, masked_position: int | None) -> Iterator[Piece]:
    has_masked_row = masked_position is not None
    runs = cache.runs if has_masked_row else cache.runs_between(0, n_tokens)
    yield struct.pack("<II", 1, sum(run.rows for run in runs) + has_masked_row)
    if masked_position is not None:
        yield struct.pack("<ii", masked_position, 1) + bytes(cache.cell_size - 8)
    for run in runs:
        yield Span(cache.cells.offset + run.row * cache.cell_size, run.rows * cache.cell_size)
    yield cache.data_head
    for region in cache.regions:
        yield region.head
        if has_masked_row:
            yield bytes(region.row_size)
        for run in runs:
            yield Span(region.offset + run.row * region.row_size, run.rows * region.row_size)
