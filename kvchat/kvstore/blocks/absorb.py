"""Absorbing: splits a slot file into blocks and writes only the new ones.

Rows of tokens that an earlier save point covers are compared with its blocks, by XXH3. Of rows known to be unchanged
(see `split_slot_file`), only two blocks per cache are compared, as samples. New rows are read once: they are hashed
while they are written.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence
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


@dataclass(frozen=True)
class _RowSpan:
    cache: int
    run: Run
    known_block: BlockUse | None  # the previous save point's block for these tokens
    is_unchanged: bool  # assumed identical to the block


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
        spans = [span for number, cache in enumerate(row_map.caches) for span in _row_spans(number, cache, previous)]
        uses, new_runs = splitter.reuse(spans)
        written = splitter.write(new_runs, list(residue_chunks(residue, row_map.breaks)))
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

    def reuse(self, spans: Sequence[_RowSpan]) -> tuple[list[BlockUse], list[tuple[int, Run]]]:
        """Return the uses of known blocks that can be reused, and all other rows as a list of (cache, run)."""
        known_spans = [span for span in spans if span.known_block]
        trusted = [span for span in known_spans if span.is_unchanged]
        samples = _sample_spans(trusted)
        if len(self._find_unchanged(samples)) == len(samples):
            reused = [
                s
                for s in trusted
                if s.known_block and self.blocks.disk_usage(s.known_block.block, s.known_block.size) is not None
            ]
            reused += self._find_unchanged([span for span in known_spans if not span.is_unchanged])
        else:
            reused = self._find_unchanged(known_spans)
        uses = []
        for span in reused:
            assert span.known_block is not None
            row, position, rows = span.run.row, span.run.position, span.run.rows
            skip = span.known_block.skip + position - span.known_block.position
            uses.append(replace(span.known_block, cache=span.cache, row=row, rows=rows, skip=skip, position=position))
        reused_ids = set(map(id, reused))
        new: list[tuple[int, Run]] = []
        for span in spans:
            if id(span) not in reused_ids:
                cache, last = new[-1] if new else (None, span.run)
                if cache == span.cache and last.end == (span.run.row, span.run.position):
                    new[-1] = span.cache, replace(last, rows=last.rows + span.run.rows)
                else:
                    new.append((span.cache, span.run))
        return uses, new

    def _find_unchanged(self, spans: Sequence[_RowSpan]) -> list[_RowSpan]:
        """Return the spans equal to their known blocks; in each cache, only those before the first difference."""
        first_different: dict[int, int] = {}  # token position, by cache

        def compare(span: _RowSpan, buffer: memoryview) -> bool:
            position = span.run.position
            if position > first_different.get(span.cache, position):
                return False
            assert span.known_block is not None
            same = self._equals(span, span.known_block, buffer)
            if not same:
                first_different[span.cache] = min(position, first_different.get(span.cache, position))
            return same

        results = self.run_parallel(spans, compare)
        return [span for span, same in zip(spans, results, strict=True) if same]

    def _equals(self, span: _RowSpan, use: BlockUse, buffer: memoryview) -> bool:
        if self.blocks.disk_usage(use.block, use.size) is None:
            return False
        cache, run = self.row_map.caches[span.cache], span.run
        parts, block_rows = row_parts(cache, run.row, run.rows), use.size // cache.row_bytes
        if run.rows == block_rows:
            xxh3 = xxhash.xxh3_128()
            for piece in self._read_pieces(parts, buffer):
                xxh3.update(piece)
            return xxh3.digest() == use.xxh3
        start, skip = 0, use.skip + run.position - use.position
        half = len(buffer) // 2
        try:
            with self.blocks.path(use.block).open("rb", buffering=0) as block:
                for region, part in zip(cache.regions, parts, strict=True):
                    at = start + skip * region.row_size
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

    def write(self, runs: Sequence[tuple[int, Run]], chunks: Sequence[Span]) -> list[tuple[BlockUse, int]]:
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


def _row_spans(number: int, cache: CacheRows, previous: PreviousSave | None) -> Iterator[_RowSpan]:
    """Yield the rows of a cache, split at the boundaries of the previous save point's blocks."""
    known_uses: list[BlockUse] = []
    shared = unchanged = 0
    old = previous.recipe.row_map.caches[number : number + 1] if previous else ()
    if previous and old and [r.row_size for r in old[0].regions] == [r.row_size for r in cache.regions]:
        known_uses = [
            use for use in previous.recipe.uses if use.cache == number and use.position < previous.shared_tokens
        ]
        known_uses.sort(key=lambda use: use.position)
        shared = previous.shared_tokens
        unchanged = 0 if cache.is_window or old[0].is_window else previous.unchanged_tokens
    for run in cache.runs:
        done, end = run.position, run.position + run.rows

        def part(first: int, last: int, use: BlockUse | None, run: Run = run) -> _RowSpan:
            return _RowSpan(number, Run(run.row + first - run.position, first, last - first), use, last <= unchanged)

        for use in known_uses:
            first, last = max(done, use.position), min(end, use.position + use.rows, shared)
            if first < last:
                if first > done:
                    yield part(done, first, None)
                yield part(first, last, use)
                done = last
        if done < end:
            yield part(done, end, None)


def _sample_spans(trusted: Sequence[_RowSpan]) -> list[_RowSpan]:
    """Return two spans of each cache to compare: the last one and a random other."""
    by_cache: dict[int, list[_RowSpan]] = {}
    for span in trusted:
        by_cache.setdefault(span.cache, []).append(span)
    return [span for spans in by_cache.values() for span in (spans[-1], *random.sample(spans[:-1], len(spans) > 1))]
