"""Absorbing: splits a slot file into blocks and writes only the new ones.

A row of a prefix that an earlier save point also has is compared with its presumed block, by XXH3. Where the rows
are known to be unchanged (see `split_slot_file`), two blocks are compared and the others trusted. New rows are read
once: a block gets its name when it is written.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from io import FileIO
from pathlib import Path

from kvchat.kvstore.blocks import positioned
from kvchat.kvstore.blocks.block_files import BlockFiles, FileChanged, WrittenBlock, pack_residue
from kvchat.kvstore.blocks.layout import CacheRows, RowMap, Run, Span
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
from kvchat.kvstore.savepoint import CancelCheck, never

_FLUSHING = 4  # threads waiting for the disk while others compute


@dataclass(frozen=True)
class PreviousSave:
    recipe: Recipe
    shared: int  # leading tokens
    unchanged: int = 0  # leading tokens whose rows the engine has kept: see `split_slot_file`


@dataclass(frozen=True)
class AbsorbResult:
    """A slot file split into blocks: all are written, none is referenced yet."""

    recipe: Recipe
    written: int  # bytes of blocks


def split_slot_file(
    slot_file: Path,
    row_map: RowMap,
    before: PreviousSave | None,
    blocks: BlockFiles,
    cancelled: CancelCheck = never,
    *,
    low_priority: bool = False,
) -> AbsorbResult:
    """Split the file into blocks and write the missing ones. `low_priority`: run at low priority.

    Blocks of `before` with identical bytes are not written again. Its `unchanged` tokens are those whose rows have
    stayed in the engine's slot, not recomputed, since that save point was saved or restored: their bytes are
    identical, because an engine never changes a row. So only the last such block of each cache and one other are
    read, and all of them if these differ. The rows of a window that has slid are always read.

    Raises OSError, Cancelled, and Changed if the file changes meanwhile.
    """
    stamp = slot_file.stat()
    size = stamp.st_size
    try:
        residue = residue_spans(row_map, size)
    except RecipeError:
        row_map, residue = RowMap(), residue_spans(RowMap(), size)
    with slot_file.open("rb", buffering=0) as file:
        work = _Splitter(file, row_map, residue, blocks, cancelled, low_priority)
        spans = [span for number, cache in enumerate(row_map.caches) for span in _row_spans(number, cache, before)]
        uses, new = work.reuse(spans)
        written = work.write(new, list(residue_chunks(residue, row_map.breaks)))
    now = slot_file.stat()
    if (now.st_size, now.st_mtime_ns) != (size, stamp.st_mtime_ns):
        raise FileChanged("the file was changed while it was taken apart")
    uses = sorted(uses + [use for use, _ in written], key=lambda use: (use.cache == RESIDUE, use.cache, use.row))
    return AbsorbResult(Recipe(size, row_map, tuple(uses)), sum(count for _, count in written))


class _Splitter:
    def __init__(
        self,
        file: FileIO,
        row_map: RowMap,
        residue: Sequence[Span],
        blocks: BlockFiles,
        cancelled: CancelCheck,
        low_priority: bool,
    ) -> None:
        self._file, self._row_map, self._residue = file, row_map, residue
        self._blocks, self._cancelled, self._low_priority = blocks, cancelled, low_priority

    def reuse(self, spans: Sequence[RowSpan]) -> tuple[list[BlockUse], list[tuple[int, Run]]]:
        """Return the uses of spans found in known blocks, and the remaining runs, merged where possible."""
        known = [span for span in spans if span.known]
        samples = _sample_spans(known)
        if samples and len(self._unchanged_spans(samples)) == len(samples):
            believed = [span for span in known if span.unchanged and span.known and self._exists(span.known)]
            reused = believed + self._unchanged_spans([span for span in known if not span.unchanged])
        else:
            reused = self._unchanged_spans(known)
        kept = set(map(id, reused))
        new: list[tuple[int, Run]] = []
        for before, span in zip((None, *spans), spans, strict=False):
            if id(span) in kept:
                continue
            if new and before and id(before) not in kept and new[-1][0] == span.cache:
                run = new[-1][1]
                if (run.row + run.rows, run.position + run.rows) == (span.run.row, span.run.position):
                    new[-1] = span.cache, replace(run, rows=run.rows + span.run.rows)
                    continue
            new.append((span.cache, span.run))
        return [span.use() for span in reused], new

    def _exists(self, use: BlockUse) -> bool:
        return self._blocks.claim(use.block, use.size) is not None

    def _unchanged_spans(self, spans: Sequence[RowSpan]) -> list[RowSpan]:
        """Return the spans whose rows equal their block's bytes.

        Once a recomputed row differs, so do all later rows of its cache: comparing stops there.
        """
        different: dict[int, int] = {}

        def compare(span: RowSpan, buffer: memoryview) -> bool:
            if span.run.position > different.get(span.cache, span.run.position):
                return False
            same = span.known is not None and self._exists(span.known) and self._matches_block(span, span.known, buffer)
            if not same:
                different[span.cache] = min(span.run.position, different.get(span.cache, span.run.position))
            return same

        answers = positioned.run_parallel(spans, compare, self._cancelled, low_priority=self._low_priority)
        return [span for span, same in zip(spans, answers, strict=True) if same]

    def _matches_block(self, span: RowSpan, use: BlockUse, buffer: memoryview) -> bool:
        cache, run = self._row_map.caches[span.cache], span.run
        parts, block_rows = row_parts(cache, run.row, run.rows), use.size // cache.row_bytes
        if run.rows == block_rows:
            digests = positioned.Digests(name=False)
            for piece in self._read_pieces(parts, buffer):
                digests.add(piece)
            return digests.xxh3 == use.xxh3
        start, skip = 0, use.skip + run.position - use.position
        half = len(buffer) // 2
        try:
            with self._blocks.path(use.block).open("rb", buffering=0) as block:
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

    def write(self, runs: Sequence[tuple[int, Run]], residue: Sequence[Span]) -> list[tuple[BlockUse, int]]:
        jobs = [partial(self._write_rows, cache, part) for cache, run in runs for part in cut_at_blocks(run)]
        jobs += [partial(self._write_residue, chunk) for chunk in residue]
        flushing: list[tuple[WrittenBlock, Future[int]]] = []
        with ThreadPoolExecutor(_FLUSHING, "flushing") as disk:

            def do(job: partial[tuple[BlockUse, WrittenBlock]], buffer: memoryview) -> tuple[BlockUse, Future[int]]:
                for _, earlier in flushing[-_FLUSHING:]:
                    if earlier.done():
                        earlier.result()  # raises if the disk is full
                use, written = job(buffer)
                flushed = disk.submit(self._blocks.put, written)
                flushing.append((written, flushed))
                return use, flushed

            try:
                done = positioned.run_parallel(jobs, do, self._cancelled, low_priority=self._low_priority)
                return [(use, flushed.result()) for use, flushed in done]
            except BaseException:
                for written, flushed in flushing:
                    if flushed.cancel():
                        self._blocks.drop(written)
                raise

    def _write_rows(self, number: int, run: Run, buffer: memoryview) -> tuple[BlockUse, WrittenBlock]:
        cache = self._row_map.caches[number]
        written = self._blocks.write(self._read_pieces(row_parts(cache, run.row, run.rows), buffer))
        use = BlockUse(written.block, written.size, number, run.row, run.rows, 0, run.position, written.xxh3)
        return use, written

    def _write_residue(self, chunk: Span, buffer: memoryview) -> tuple[BlockUse, WrittenBlock]:
        parts = list(residue_parts(self._residue, chunk.offset, chunk.size))
        raw = b"".join(bytes(piece) for piece in self._read_pieces(parts, buffer))
        written = self._blocks.write(pack_residue(raw, deflate=self._row_map != RowMap()))
        use = BlockUse(written.block, written.size, RESIDUE, chunk.offset, chunk.size, 0, 0, written.xxh3)
        return use, written

    def _read_pieces(self, parts: Sequence[Span], buffer: memoryview) -> Iterator[memoryview]:
        """Yield the bytes of spans, one buffer at a time. Raises FileChanged if the file is shorter."""
        for part in parts:
            done = 0
            while done < part.size:
                piece = buffer[: min(len(buffer), part.size - done)]
                try:
                    positioned.read_at(self._file, piece, part.offset + done)
                except EOFError as error:
                    raise FileChanged("the file is shorter than it was") from error
                done += len(piece)
                yield piece


@dataclass(frozen=True)
class RowSpan:
    cache: int
    run: Run
    known: BlockUse | None  # existing block of these rows, according to the previous save point
    unchanged: bool  # assumed identical, see `split_slot_file`

    def use(self) -> BlockUse:
        assert self.known is not None
        run, skip = self.run, self.known.skip + self.run.position - self.known.position
        return replace(self.known, cache=self.cache, row=run.row, rows=run.rows, skip=skip, position=run.position)


def _row_spans(number: int, cache: CacheRows, before: PreviousSave | None) -> Iterator[RowSpan]:
    known: list[BlockUse] = []
    unchanged = 0
    theirs = before.recipe.row_map.caches[number : number + 1] if before else ()
    if before and theirs and [r.row_size for r in theirs[0].regions] == [r.row_size for r in cache.regions]:
        known = [use for use in before.recipe.uses if use.cache == number and use.position < before.shared]
        known.sort(key=lambda use: use.position)
        unchanged = before.unchanged if cache.kind == theirs[0].kind == "full" else 0
    for run in cache.runs:
        done, end = run.position, run.position + run.rows

        def part(first: int, last: int, use: BlockUse | None, run: Run = run) -> RowSpan:
            return RowSpan(number, Run(run.row + first - run.position, first, last - first), use, last <= unchanged)

        for use in known:
            first, last = max(done, use.position), min(end, use.position + use.rows, before.shared if before else 0)
            if first < last:
                if first > done:
                    yield part(done, first, None)
                yield part(first, last, use)
                done = last
        if done < end:
            yield part(done, end, None)


def _sample_spans(known: Sequence[RowSpan]) -> list[RowSpan]:
    of_caches: dict[int, list[RowSpan]] = {}
    for span in known:
        if span.unchanged:
            of_caches.setdefault(span.cache, []).append(span)
    return [span for spans in of_caches.values() for span in (spans[-1], *random.sample(spans[:-1], len(spans) > 1))]
