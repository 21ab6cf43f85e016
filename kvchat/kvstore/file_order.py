"""A stored slot file's bytes in file order, read out of its blocks piece by piece."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from operator import attrgetter

from kvchat.kvstore.blocks import BlockFiles
from kvchat.kvstore.recipe import RESIDUE, BlockUse, Recipe, RecipeError, residue_extents, residue_parts, row_parts
from kvchat.kvstore.residue import DamagedBlock, read_residue

_MOST_OPEN = 200  # block files; a process may have 1,024 files or fewer


@dataclass(frozen=True)
class Stretch:
    """Consecutive bytes of the file that come out of one block."""

    offset: int  # in the file
    length: int
    start: int  # in the block, or in the unpacked bytes of a block of residue
    number: int  # of the recipe's block use


def stretches(recipe: Recipe) -> list[Stretch]:
    """The whole file as stretches, in file order. Raises RecipeError where they leave a hole."""
    extents = residue_extents(recipe.row_map, recipe.file_size)
    found: list[Stretch] = []
    for number, use in enumerate(recipe.uses):
        if use.cache == RESIDUE:
            start = 0
            for part in residue_parts(extents, use.row, use.rows):
                found.append(Stretch(part.offset, part.length, start, number))
                start += part.length
            continue
        cache = recipe.row_map.caches[use.cache]
        block_rows, start = use.size // cache.row_bytes, 0
        for region, part in zip(cache.regions, row_parts(cache, use.row, use.rows), strict=True):
            found.append(Stretch(part.offset, part.length, start + use.skip * region.row_size, number))
            start += block_rows * region.row_size
    found.sort(key=attrgetter("offset"))
    end = 0
    for one in found:
        if one.offset != end:
            raise RecipeError("its recipe leaves a hole")
        end += one.length
    if end != recipe.file_size:
        raise RecipeError("its recipe leaves a hole")
    return found


class BlockReader:
    """Reads at any place of a recipe's blocks. Raises DamagedBlock where a block is missing, cut or cannot be read."""

    def __init__(self, recipe: Recipe, blocks: BlockFiles, opened: ExitStack) -> None:
        """`opened` closes the files in the end."""
        self._uses, self._blocks, self._opened = recipe.uses, blocks, opened
        self._files: dict[bytes, FileIO] = {}
        self._residue: tuple[BlockUse, memoryview] | None = None

    def fill(self, stretches: Sequence[Stretch], buffers: Iterator[memoryview]) -> Iterator[memoryview]:
        """The bytes of the stretches, one buffer after the other, each full but the last."""
        buffer, filled = next(buffers), 0
        for one in stretches:
            done = 0
            while done < one.length:
                count = min(one.length - done, len(buffer) - filled)
                self.read_into(one.number, one.start + done, buffer[filled : filled + count])
                done += count
                filled += count
                if filled == len(buffer):
                    yield buffer
                    buffer, filled = next(buffers), 0
        yield buffer[:filled]

    def read_into(self, number: int, start: int, place: memoryview) -> None:
        """Fill `place` from `start` of the block of that use."""
        use = self._uses[number]
        if use.cache == RESIDUE:
            place[:] = self._unpacked(use)[start : start + len(place)]
            return
        try:
            file = self._files.get(use.block)
            if file is None and len(self._files) < _MOST_OPEN:
                file = self._opened.enter_context(self._open(use))
                self._files[use.block] = file
            if file is not None:
                _fill(file, start, place)
                return
            with self._open(use) as file:
                _fill(file, start, place)
        except OSError as error:
            raise DamagedBlock from error

    def _open(self, use: BlockUse) -> FileIO:
        return self._blocks.path(use.block).open("rb", buffering=0)

    def _unpacked(self, use: BlockUse) -> memoryview:
        if self._residue is None or self._residue[0] != use:
            self._residue = (use, memoryview(read_residue(use, self._blocks)))
        return self._residue[1]


def _fill(file: FileIO, start: int, place: memoryview) -> None:
    if hasattr(os, "preadv") and os.preadv(file.fileno(), [place], start) == len(place):
        return  # one call instead of two; there may be ten thousand
    file.seek(start)
    while len(place):
        count = file.readinto(place)
        if not count:
            raise DamagedBlock
        place = place[count:]
