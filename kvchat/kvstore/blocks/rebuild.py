"""Rebuilds slot files from blocks, several at a time, each verified before anyone may use the file.

A plan says which bytes of a stored file make the new one; a file as it was saved is the plan that takes all of it.
Every block is verified by its hash, the recipe by its seal, and every byte is written once.
"""

from __future__ import annotations

import errno
import os
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from io import FileIO
from itertools import zip_longest
from pathlib import Path

from kvchat.kvstore import disk, memory_files
from kvchat.kvstore.blocks import positioned
from kvchat.kvstore.blocks.block_files import BlockFiles, DamagedBlock, read_residue
from kvchat.kvstore.blocks.layout import CannotCompose, Layout, Plan, Span, UnknownLayout, piece_size, plan_size
from kvchat.kvstore.blocks.parser import parse
from kvchat.kvstore.blocks.recipe import (
    RESIDUE,
    BlockUse,
    Recipe,
    RecipeError,
    check_whole,
    residue_parts,
    residue_spans,
    row_parts,
)
from kvchat.kvstore.savepoint import CancelCheck, never

_MAX_BUFFERS = 256  # buffers per read call; systems allow 1024
_MIN_PREFETCH_BYTES = 1 << 16  # bytes
_Destinations = list[tuple[int | None, int]]  # (target, or None to discard; length)
_Job = tuple[BlockUse, _Destinations]  # a block and the targets of all its bytes, in order


class Unusable(Exception):
    """The file cannot be rebuilt: blocks are bad, or, if `bad` is empty, the recipe is wrong."""

    def __init__(self, bad: dict[bytes, int]) -> None:
        """`bad`: expected size of each bad block, by name."""
        super().__init__("a block is damaged" if bad else "its recipe was changed")
        self.bad = bad


def compose(
    plan: Plan,
    recipe: Recipe,
    blocks: BlockFiles,
    target: Path,
    cancelled: CancelCheck = never,
    *,
    low_priority: bool = False,
) -> None:
    """Carry out a plan on a stored slot file.

    `target` is created with mode 0600, or overwritten in place: allocating pages for a file in memory takes longer
    than everything else, and several threads can read at once into existing, mapped pages. `low_priority`: run at low
    priority. Raises Unusable after checking every block, OSError if `target` cannot be written, and Cancelled.
    On any failure no file is left.
    """
    try:
        with memory_files.open_private(target) as file:
            out = _OutputFile(target, file, plan_size(plan))
            copies: list[tuple[Span, int]] = []
            offset = 0
            for piece in plan:
                if isinstance(piece, Span):
                    copies.append((piece, offset))
                else:
                    positioned.write_at(file, piece, offset)
                offset += piece_size(piece)
            jobs = list(_jobs(recipe, _Placement(copies)))
            ahead = [use for use, _ in jobs[positioned.threads() :]]
            do = partial(_run_job, blocks=blocks, out=out)
            positioned.run_parallel(list(zip_longest(jobs, ahead)), do, cancelled, low_priority=low_priority)
            file.truncate(offset)
    except (DamagedBlock, RecipeError, IndexError) as error:
        memory_files.delete(target)
        raise Unusable(_bad_blocks(recipe, blocks)) from error
    except BaseException:
        memory_files.delete(target)
        raise


class _Placement:
    def __init__(self, copies: Sequence[tuple[Span, int]]) -> None:
        self._copies = sorted(copies, key=lambda copy: copy[0].offset)
        self._starts = [span.offset for span, _ in self._copies]
        self.size = sum(span.size for span, _ in self._copies)

    def targets(self, part: Span) -> Iterator[tuple[int | None, int]]:
        """Yield target offset (None to skip) and length for each piece of the part, in order."""
        at, end = part.offset, part.end
        index = max(0, bisect_right(self._starts, at) - 1)
        while at < end and index < len(self._copies):
            span, target = self._copies[index]
            first, last = max(at, span.offset), min(end, span.end)
            if first < last:
                if first > at:
                    yield None, first - at
                yield target + first - span.offset, last - first
                at = last
            index += 1
            if span.offset >= end:
                break
        if at < end:
            yield None, end - at


def _jobs(recipe: Recipe, placement: _Placement) -> Iterator[_Job]:
    """Yield the jobs for the recipe's blocks that the plan uses. Raises RecipeError."""
    check_whole(recipe)
    residue = residue_spans(recipe.row_map, recipe.file_size)
    written = 0
    for use in recipe.uses:
        destinations: _Destinations = []
        if use.cache == RESIDUE:
            for part in residue_parts(residue, use.row, use.rows):
                destinations += placement.targets(part)
        else:
            cache = recipe.row_map.caches[use.cache]
            after = use.size // cache.row_bytes - use.skip - use.rows
            for region, part in zip(cache.regions, row_parts(cache, use.row, use.rows), strict=True):
                destinations.append((None, use.skip * region.row_size))
                destinations += placement.targets(part)
                destinations.append((None, after * region.row_size))
        if wanted := sum(length for target, length in destinations if target is not None):
            written += wanted
            yield use, destinations
    if written != placement.size:
        raise RecipeError("its recipe leaves a hole")


def _run_job(work: tuple[_Job, BlockUse | None], buffer: memoryview, *, blocks: BlockFiles, out: _OutputFile) -> None:
    """Do a job, and prefetch the block of a later one. Raises DamagedBlock."""
    (use, destinations), later = work
    if later is not None:
        positioned.prefetch(blocks.path(later.block))
    if use.cache == RESIDUE:
        residue = memoryview(read_residue(use, blocks))
        for target, length in destinations:
            if target is not None:
                positioned.write_at(out.file, residue[:length], target)
            residue = residue[length:]
        return
    try:
        with blocks.path(use.block).open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != use.size:
                raise DamagedBlock
            digests = positioned.Digests(name=False)
            _scatter(file, destinations, out, buffer, digests)
            if digests.xxh3 == use.xxh3:
                return
            digests = positioned.Digests()  # the name decides: the index's XXH3 may be damaged
            _scatter(file, destinations, out, buffer, digests)
    except FileNotFoundError as error:
        raise DamagedBlock from error
    if digests.name != use.block:
        raise DamagedBlock


def _scatter(
    file: FileIO, destinations: _Destinations, out: _OutputFile, buffer: memoryview, digests: positioned.Digests
) -> None:
    """Read the block once, sequentially, into its target places. Raises DamagedBlock."""
    read = 0
    for batch in _batches(destinations, len(buffer)):
        places, rest = out.places(batch, buffer), buffer
        try:
            positioned.read_into(file, places, read)
        except (OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno == errno.EFAULT:
                raise  # the target file was truncated; the block is not at fault
            raise DamagedBlock from error
        for place in places:
            digests.add(place)
        for target, length in batch:
            if out.mapped is None and target is not None:
                positioned.write_at(out.file, rest[:length], target)
            rest, read = rest[length:], read + length


def _batches(destinations: _Destinations, most: int) -> Iterator[_Destinations]:
    batch: _Destinations = []
    room = most
    for target, length in destinations:
        while length > 0:
            taken = min(length, room)
            batch.append((target, taken))
            target, length, room = None if target is None else target + taken, length - taken, room - taken
            if not room or len(batch) == _MAX_BUFFERS:
                yield batch
                batch, room = [], most
    if batch:
        yield batch


class _OutputFile:
    """The output file, mapped if most of its pages are already allocated."""

    def __init__(self, target: Path, file: FileIO, size: int) -> None:
        there = disk.disk_usage(os.fstat(file.fileno())) if sys.platform == "linux" else 0
        self.file = file
        self.mapped = memory_files.mapped(target, file, size) if 0 < size <= 2 * there else None

    def places(self, batch: _Destinations, buffer: memoryview) -> list[memoryview]:
        """Return where to read to: the mapped target, or the buffer to write from."""
        if self.mapped is None:
            return [buffer[: sum(length for _, length in batch)]]
        found = []
        whole = memoryview(self.mapped.bytes)
        for target, length in batch:
            if target is None:
                found.append(buffer[:length])
                buffer = buffer[length:]
                continue
            if length >= _MIN_PREFETCH_BYTES:  # else the system maps page by page
                self.mapped.populate(target, length)
            found.append(whole[target : target + length])
        return found


def _bad_blocks(recipe: Recipe, blocks: BlockFiles) -> dict[bytes, int]:
    sizes = {use.block: use.size for use in recipe.uses}
    return {block: size for block, size in sizes.items() if blocks.fault(block, size)}


def stored_layout(recipe: Recipe, blocks: BlockFiles) -> Layout:
    """Parse the layout of a stored slot file from its residue alone. Raises CannotCompose, Unusable."""
    if not recipe.row_map.caches:
        raise CannotCompose("its layout is unknown")
    try:
        return parse(recipe.file_size, _Residue(recipe, blocks).read)
    except UnknownLayout as error:
        raise CannotCompose(str(error)) from error
    except DamagedBlock as damage:
        raise Unusable(_bad_blocks(recipe, blocks)) from damage


class _Residue:
    """Reads a stored slot file except its rows, with one block of residue in memory at a time."""

    def __init__(self, recipe: Recipe, blocks: BlockFiles) -> None:
        self._blocks = blocks
        self._places: list[tuple[Span, int, BlockUse]] = []  # (span in the file, offset in block, block)
        residue = residue_spans(recipe.row_map, recipe.file_size)
        for use in recipe.uses:
            start = 0
            for part in residue_parts(residue, use.row, use.rows) if use.cache == RESIDUE else ():
                self._places.append((part, start, use))
                start += part.size
        self._places.sort(key=lambda place: place[0].offset)
        self._read: tuple[BlockUse, bytes] | None = None

    def read(self, offset: int, count: int) -> bytes:
        found = bytearray()
        for part, start, use in self._places:
            if part.offset <= offset < part.end and count:
                taken = min(count, part.end - offset)
                begin = start + offset - part.offset
                found += self._block(use)[begin : begin + taken]
                offset += taken
                count -= taken
        return bytes(found)

    def _block(self, use: BlockUse) -> bytes:
        if self._read is None or self._read[0] != use:
            self._read = (use, read_residue(use, self._blocks))
        return self._read[1]
