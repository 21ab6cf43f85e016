"""Putting slot files together out of blocks, several at a time, each proved on its way before anyone may use the file.

There is one path: a plan says which bytes of which stored files make the new one, and a file as it was saved is the
plan that takes all of one. Every block is proved by its hash, the recipe by its seal, and every byte is written once:
that is what the hash of a whole file would say, which earlier versions kept as well.
"""

from __future__ import annotations

import errno
import os
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import FileIO
from itertools import chain
from pathlib import Path

from kvchat.kvstore import disk, memory_files
from kvchat.kvstore.blocks import positioned
from kvchat.kvstore.blocks.block_files import BlockFiles, DamagedBlock, read_residue
from kvchat.kvstore.blocks.layout import Span
from kvchat.kvstore.blocks.plan import Copy, Inline, Plan
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

_MOST_AT_ONCE = 256  # places that one call reads into; systems take 1024
_WORTH_ASKING = 1 << 16  # bytes
_Goals = list[tuple[int | None, int]]  # where bytes go, None for nowhere, and how many
Hashes = dict[bytes, bytes]  # the XXH3 of blocks


@dataclass(frozen=True)
class BadBlock:
    """A block that is not what its name says."""

    block: bytes
    size: int  # what it should be
    reason: str


class Unusable(Exception):
    """The file cannot be rebuilt: blocks are bad, or, if `bad` is empty, the recipe itself is wrong."""

    def __init__(self, bad: tuple[BadBlock, ...]) -> None:
        super().__init__(bad[0].reason if bad else "its recipe was changed")
        self.bad = bad


def rebuild(recipe: Recipe, blocks: BlockFiles, target: Path, cancelled: CancelCheck = never) -> Hashes:
    """Put the original file together at `target`, byte for byte. As `compose`."""
    return compose((Copy(0, Span(0, recipe.file_size)),), (recipe,), blocks, target, cancelled)


def compose(
    plan: Plan,
    sources: Sequence[Recipe],
    blocks: BlockFiles,
    target: Path,
    cancelled: CancelCheck = never,
    *,
    gives_way: bool = False,
) -> Hashes:
    """Carry out a plan over stored slot files. Returns the XXH3 of blocks of which the recipes did not know it.

    `target` is made with mode 0600, or written over in place: to give a file in memory new pages takes longer than
    everything else, and into those that are there, mapped, several threads read at once. `gives_way`: nobody waits
    for it. Raises Unusable after looking at every block, OSError where `target` cannot be written, and Cancelled.
    On any failure no file is left.
    """
    copies: list[list[tuple[Span, int]]] = [[] for _ in sources]
    offset = 0
    with _written_over(target, sum(part.size for part in plan), sources, blocks) as out:
        for part in plan:
            if isinstance(part, Inline):
                positioned.write_at(out.file, part.data, offset)
            else:
                copies[part.source].append((part.span, offset))
            offset += part.size
        jobs = list(chain.from_iterable(map(_jobs, sources, map(Placement, copies))))
        ahead = dict(zip(jobs, jobs[positioned.threads() :], strict=False))
        do = partial(_carry_out, ahead=ahead, blocks=blocks, out=out)
        learned = positioned.in_parallel(jobs, do, cancelled, gives_way=gives_way)
        out.file.truncate(offset)
    return {job.use.block: xxh3 for job, xxh3 in zip(jobs, learned, strict=True) if xxh3}


class Placement:
    """Where some of a source's bytes go in the new file."""

    def __init__(self, copies: Sequence[tuple[Span, int]]) -> None:
        """`copies`: spans of the source, none overlapping another, and the offset each goes to."""
        self._copies = sorted(copies, key=lambda copy: copy[0].offset)
        self._starts = [span.offset for span, _ in self._copies]
        self.size = sum(span.size for span, _ in self._copies)

    def targets(self, part: Span) -> Iterator[tuple[int | None, int]]:
        """The part from beginning to end: where to, None for nowhere, and how many bytes."""
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


@dataclass(frozen=True, eq=False)
class _Job:
    """A block, and where each of its bytes goes, from the first to the last."""

    use: BlockUse
    goals: _Goals


def _jobs(recipe: Recipe, placement: Placement) -> Iterator[_Job]:
    """What is to be done with a recipe's blocks. Those of which nothing is wanted stay closed. Raises RecipeError."""
    check_whole(recipe)
    residue = residue_spans(recipe.row_map, recipe.file_size)
    written = 0
    for use in recipe.uses:
        goals: _Goals = []
        if use.cache == RESIDUE:
            for part in residue_parts(residue, use.row, use.rows):
                goals += placement.targets(part)
        else:
            cache = recipe.row_map.caches[use.cache]
            after = use.size // cache.row_bytes - use.skip - use.rows
            for region, part in zip(cache.regions, row_parts(cache, use.row, use.rows), strict=True):
                goals.append((None, use.skip * region.row_size))
                goals += placement.targets(part)
                goals.append((None, after * region.row_size))
        if wanted := sum(length for target, length in goals if target is not None):
            written += wanted
            yield _Job(use, goals)
    if written != placement.size:
        raise RecipeError("its recipe leaves a hole")


def _carry_out(
    job: _Job, buffer: memoryview, *, ahead: dict[_Job, _Job], blocks: BlockFiles, out: _Out
) -> bytes | None:
    """Do a job; returns the block's XXH3 if that was not known. Raises DamagedBlock."""
    use = job.use
    if job in ahead:
        positioned.will_need(blocks.path(ahead[job].use.block))
    if use.cache == RESIDUE:
        raw, xxh3 = read_residue(use, blocks)
        _scatter_bytes(raw, job.goals, out.file)
        return None if xxh3 == use.xxh3 else xxh3
    try:
        with blocks.path(use.block).open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != use.size:
                raise DamagedBlock
            if use.xxh3 is not None:
                digests = positioned.Digests(name=False)
                _scatter(file, job, out, buffer, digests)
                if digests.xxh3 == use.xxh3:
                    return None
            digests = positioned.Digests()  # it is the name that counts, and the index, too, may have been damaged
            _scatter(file, job, out, buffer, digests)
    except FileNotFoundError as error:
        raise DamagedBlock from error
    if digests.name != use.block:
        raise DamagedBlock
    return digests.xxh3


def _scatter(file: FileIO, job: _Job, out: _Out, buffer: memoryview, digests: positioned.Digests) -> None:
    """Read the block once from end to end, its parts to where they belong."""
    read = 0
    for gulp in _gulps(job.goals, len(buffer)):
        places, rest = out.places(gulp, buffer), buffer
        try:
            positioned.read_into(file, places, read)
        except (OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno == errno.EFAULT:
                raise  # somebody has cut the file that is written over: no fault of the block's
            raise DamagedBlock from error
        for place in places:
            digests.add(place)
        for target, length in gulp:
            if out.mapped is None and target is not None:
                positioned.write_at(out.file, rest[:length], target)
            rest, read = rest[length:], read + length


def _gulps(goals: _Goals, most: int) -> Iterator[_Goals]:
    """The goals by what is read at once, `most` bytes."""
    gulp: _Goals = []
    room = most
    for target, length in goals:
        while length > 0:
            taken = min(length, room)
            gulp.append((target, taken))
            target, length, room = None if target is None else target + taken, length - taken, room - taken
            if not room or len(gulp) == _MOST_AT_ONCE:
                yield gulp
                gulp, room = [], most
    if gulp:
        yield gulp


def _scatter_bytes(data: bytes, goals: _Goals, out: FileIO) -> None:
    """Write the bytes where they belong, one after the other."""
    done = 0
    view = memoryview(data)
    for target, length in goals:
        if target is not None:
            positioned.write_at(out, view[done : done + length], target)
        done += length


class _Out:
    """The file that is put together, and its bytes, mapped, where most of its pages are there already."""

    def __init__(self, target: Path, file: FileIO, size: int) -> None:
        there = disk.allotted(os.fstat(file.fileno())) if sys.platform == "linux" else 0
        self.file = file
        self.mapped = memory_files.mapped(target, file, size) if 0 < size <= 2 * there else None

    def places(self, gulp: _Goals, buffer: memoryview) -> list[memoryview]:
        """Where to read: at once to where the bytes belong, or into the buffer to be written from there."""
        if self.mapped is None:
            return [buffer[: sum(length for _, length in gulp)]]
        found = []
        whole = memoryview(self.mapped.bytes)
        for target, length in gulp:
            if target is None:
                found.append(buffer[:length])
                buffer = buffer[length:]
                continue
            if length >= _WORTH_ASKING:  # else the system does it page by page
                self.mapped.have_ready(target, length)
            found.append(whole[target : target + length])
        return found


@contextmanager
def _written_over(target: Path, size: int, sources: Sequence[Recipe], blocks: BlockFiles) -> Iterator[_Out]:
    """The private file, open; whatever goes wrong it is deleted, and damage is looked into."""
    try:
        with memory_files.open_private(target) as file:
            yield _Out(target, file, size)
    except (DamagedBlock, RecipeError, IndexError) as error:
        memory_files.delete(target)
        raise Unusable(bad_blocks([use for recipe in sources for use in recipe.uses], blocks)) from error
    except BaseException:
        memory_files.delete(target)
        raise


def bad_blocks(uses: Sequence[BlockUse], blocks: BlockFiles) -> tuple[BadBlock, ...]:
    """Hash every block of a recipe and name the bad ones."""
    sizes = {use.block: use.size for use in uses}
    faults = ((block, size, blocks.fault(block, size)) for block, size in sizes.items())
    return tuple(BadBlock(block, size, fault) for block, size, fault in faults if fault)
