"""The rows of a slot file beside what is known of them from an earlier save point. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvchat.kvstore.layout.layout import CacheRows, Run
from kvchat.kvstore.layout.recipe import BlockUse, Earlier


@dataclass(frozen=True)
class Known:
    """Rows that are in a block already, according to the save point that comes before."""

    use: BlockUse
    block_rows: int


@dataclass(frozen=True)
class RowSpan:
    """Rows of a cache of the file, and the block they may be in."""

    cache: int
    run: Run
    known: Known | None
    unchanged: bool  # they are believed to be, see `take_apart`

    def use(self) -> BlockUse:
        """The rows as part of the known block."""
        assert self.known is not None
        use = self.known.use
        skip = use.skip + self.run.position - use.position
        return replace(
            use, cache=self.cache, row=self.run.row, rows=self.run.rows, skip=skip, position=self.run.position
        )


def known_rows(before: Earlier | None, number: int, cache: CacheRows) -> list[Known]:
    """The earlier save point's rows of this cache at the shared positions, by position."""
    if before is None or number >= len(before.recipe.row_map.caches):
        return []
    theirs = before.recipe.row_map.caches[number]
    if [region.row_size for region in theirs.regions] != [region.row_size for region in cache.regions]:
        return []
    mine = [use for use in before.recipe.uses if use.cache == number and use.position < before.shared]
    mine.sort(key=lambda use: use.position)
    usable = [replace(use, rows=min(use.rows, before.shared - use.position)) for use in mine]
    return [Known(use, use.size // cache.row_bytes) for use in usable]


def unchanged_of(before: Earlier | None, number: int, cache: CacheRows) -> int:
    """How many leading tokens' rows of this cache are believed to be those of the earlier save point."""
    if before is None or number >= len(before.recipe.row_map.caches):
        return 0
    return before.unchanged if cache.kind == before.recipe.row_map.caches[number].kind == "full" else 0


def spans_of(number: int, run: Run, known: Sequence[Known], unchanged: int) -> Iterator[RowSpan]:
    """The run in parts, each with the rows known at its positions."""
    done = run.position
    end = run.position + run.rows

    def part(first: int, last: int, one: Known | None) -> RowSpan:
        return RowSpan(number, Run(run.row + first - run.position, first, last - first), one, last <= unchanged)

    for one in known:
        first = max(done, one.use.position)
        last = min(end, one.use.position + one.use.rows)
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
