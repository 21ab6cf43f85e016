"""A stored slot file's bytes in file order, read out of its blocks piece by piece."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import NamedTuple

from kvchat.kvstore.blocks import BlockFiles
from kvchat.kvstore.recipe import RESIDUE, BlockUse, Recipe, RecipeError, residue_extents, residue_parts
from kvchat.kvstore.residue import DamagedBlock, read_residue

_MOST_OPEN = 200  # block files; a process may have 1,024 files or fewer


class Stretch(NamedTuple):
    """Consecutive bytes of the file that come out of one block. A tuple: there may be ten thousand in a file."""

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
        regions = [(region.offset, region.row_size) for region in cache.regions]
        block_rows, start = use.size // cache.row_bytes, 0
        for offset, size in regions:
            found.append(Stretch(offset + use.row * size, use.rows * size, start + use.skip * size, number))
            start += block_rows * size
    found.sort()
    end = 0
    for offset, length, _, _ in found:
        if offset != end:
            raise RecipeError("its recipe leaves a hole")
        end += length
    if end != recipe.file_size:
        raise RecipeError("its recipe leaves a hole")
    return found


class BlockReader:
    """Reads at any place of a recipe's blocks, whose files stay open meanwhile: a context manager.

    Raises DamagedBlock where a block is missing, cut or cannot be read.
    """

    def __init__(self, recipe: Recipe, blocks: BlockFiles) -> None:
        self._uses, self._blocks = recipe.uses, blocks
        self._files: dict[bytes, FileIO] = {}
        self._residue: tuple[BlockUse, memoryview] | None = None

    def __enter__(self) -> BlockReader:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._files.values():
            file.close()

    def fill(self, stretches: Sequence[Stretch], buffer: memoryview) -> Iterator[memoryview]:
        """The bytes of the stretches in `buffer`, which is full each time but the last."""
        filled, size = 0, len(buffer)
        for one in stretches:
            start, left = one.start, one.length
            while left:
                count = min(left, size - filled)
                self._read_into(self._uses[one.number], start, buffer[filled : filled + count])
                start += count
                left -= count
                filled += count
                if filled == size:
                    yield buffer
                    filled = 0
        yield buffer[:filled]

    def _read_into(self, use: BlockUse, start: int, place: memoryview) -> None:
        """Fill `place` from `start` of the block of that use."""
        if use.cache == RESIDUE:
            place[:] = self._unpacked(use)[start : start + len(place)]
            return
        try:
            file = self._files.get(use.block)
            if file is None and len(self._files) < _MOST_OPEN:
                file = self._files[use.block] = self._open(use)
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
