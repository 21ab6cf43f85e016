"""Absorbing: a slot file is taken apart into blocks, of which only those not known yet are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from kvchat.kvstore import disk
from kvchat.kvstore.blocks import BlockFiles, Changed
from kvchat.kvstore.recipe import (
    RESIDUE,
    BlockUse,
    CacheRows,
    Extent,
    Recipe,
    RecipeError,
    RowMap,
    Run,
    cut_at_blocks,
    residue_chunks,
    residue_extents,
    residue_parts,
    row_parts,
)
from kvchat.kvstore.residue import pack_residue

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Known:
    """Rows that are in a block already, according to the save point that comes before."""

    use: BlockUse
    block_rows: int


@dataclass(frozen=True)
class Absorbed:
    """A slot file taken apart: all its blocks are in place, nothing refers to them yet."""

    recipe: Recipe
    written: int  # bytes of blocks


def take_apart(
    slot_file: Path, row_map: RowMap, predecessor: Recipe | None, shared: int, blocks: BlockFiles
) -> Absorbed:
    """Take the file apart and write the blocks that are missing.

    `predecessor` is a save point with the same first `shared` tokens: rows it has blocks for, with the very same
    bytes, are not written again. Raises OSError, and blocks.Changed if the file changes meanwhile.
    """
    size = slot_file.stat().st_size
    try:
        extents = residue_extents(row_map, size)
    except RecipeError:
        row_map, extents = RowMap(), residue_extents(RowMap(), size)
    file_hash = bytes.fromhex(disk.hash_file(slot_file))
    uses: list[BlockUse] = []
    written = 0
    with slot_file.open("rb", buffering=0) as file:
        for number, cache in enumerate(row_map.caches):
            known = _known(predecessor, number, cache, shared)
            for use, new in _take_rows(file, number, cache, known, blocks):
                uses.append(use)
                written += new
        for use, new in _take_residue(file, extents, row_map, blocks):
            uses.append(use)
            written += new
    return Absorbed(Recipe(size, file_hash, row_map, tuple(uses)), written)


def _known(predecessor: Recipe | None, number: int, cache: CacheRows, shared: int) -> list[Known]:
    """The predecessor's rows of this cache at the shared positions, by position."""
    if predecessor is None or number >= len(predecessor.row_map.caches):
        return []
    before = predecessor.row_map.caches[number]
    if [region.row_size for region in before.regions] != [region.row_size for region in cache.regions]:
        return []
    mine = [use for use in predecessor.uses if use.cache == number and use.position < shared]
    mine.sort(key=lambda use: use.position)
    usable = [replace(use, rows=min(use.rows, shared - use.position)) for use in mine]
    return [Known(use, use.size // cache.row_bytes) for use in usable]


def _take_rows(
    file: BinaryIO, number: int, cache: CacheRows, known: Sequence[Known], blocks: BlockFiles
) -> Iterator[tuple[BlockUse, int]]:
    """All rows of one cache as uses of blocks, each with the bytes written for it."""
    for run in cache.runs:
        new: Run | None = None  # grows over neighbouring spans, so that it is cut at multiples of 256 alone
        for span, match in _spans(run, known):
            use = _reuse(file, number, cache, span, match, blocks) if match else None
            if use is None:
                new = Run(new.row, new.position, new.rows + span.rows) if new else span
                continue
            if new:
                yield from _write_rows(file, number, cache, new, blocks)
                new = None
            yield use, 0
        if new:
            yield from _write_rows(file, number, cache, new, blocks)


def _spans(run: Run, known: Sequence[Known]) -> Iterator[tuple[Run, Known | None]]:
    """The run in parts, each with the rows known at its positions."""
    done = run.position
    end = run.position + run.rows

    def part(first: int, last: int) -> Run:
        return Run(run.row + first - run.position, first, last - first)

    for one in known:
        first = max(done, one.use.position)
        last = min(end, one.use.position + one.use.rows)
        if first >= last:
            continue
        if first > done:
            yield part(done, first), None
        yield part(first, last), one
        done = last
    if done < end:
        yield part(done, end), None


def _reuse(
    file: BinaryIO, number: int, cache: CacheRows, span: Run, known: Known, blocks: BlockFiles
) -> BlockUse | None:
    """The block use for rows that are in a known block, None unless the bytes are the very same."""
    block, size = known.use.block, known.use.size
    skip = known.use.skip + span.position - known.use.position
    if blocks.claim(block, size) is None:
        return None
    if span.rows == known.block_rows:
        same = _hash_parts(file, row_parts(cache, span.row, span.rows)) == block
    else:
        same = _equal_rows(file, cache, span, blocks.path(block), skip, known.block_rows)
    return BlockUse(block, size, number, span.row, span.rows, skip, span.position) if same else None


def _equal_rows(file: BinaryIO, cache: CacheRows, span: Run, block: Path, skip: int, block_rows: int) -> bool:
    """Whether rows of the file are the bytes of some rows of a block."""
    start = 0
    try:
        with block.open("rb", buffering=0) as there:
            for region, part in zip(cache.regions, row_parts(cache, span.row, span.rows), strict=True):
                other = Extent(start + skip * region.row_size, part.length)
                start += block_rows * region.row_size
                for one, two in zip(_read(file, [part]), _read(there, [other]), strict=True):
                    if one != two:
                        return False
    except Changed:
        return False
    return True


def _write_rows(
    file: BinaryIO, number: int, cache: CacheRows, run: Run, blocks: BlockFiles
) -> Iterator[tuple[BlockUse, int]]:
    for part in cut_at_blocks(run):
        parts = row_parts(cache, part.row, part.rows)
        block = _hash_parts(file, parts)
        size = part.rows * cache.row_bytes
        new = 0 if blocks.claim(block, size) is not None else blocks.put(block, _read(file, parts))
        yield BlockUse(block, size, number, part.row, part.rows, 0, part.position), new


def _take_residue(
    file: BinaryIO, extents: Sequence[Extent], row_map: RowMap, blocks: BlockFiles
) -> Iterator[tuple[BlockUse, int]]:
    """The residue in chunks; deflated where that makes it clearly smaller."""
    known_layout = row_map != RowMap()
    for chunk in residue_chunks(extents, row_map.breaks):
        raw = b"".join(_read(file, residue_parts(extents, chunk.offset, chunk.length)))
        mark, packed = pack_residue(raw, deflate=known_layout)
        hasher = blake3(mark)
        hasher.update(packed)
        block, size = hasher.digest(), 1 + len(packed)
        new = 0 if blocks.claim(block, size) is not None else blocks.put(block, (mark, packed))
        yield BlockUse(block, size, RESIDUE, chunk.offset, chunk.length, 0, 0), new


def _hash_parts(file: BinaryIO, parts: Sequence[Extent]) -> bytes:
    hasher = blake3()
    for chunk in _read(file, parts):
        hasher.update(chunk)
    return hasher.digest()


def _read(file: BinaryIO, parts: Sequence[Extent] | Iterator[Extent]) -> Iterator[bytes]:
    """The bytes of some extents, 1 MiB at most at a time. Raises Changed where the file is shorter."""
    for part in parts:
        file.seek(part.offset)
        left = part.length
        while left:
            chunk = file.read(min(left, _CHUNK))
            if not chunk:
                raise Changed("the file is shorter than it was")
            left -= len(chunk)
            yield chunk
