"""From a slot file's layout to its row map: what the block store needs to know of it."""

from __future__ import annotations

from pathlib import Path

from kvchat.kvstore.layout.layout import Layout, UnknownLayout
from kvchat.kvstore.layout.parser import parse_layout
from kvchat.kvstore.layout.recipe import CacheRows, Region, RowMap, Run


def read_row_map(slot_file: Path) -> RowMap:
    """Where the rows lie in a slot file; nowhere if its layout is unknown. Raises OSError."""
    try:
        return row_map_of(parse_layout(slot_file))
    except UnknownLayout:
        return RowMap()


def row_map_of(layout: Layout) -> RowMap:
    """Where a layout's rows lie, and which of the rest may come back by itself: recurrent state and checkpoints."""
    caches = tuple(
        CacheRows(
            "swa" if cache.first_position > 0 else "full",
            tuple(Region(region.offset, region.row_size) for region in cache.regions if region.row_size),
            tuple(Run(run.first_row, run.position, run.count) for run in cache.runs),
        )
        for cache in layout.attention
        if cache.row_bytes  # one of a hybrid without attention layers has cells and no rows
    )
    own = [checkpoint.span for checkpoint in layout.checkpoints]
    if layout.recurrent:
        own.append(layout.recurrent.span)
    return RowMap(caches, tuple(sorted({edge for span in own for edge in (span.offset, span.end)})))
