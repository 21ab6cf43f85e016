"""Absorbing: splits a slot file into blocks and writes only the new ones.

Rows of tokens that an earlier save point covers are compared with its blocks, by XXH3. Of rows known to be unchanged
(see `split_slot_file`), only two blocks per cache are compared, as samples. New rows are read once: they are hashed
while they are written.
"""

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import xxhash

from kvchat.kvstore.blocks import positioned
from kvchat.kvstore.blocks.block_files import BlockFiles, FileChanged, WrittenBlock, pack_residue
from kvchat.kvstore.blocks.layout import CacheRows, RowMap, Run, Span
from kvchat.kvstore.blocks.parser import SlotFileError, parse_layout
from kvchat.kvstore.blocks.recipe import (
    RESIDUE,
    BlockUse,
    Recipe,
    RecipeError,
    cut_at_blocks,
    residue_chunks,
    residue_parts,
    residue_spans,
    row_parts,
)
from kvchat.kvstore.savepoint import CancelCheck, never_cancelled

_FLUSHING_THREADS = 4  # they wait for the disk while other threads compute


@dataclass(frozen=True)
class PreviousSave:
    recipe: Recipe
    shared_tokens: int  # number of leading tokens that the new file shares
    unchanged_tokens: int = 0  # number of those whose rows the engine has kept, see `split_slot_file`


def split_slot_file(
    slot_file: Path,
    previous: PreviousSave | None,
    blocks: BlockFiles,
    cancelled: CancelCheck = never_cancelled,
    *,
    low_priority: bool = False,
) -> tuple[Recipe, int]:
    """Split the file into blocks and write the missing ones; return the recipe and the bytes written.

    Blocks of `previous` with identical bytes are not written again. Unchanged tokens are those whose rows have stayed
    in the engine's slot since `previous` was saved or restored. Their bytes are identical, because an engine changes
    no existing row. So only two of their blocks in each cache are read, the last and a random one; if either differs,
    all are read. The rows of a window that has slid are always read.

    Raises OSError, Cancelled, and FileChanged if the file changes meanwhile.
    """
    stamp = slot_file.stat()
    try:
        row_map = parse_layout(slot_file).row_map
        residue = residue_spans(row_map, stamp.st_size)
    except (SlotFileError, RecipeError):
        row_map, residue = RowMap(), residue_spans(RowMap(), stamp.st_size)
    run = partial(positioned.run_parallel, cancelled=cancelled, low_priority=low_priority)
    with slot_file.open("rb", buffering=0) as file:
        splitter = _Splitter(file, row_map, residue, blocks, run)
        known = [use for number, cache in enumerate(row_map.caches) for use in _known_uses(number, cache, previous)]
        uses = splitter.reuse(known)
        written = splitter.write(_new_runs(row_map, uses), list(residue_chunks(residue, row_map.breaks)))
        now = os.fstat(file.fileno())
    if (now.st_size, now.st_mtime_ns) != (stamp.st_size, stamp.st_mtime_ns):
        raise FileChanged("the file changed while it was being read")
    recipe = Recipe(stamp.st_size, row_map, (*uses, *(use for use, _ in written)))
    return recipe, sum(count for _, count in written)


@dataclass(frozen=True)
class _Splitter:
    file: FileIO
    row_map: RowMap
    residue: Sequence[Span]
    blocks: BlockFiles
    run_parallel: Callable[..., list[Any]]

    def reuse(self, known: Sequence[tuple[BlockUse, bool]]) -> list[BlockUse]:
        """Return the uses of known blocks that are equal to the file's rows; True: they are assumed to be."""
        unchanged, others = ([use for use, is_unchanged in known if is_unchanged is kind] for kind in (True, False))
        samples = _choose_samples(unchanged)
        if len(self._find_equal(samples)) < len(samples):
            return self._find_equal([*unchanged, *others])
        return [*filter(self._exists, unchanged), *self._find_equal(others)]

    def _exists(self, use: BlockUse) -> bool:
        return self.blocks.disk_usage(use.block, use.size) is not None

    def _find_equal(self, uses: Sequence[BlockUse]) -> list[BlockUse]:
        """Return the uses whose rows are equal to the file's; in each cache, only those before the first difference."""
        first_different: dict[int, int] = {}  # token position, by cache

        def compare(use: BlockUse, buffer: memoryview) -> bool:
            if use.position > first_different.get(use.cache, use.position):
                return False
            same = self._equals(use, buffer)
            if not same:
                first_different[use.cache] = min(use.position, first_different.get(use.cache, use.position))
            return same

        results = self.run_parallel(uses, compare)
        return [use for use, same in zip(uses, results, strict=True) if same]

    def _equals(self, use: BlockUse, buffer: memoryview) -> bool:
        """True if the file's rows equal those of the block."""
        if not self._exists(use):
            return False
        cache = self.row_map.caches[use.cache]
        parts, block_rows = row_parts(cache, use.row, use.rows), use.size // cache.row_bytes
        if use.rows == block_rows:
            xxh3 = xxhash.xxh3_128()
            for piece in self._read_pieces(parts, buffer):
                xxh3.update(piece)
            return xxh3.digest() == use.xxh3
        start, half = 0, len(buffer) // 2
        try:
            with self.blocks.path(use.block).open("rb", buffering=0) as block:
                for region, part in zip(cache.regions, parts, strict=True):
                    at = start + use.skip * region.row_size
                    start += block_rows * region.row_size
                    for piece in self._read_pieces([part], buffer[:half]):
                        other = buffer[half : half + len(piece)]
                        positioned.read_at(block, other, at)
                        if piece != other:
                            return False
                        at += len(piece)
        except (EOFError, FileNotFoundError):
            return False
        return True

    def write(self, runs: Iterable[tuple[int, Run]], chunks: Sequence[Span]) -> list[tuple[BlockUse, int]]:
        """Write rows and residue chunks as blocks; return the use of each block and the bytes written for it."""
        jobs = [partial(self._write_rows, cache, part) for cache, run in runs for part in cut_at_blocks(run)]
        jobs += [partial(self._write_residue, chunk) for chunk in chunks]
        flushing: list[tuple[WrittenBlock, Future[int]]] = []
        with ThreadPoolExecutor(_FLUSHING_THREADS, "flushing") as disk:

            def run(job: partial[tuple[BlockUse, WrittenBlock]], buffer: memoryview) -> tuple[BlockUse, Future[int]]:
                for _, earlier in flushing[-_FLUSHING_THREADS:]:
                    if earlier.done():
                        earlier.result()  # raises if the disk is full
                use, written = job(buffer)
                flushed = disk.submit(self.blocks.commit, written)
                flushing.append((written, flushed))
                return use, flushed

            try:
                return [(use, flushed.result()) for use, flushed in self.run_parallel(jobs, run)]
            except BaseException:
                for written, flushed in flushing:
                    if flushed.cancel():
                        self.blocks.discard(written)
                raise

    def _write_rows(self, number: int, run: Run, buffer: memoryview) -> tuple[BlockUse, WrittenBlock]:
        parts = row_parts(self.row_map.caches[number], run.row, run.rows)
        written = self.blocks.write(self._read_pieces(parts, buffer))
        use = BlockUse(written.name, written.size, number, run.row, run.rows, 0, run.position, written.xxh3)
        return use, written

    def _write_residue(self, chunk: Span, buffer: memoryview) -> tuple[BlockUse, WrittenBlock]:
        parts = list(residue_parts(self.residue, chunk.offset, chunk.size))
        raw = b"".join(bytes(piece) for piece in self._read_pieces(parts, buffer))
        written = self.blocks.write(pack_residue(raw, deflate=self.row_map != RowMap()))
        use = BlockUse(written.name, written.size, RESIDUE, chunk.offset, chunk.size, 0, 0, written.xxh3)
        return use, written

    def _read_pieces(self, parts: Sequence[Span], buffer: memoryview) -> Iterator[memoryview]:
        """Yield the bytes of the spans in pieces that fit the buffer. Raises FileChanged if the file is too short."""
        for part in parts:
            for offset in range(part.offset, part.end, len(buffer)):
                piece = buffer[: min(len(buffer), part.end - offset)]
                try:
                    positioned.read_at(self.file, piece, offset)
                except EOFError as error:
                    raise FileChanged("the file became shorter") from error
                yield piece


def _known_uses(number: int, cache: CacheRows, previous: PreviousSave | None) -> Iterator[tuple[BlockUse, bool]]:
    """Yield the uses of the previous save point's blocks for rows of a cache; True if assumed to be unchanged."""
    old = previous.recipe.row_map.caches[number : number + 1] if previous else ()
    if not previous or not old or [r.row_size for r in old[0].regions] != [r.row_size for r in cache.regions]:
        return
    unchanged = 0 if cache.is_window or old[0].is_window else previous.unchanged_tokens
    uses = [use for use in previous.recipe.uses if use.cache == number]
    for use in sorted(uses, key=lambda use: use.position):
        for run in cache.runs_between(use.position, min(use.position + use.rows, previous.shared_tokens)):
            skip = use.skip + run.position - use.position
            part = replace(use, row=run.row, rows=run.rows, skip=skip, position=run.position)
            yield part, run.end[1] <= unchanged


def _new_runs(row_map: RowMap, reused: Sequence[BlockUse]) -> Iterator[tuple[int, Run]]:
    """Yield all other rows as (cache, run)."""
    for number, cache in enumerate(row_map.caches):
        uses = sorted((use for use in reused if use.cache == number), key=lambda use: use.row)
        for run in cache.runs:
            row = run.row
            for use in uses:
                if row <= use.row < run.end[0]:
                    yield number, Run(row, run.position + row - run.row, use.row - row)
                    row = use.row + use.rows
            yield number, Run(row, run.position + row - run.row, run.end[0] - row)


def _choose_samples(uses: Sequence[BlockUse]) -> list[BlockUse]:
    """Return two uses of each cache to compare: the last one and a random other."""
    by_cache: dict[int, list[BlockUse]] = {}
    for use in uses:
        by_cache.setdefault(use.cache, []).append(use)
    return [use for group in by_cache.values() for use in (group[-1], *random.sample(group[:-1], len(group) > 1))]
