"""Rebuilds slot files from blocks, in several threads. Every block is verified by its hash.

A plan lists the parts of a stored file that make up the new file: all parts if the file is rebuilt as it was saved.
Each byte is written only once.
"""

from __future__ import annotations

import errno
import os
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from io import FileIO
from itertools import zip_longest
from pathlib import Path

import xxhash
from blake3 import blake3

from kvchat.kvstore import disk, memory_files
from kvchat.kvstore.blocks import positioned
from kvchat.kvstore.blocks.block_files import BlockFiles, DamagedBlock, read_residue
from kvchat.kvstore.blocks.layout import CannotCompose, Layout, Plan, Span
from kvchat.kvstore.blocks.parser import SlotFileError, parse
from kvchat.kvstore.blocks.recipe import (
    RESIDUE,
    BlockUse,
    Recipe,
    RecipeError,
    check_complete,
    residue_parts,
    residue_spans,
    row_parts,
)
from kvchat.kvstore.savepoint import CancelCheck, never_cancelled

_MAX_BUFFERS = 256  # buffers per read call; systems allow 1024
_MIN_PREFETCH_BYTES = 1 << 16
_Destinations = list[tuple[int | None, int]]  # (target offset, or None to discard; length)
_Job = tuple[BlockUse, _Destinations]  # a block and the destinations of all its bytes, in order


class RebuildFailed(Exception):
    """A slot file cannot be rebuilt, because of `bad_blocks` or, if this is empty, an invalid recipe."""

    def __init__(self, recipe: Recipe, blocks: BlockFiles) -> None:
        """Find the bad blocks by reading every block of the recipe."""
        self.bad_blocks = {block: size for block, size in recipe.block_sizes.items() if blocks.find_fault(block, size)}
        super().__init__("a block is damaged" if self.bad_blocks else "its recipe was modified")


def compose(
    plan: Plan,
    recipe: Recipe,
    blocks: BlockFiles,
    target: Path,
    cancelled: CancelCheck = never_cancelled,
    *,
    low_priority: bool = False,
) -> None:
    """Compose a file from a stored slot file according to the plan, and write it to `target`.

    `target` is created with mode 0600, or overwritten in place: allocating pages for a file in memory takes longer
    than all else, and several threads can read into existing, mapped pages at once. With `low_priority`, runs at low
    priority. Raises RebuildFailed, OSError if `target` cannot be written, and Cancelled; `target` is then deleted.
    """
    try:
        with memory_files.open_private(target) as file:
            out = _OutputFile(target, file, sum(map(len, plan)))
            copies: list[tuple[Span, int]] = []
            offset = 0
            for piece in plan:
                if isinstance(piece, Span):
                    copies.append((piece, offset))
                else:
                    positioned.write_at(file, piece, offset)
                offset += len(piece)
            jobs = list(_plan_jobs(recipe, copies))
            ahead = [use for use, _ in jobs[positioned.thread_count() :]]
            run = partial(_run_job, blocks=blocks, out=out)
            positioned.run_parallel(list(zip_longest(jobs, ahead)), run, cancelled, low_priority=low_priority)
            file.truncate(offset)
    except (DamagedBlock, RecipeError, IndexError) as error:
        memory_files.delete(target)
        raise RebuildFailed(recipe, blocks) from error
    except BaseException:
        memory_files.delete(target)
        raise


def _plan_jobs(recipe: Recipe, copies: Sequence[tuple[Span, int]]) -> Iterator[_Job]:
    """Yield a job for each block needed for the copies (stored span, target offset). Raises RecipeError."""
    check_complete(recipe)
    residue = residue_spans(recipe.row_map, recipe.file_size)
    copies = sorted(copies, key=lambda copy: copy[0].offset)
    starts = [span.offset for span, _ in copies]
    written = 0
    for use in recipe.uses:
        destinations: _Destinations = []
        if use.cache == RESIDUE:
            for part in residue_parts(residue, use.row, use.rows):
                destinations += _find_destinations(part, copies, starts)
        else:
            cache = recipe.row_map.caches[use.cache]
            after = use.size // cache.row_bytes - use.skip - use.rows
            for region, part in zip(cache.regions, row_parts(cache, use.row, use.rows), strict=True):
                destinations.append((None, use.skip * region.row_size))
                destinations += _find_destinations(part, copies, starts)
                destinations.append((None, after * region.row_size))
        if wanted := sum(length for target, length in destinations if target is not None):
            written += wanted
            yield use, destinations
    if written != sum(span.size for span, _ in copies):
        raise RecipeError("its recipe is incomplete")


def _find_destinations(
    part: Span, copies: Sequence[tuple[Span, int]], starts: Sequence[int]
) -> Iterator[tuple[int | None, int]]:
    """Yield the (target offset, length) of each section of `part`. `starts`: stored offsets of the sorted copies."""
    at, end = part.offset, part.end
    for span, target in copies[max(0, bisect_right(starts, at) - 1) : bisect_left(starts, end)]:
        first, last = max(at, span.offset), min(end, span.end)
        if first < last:
            if first > at:
                yield None, first - at
            yield target + first - span.offset, last - first
            at = last
    if at < end:
        yield None, end - at


def _run_job(jobs: tuple[_Job, BlockUse | None], buffer: memoryview, *, blocks: BlockFiles, out: _OutputFile) -> None:
    """Run a job, and prefetch the block of a later job. Raises DamagedBlock."""
    (use, destinations), later = jobs
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
            xxh3, name = xxhash.xxh3_128(), blake3()
            _copy_block(file, destinations, out, buffer, xxh3)
            if xxh3.digest() == use.xxh3:
                return
            _copy_block(file, destinations, out, buffer, name)  # it decides: the index's XXH3 may be damaged
    except FileNotFoundError as error:
        raise DamagedBlock from error
    if name.digest() != use.block:
        raise DamagedBlock


def _copy_block(
    file: FileIO, destinations: _Destinations, out: _OutputFile, buffer: memoryview, digest: blake3 | xxhash.xxh3_128
) -> None:
    """Read the block sequentially, hash it, and copy it to its destinations. Raises DamagedBlock."""
    read = 0
    for batch in _batches(destinations, len(buffer)):
        buffers, rest = out.buffers(batch, buffer), buffer
        try:
            positioned.read_into(file, buffers, read)
        except (OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno == errno.EFAULT:
                raise  # the target file was truncated; the block is not at fault
            raise DamagedBlock from error
        for filled in buffers:
            digest.update(filled)
        for target, length in batch:
            if out.mapped is None and target is not None:
                positioned.write_at(out.file, rest[:length], target)
            rest, read = rest[length:], read + length


def _batches(destinations: _Destinations, max_bytes: int) -> Iterator[_Destinations]:
    batch: _Destinations = []
    room = max_bytes
    for target, length in destinations:
        while length > 0:
            taken = min(length, room)
            batch.append((target, taken))
            target, length, room = None if target is None else target + taken, length - taken, room - taken
            if not room or len(batch) == _MAX_BUFFERS:
                yield batch
                batch, room = [], max_bytes
    if batch:
        yield batch


class _OutputFile:
    """The output file of `compose`, memory-mapped if at least half of it is allocated."""

    def __init__(self, target: Path, file: FileIO, size: int) -> None:
        allocated = disk.disk_usage(os.fstat(file.fileno())) if sys.platform == "linux" else 0
        self.file = file
        self.mapped = memory_files.map_file(target, file, size) if 0 < size <= 2 * allocated else None

    def buffers(self, batch: _Destinations, buffer: memoryview) -> list[memoryview]:
        """Return the buffers to read a batch into: parts of the mapped file, or of `buffer` if it is not mapped."""
        if self.mapped is None:
            return [buffer[: sum(length for _, length in batch)]]
        buffers = []
        whole = memoryview(self.mapped.bytes)
        for target, length in batch:
            if target is None:
                buffers.append(buffer[:length])
                buffer = buffer[length:]
                continue
            if length >= _MIN_PREFETCH_BYTES:  # else the system maps page by page
                self.mapped.populate(target, length)
            buffers.append(whole[target : target + length])
        return buffers


def stored_layout(recipe: Recipe, blocks: BlockFiles) -> Layout:
    """Parse the layout of a stored slot file, reading only its residue. Raises CannotCompose, RebuildFailed."""
    if not recipe.row_map.caches:
        raise CannotCompose("unknown layout")
    places: list[tuple[Span, int, BlockUse]] = []  # (span in the file, offset in block, block), in file order
    residue = residue_spans(recipe.row_map, recipe.file_size)
    for use in recipe.uses:
        if use.cache == RESIDUE:
            start = 0
            for part in residue_parts(residue, use.row, use.rows):
                places.append((part, start, use))
                start += part.size
    load = lru_cache(1)(partial(read_residue, blocks=blocks))  # one block in memory at a time

    def read(offset: int, count: int) -> bytes:
        data = bytearray()
        for part, start, use in places:
            if part.offset <= offset < part.end and count:
                begin, taken = start + offset - part.offset, min(count, part.end - offset)
                data += load(use)[begin : begin + taken]
                offset, count = offset + taken, count - taken
        return bytes(data)

    try:
        return parse(recipe.file_size, read)
    except SlotFileError as error:
        raise CannotCompose(str(error)) from error
    except DamagedBlock as damage:
        raise RebuildFailed(recipe, blocks) from damage
