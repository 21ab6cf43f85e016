"""Recipes: the blocks that make up a slot file, and the places of their rows. No I/O.

A row map holds the positions of each KV cache's rows in the file; all other bytes are the residue. A block of rows
holds `rows` consecutive rows of one cache: those of the cache's first region, then those of the second, and so on.
A block of residue holds up to 4 MiB of the residue's bytes, in file order. A file of unknown layout is all residue.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from blake3 import blake3

from kvchat.kvstore.blocks.layout import CacheRows, Region, RowMap, Run, Span

BLOCK_ROWS = 256
RESIDUE = -1  # `cache` value of a residue block
RESIDUE_CHUNK_BYTES = 4 << 20
_MAX_MAP_BYTES = 64_000_000
_MAX_VALUE = 1 << 50  # limit for the numbers in a row map


class RecipeError(Exception):
    """A recipe is invalid: regions overlap, blocks leave a gap, or it was modified."""


@dataclass(frozen=True)
class BlockUse:
    block: bytes  # BLAKE3 of the block file
    size: int  # bytes of the block file
    cache: int  # index in the row map, or RESIDUE
    row: int  # first row in the file; for residue: its first byte
    rows: int  # count; for residue: bytes
    skip: int  # rows to skip in the block
    position: int  # token position of the first row; residue: 0
    xxh3: bytes = field(default=b"", compare=False)  # XXH3-128 of the block file; empty if unknown


@dataclass(frozen=True)
class Recipe:
    """Everything needed to rebuild a slot file byte for byte from its blocks."""

    file_size: int
    row_map: RowMap
    uses: tuple[BlockUse, ...]  # in the order of caches and rows, then the residue

    def __post_init__(self) -> None:
        uses = sorted(self.uses, key=lambda use: (use.cache == RESIDUE, use.cache, use.row))
        object.__setattr__(self, "uses", tuple(uses))

    @property
    def block_sizes(self) -> dict[bytes, int]:
        """Sizes of the block files in bytes, by name."""
        return {use.block: use.size for use in self.uses}

    def digest(self) -> bytes:
        """Return a hash of the whole recipe, which detects a damaged index."""
        uses = [[use.block.hex(), use.size, use.cache, use.row, use.rows, use.skip, use.position] for use in self.uses]
        return blake3(pack_row_map(self.row_map) + json.dumps([self.file_size, uses]).encode()).digest(length=16)


def residue_spans(row_map: RowMap, file_size: int) -> tuple[Span, ...]:
    """Return the spans of the file without rows. Raises RecipeError if regions overlap or exceed the file."""
    if any(not cache.regions or min(r.row_size for r in cache.regions) <= 0 for cache in row_map.caches):
        raise RecipeError("a cache has no rows")
    regions = sorted((r.offset, r.row_size * cache.rows) for cache in row_map.caches for r in cache.regions)
    spans: list[Span] = []
    end = 0
    for offset, length in [*regions, (file_size, 0)]:
        if offset < end:
            raise RecipeError("regions overlap or exceed the file")
        if offset > end:
            spans.append(Span(end, offset - end))
        end = offset + length
    return tuple(spans)


def check_complete(recipe: Recipe) -> None:
    """Raise RecipeError unless the recipe's blocks cover every cache row and every residue byte exactly once."""
    caches = recipe.row_map.caches
    expected_rows = {number: cache.rows for number, cache in enumerate(caches)}
    expected_rows[RESIDUE] = sum(span.size for span in residue_spans(recipe.row_map, recipe.file_size))
    row_counts = dict.fromkeys(expected_rows, 0)
    for use in recipe.uses:
        if row_counts.get(use.cache) != use.row or use.rows <= 0 or use.skip < 0:
            raise RecipeError("its recipe is incomplete")
        if use.cache != RESIDUE and (use.skip + use.rows) * caches[use.cache].row_bytes > use.size:
            raise RecipeError("a block is too small")
        row_counts[use.cache] += use.rows
    if row_counts != expected_rows:
        raise RecipeError("its recipe is incomplete")


def row_parts(cache: CacheRows, row: int, rows: int) -> tuple[Span, ...]:
    """Return the spans of the file that hold `rows` rows from `row` on: one per region, in a block's order."""
    return tuple(Span(r.offset + row * r.row_size, rows * r.row_size) for r in cache.regions)


def residue_parts(spans: Sequence[Span], start: int, length: int) -> Iterator[Span]:
    """Yield the spans of the file that hold `length` residue bytes from residue offset `start` on."""
    place = 0
    for span in spans:
        first, last = max(start, place), min(start + length, place + span.size)
        if first < last:
            yield Span(span.offset + first - place, last - first)
        place += span.size


def residue_chunks(spans: Sequence[Span], breaks: Sequence[int]) -> Iterator[Span]:
    """Yield chunks of the residue, as spans within it. No chunk crosses a break or exceeds 4 MiB."""
    starts = {0}
    place = 0
    for span in spans:
        starts |= {place + at - span.offset for at in breaks if span.offset <= at < span.end}
        place += span.size
    for first, last in pairwise([*sorted(starts), place]):
        for start in range(first, last, RESIDUE_CHUNK_BYTES):
            yield Span(start, min(RESIDUE_CHUNK_BYTES, last - start))


def cut_at_blocks(run: Run) -> Iterator[Run]:
    """Split the run at token positions that are multiples of 256."""
    row, position = run.row, run.position
    while row < run.end[0]:
        rows = min(run.end[0] - row, BLOCK_ROWS - position % BLOCK_ROWS)
        yield Run(row, position, rows)
        row, position = row + rows, position + rows


def row_map_to_json(row_map: RowMap) -> list[Any]:
    caches = [
        [[[r.offset, r.row_size] for r in cache.regions], [[r.row, r.position, r.rows] for r in cache.runs]]
        for cache in row_map.caches
    ]
    return [caches, list(row_map.breaks)]


def row_map_from_json(data: Any) -> RowMap:
    """Parse untrusted data in the format of `row_map_to_json`. Raises RecipeError."""
    try:
        caches, breaks = data
        rows = tuple(
            CacheRows(tuple(Region(*_numbers(place)) for place in regions), tuple(Run(*_numbers(run)) for run in runs))
            for regions, runs in caches
        )
        return RowMap(rows, tuple(_numbers(breaks)))
    except (ValueError, TypeError) as error:
        raise RecipeError("row positions are missing") from error


def _numbers(values: list[Any]) -> list[int]:
    if not all(type(value) is int and 0 <= value < _MAX_VALUE for value in values):
        raise ValueError
    return values


def pack_row_map(row_map: RowMap) -> bytes:
    return zlib.compress(json.dumps(row_map_to_json(row_map), separators=(",", ":")).encode(), 6)


def unpack_row_map(packed: bytes) -> RowMap:
    """Unpack a stored row map. Raises RecipeError."""
    try:
        return row_map_from_json(json.loads(zlib.decompressobj().decompress(packed, _MAX_MAP_BYTES)))
    except (ValueError, zlib.error) as error:
        raise RecipeError("its recipe was modified") from error
