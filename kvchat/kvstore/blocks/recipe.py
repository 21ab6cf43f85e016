"""Recipes: which blocks a slot file is put together from, and where their rows go. Pure values and arithmetic.

A row map says where the rows of each KV cache lie in the file; whatever is no row is the residue. A block of rows holds
`rows` consecutive rows of one cache: those of the cache's first region, then those of the second, and so on. A block of
residue holds up to 4 MiB of the residue's bytes, in file order. A file of unknown layout is residue from end to end.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from blake3 import blake3

from kvchat.kvstore.blocks.layout import CacheRows, Region, RowMap, Run, Span

BLOCK_ROWS = 256
RESIDUE = -1  # the `cache` of a block of residue
RESIDUE_CHUNK = 4 << 20
_MAX_MAP_BYTES = 64_000_000


class RecipeError(Exception):
    """The numbers do not describe a file: regions overlap, blocks leave a hole, or bytes were changed."""


@dataclass(frozen=True)
class BlockUse:
    """A part of a slot file that comes out of one block."""

    block: bytes  # BLAKE3 of the block file
    size: int  # bytes of the block file
    cache: int  # index in the row map, or RESIDUE
    row: int  # first row in the file; of residue: first byte in the residue
    rows: int  # how many; of residue: bytes
    skip: int  # rows of the block before them
    position: int  # token position of the first row; of residue: 0
    xxh3: bytes | None = field(default=None, compare=False)  # XXH3-128 of the block file; None if nobody computed it


@dataclass(frozen=True)
class Recipe:
    """All it takes to rebuild a slot file byte for byte."""

    file_size: int
    row_map: RowMap
    uses: tuple[BlockUse, ...]
    file_hash: bytes = b""  # BLAKE3 of the file, in recipes of earlier versions: part of their seal

    def seal(self) -> bytes:
        """A hash over the whole recipe: an index that was damaged must not put rows in the wrong place."""
        facts = [self.file_size, self.file_hash.hex(), [_use_facts(use) for use in self.uses]]
        return blake3(pack_row_map(self.row_map) + json.dumps(facts).encode()).digest(length=16)


@dataclass(frozen=True)
class Earlier:
    """An absorbed save point that begins with the same tokens."""

    recipe: Recipe
    shared: int  # leading tokens
    unchanged: int = 0  # of those, how many have rows that are the engine's very same ones: see `take_apart`


def residue_spans(row_map: RowMap, file_size: int) -> tuple[Span, ...]:
    """What of the file is no row. Raises RecipeError where regions overlap or reach beyond the file."""
    if any(not cache.regions or min(r.row_size for r in cache.regions) <= 0 for cache in row_map.caches):
        raise RecipeError("a cache without rows")
    taken = sorted(
        (region.offset, region.row_size * cache.rows) for cache in row_map.caches for region in cache.regions
    )
    spans: list[Span] = []
    end = 0
    for offset, length in taken:
        if offset < end:
            raise RecipeError("regions overlap")
        if offset > end:
            spans.append(Span(end, offset - end))
        end = offset + length
    if end > file_size:
        raise RecipeError("a region reaches beyond the file")
    if end < file_size:
        spans.append(Span(end, file_size - end))
    return tuple(spans)


def check_whole(recipe: Recipe) -> None:
    """Raise RecipeError unless the uses give every row of every cache, and every byte of the residue, exactly once."""
    caches = recipe.row_map.caches
    wanted = {number: cache.rows for number, cache in enumerate(caches)}
    wanted[RESIDUE] = sum(span.size for span in residue_spans(recipe.row_map, recipe.file_size))
    given = dict.fromkeys(wanted, 0)
    for use in sorted(recipe.uses, key=lambda use: (use.cache, use.row)):
        if given.get(use.cache) != use.row or use.rows <= 0 or use.skip < 0:
            raise RecipeError("its recipe leaves a hole")
        if use.cache != RESIDUE and (use.skip + use.rows) * caches[use.cache].row_bytes > use.size:
            raise RecipeError("a block is too small")
        given[use.cache] += use.rows
    if given != wanted:
        raise RecipeError("its recipe leaves a hole")


def row_parts(cache: CacheRows, row: int, rows: int) -> tuple[Span, ...]:
    """Where some rows lie in the file, region by region: the content of their block, in order."""
    return tuple(Span(r.offset + row * r.row_size, rows * r.row_size) for r in cache.regions)


def residue_parts(spans: Sequence[Span], start: int, length: int) -> Iterator[Span]:
    """Where bytes `start` to `start + length` of the residue lie in the file."""
    place = 0
    for span in spans:
        first = max(start, place)
        last = min(start + length, place + span.size)
        if first < last:
            yield Span(span.offset + first - place, last - first)
        place += span.size


def residue_chunks(spans: Sequence[Span], breaks: Sequence[int]) -> Iterator[Span]:
    """The residue in chunks, as offsets within it: none crosses a break, none is longer than 4 MiB."""
    starts = {0}
    place = 0
    for span in spans:
        starts |= {place + at - span.offset for at in breaks if span.offset <= at < span.end}
        place += span.size
    edges = [*sorted(starts), place]
    for first, last in pairwise(edges):
        for start in range(first, last, RESIDUE_CHUNK):
            yield Span(start, min(RESIDUE_CHUNK, last - start))


def cut_at_blocks(run: Run) -> Iterator[Run]:
    """The run in parts of at most 256 rows, cut at token positions that are multiples of 256."""
    done = 0
    while done < run.rows:
        position = run.position + done
        rows = min(run.rows - done, BLOCK_ROWS - position % BLOCK_ROWS)
        yield Run(run.row + done, position, rows)
        done += rows


@dataclass(frozen=True)
class RowSpan:
    """Rows of a cache of the file."""

    cache: int
    run: Run
    known: BlockUse | None  # rows that are in a block already, according to the save point that comes before
    unchanged: bool  # they are believed to be, see `take_apart`

    def use(self) -> BlockUse:
        """The rows as part of the known block."""
        assert self.known is not None
        run, skip = self.run, self.known.skip + self.run.position - self.known.position
        return replace(self.known, cache=self.cache, row=run.row, rows=run.rows, skip=skip, position=run.position)


def known_rows(before: Earlier | None, number: int, cache: CacheRows) -> list[BlockUse]:
    """The earlier save point's rows of this cache at the shared positions, by position."""
    if before is None or number >= len(before.recipe.row_map.caches):
        return []
    theirs = before.recipe.row_map.caches[number]
    if [region.row_size for region in theirs.regions] != [region.row_size for region in cache.regions]:
        return []
    mine = [use for use in before.recipe.uses if use.cache == number and use.position < before.shared]
    mine.sort(key=lambda use: use.position)
    return [replace(use, rows=min(use.rows, before.shared - use.position)) for use in mine]


def unchanged_of(before: Earlier | None, number: int, cache: CacheRows) -> int:
    """How many leading tokens' rows of this cache are believed to be those of the earlier save point."""
    if before is None or number >= len(before.recipe.row_map.caches):
        return 0
    return before.unchanged if cache.kind == before.recipe.row_map.caches[number].kind == "full" else 0


def spans_of(number: int, run: Run, known: Sequence[BlockUse], unchanged: int) -> Iterator[RowSpan]:
    """The run in parts, each with the rows known at its positions."""
    done = run.position
    end = run.position + run.rows

    def part(first: int, last: int, one: BlockUse | None) -> RowSpan:
        return RowSpan(number, Run(run.row + first - run.position, first, last - first), one, last <= unchanged)

    for one in known:
        first = max(done, one.position)
        last = min(end, one.position + one.rows)
        if first >= last:
            continue
        if first > done:
            yield part(done, first, None)
        yield part(first, last, one)
        done = last
    if done < end:
        yield part(done, end, None)


def samples_of(known: Sequence[RowSpan]) -> list[RowSpan]:
    """Of the unchanged spans of each cache the last and another: what is read of them."""
    of_caches: dict[int, list[RowSpan]] = {}
    for span in known:
        if span.unchanged:
            of_caches.setdefault(span.cache, []).append(span)
    return [one for spans in of_caches.values() for one in (spans[-1], *random.sample(spans[:-1], len(spans) > 1))]


def pack_row_map(row_map: RowMap) -> bytes:
    """The row map as compressed JSON."""
    facts = [
        [cache.kind, [[r.offset, r.row_size] for r in cache.regions], [[r.row, r.position, r.rows] for r in cache.runs]]
        for cache in row_map.caches
    ]
    return zlib.compress(json.dumps([facts, row_map.breaks], separators=(",", ":")).encode(), 6)


def unpack_row_map(packed: bytes) -> RowMap:
    """The row map out of `pack_row_map`. Raises RecipeError."""
    try:
        facts, breaks = json.loads(zlib.decompressobj().decompress(packed, _MAX_MAP_BYTES))
        caches = [
            CacheRows(tuple(Region(*pair) for pair in regions), tuple(Run(*run) for run in runs))
            for _, regions, runs in facts
        ]
        if [cache.kind for cache in caches] != [kind for kind, _, _ in facts]:
            raise RecipeError("its recipe was changed")
    except (ValueError, TypeError, zlib.error) as error:
        raise RecipeError("its recipe was changed") from error
    return RowMap(tuple(caches), tuple(breaks))


def _use_facts(use: BlockUse) -> list[int | str]:
    return [use.block.hex(), use.size, use.cache, use.row, use.rows, use.skip, use.position]
