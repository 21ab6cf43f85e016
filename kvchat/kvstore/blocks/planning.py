"""How slot files that were never saved come out of what the store has: `rebuild.py` carries these plans out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvchat.kvstore.blocks.block_files import BlockFiles, DamagedBlock, read_residue
from kvchat.kvstore.blocks.layout import Layout, Span, UnknownLayout
from kvchat.kvstore.blocks.parser import parse
from kvchat.kvstore.blocks.plan import CannotCompose, Plan, cut, with_masked_rows
from kvchat.kvstore.blocks.rebuild import Unusable, bad_blocks
from kvchat.kvstore.blocks.recipe import RESIDUE, BlockUse, Recipe, residue_parts, residue_spans


def prefix_plan(recipe: Recipe, n_tokens: int, blocks: BlockFiles) -> Plan:
    """The file for the first `n_tokens` tokens. Raises CannotCompose, where the state cannot be cut; Unusable."""
    return cut(_layout(recipe, blocks), n_tokens)


def windows_plan(recipe: Recipe, window: int, blocks: BlockFiles) -> Plan:
    """The file with the row that its sliding windows lack. Raises CannotCompose, where they lack none; Unusable."""
    return with_masked_rows(_layout(recipe, blocks), window)


def _layout(recipe: Recipe, blocks: BlockFiles) -> Layout:
    """The layout of a stored slot file, read from its residue alone. Raises CannotCompose, Unusable."""
    if not recipe.row_map.caches:
        raise CannotCompose("its layout is unknown")
    try:
        return parse(recipe.file_size, _Residue(recipe, blocks).read)
    except UnknownLayout as error:
        raise CannotCompose(str(error)) from error
    except DamagedBlock as damage:
        raise Unusable(bad_blocks(recipe.uses, blocks)) from damage


class _Residue:
    """Reads a stored slot file wherever it has no rows; one block of residue is in memory at a time."""

    def __init__(self, recipe: Recipe, blocks: BlockFiles) -> None:
        self._blocks = blocks
        residue = residue_spans(recipe.row_map, recipe.file_size)
        self._places = [
            (part.offset, part.size, start, use)
            for use in recipe.uses
            if use.cache == RESIDUE
            for part, start in _with_starts(list(residue_parts(residue, use.row, use.rows)))
        ]
        self._places.sort(key=lambda place: place[0])
        self._read: tuple[BlockUse, bytes] | None = None

    def read(self, offset: int, count: int) -> bytes:
        """The bytes there, as far as they are residue."""
        found = bytearray()
        for first, length, start, use in self._places:
            if first <= offset < first + length and count:
                taken = min(count, first + length - offset)
                begin = start + offset - first
                found += self._block(use)[begin : begin + taken]
                offset += taken
                count -= taken
        return bytes(found)

    def _block(self, use: BlockUse) -> bytes:
        if self._read is None or self._read[0] != use:
            self._read = (use, read_residue(use, self._blocks)[0])
        return self._read[1]


def _with_starts(parts: Sequence[Span]) -> Iterator[tuple[Span, int]]:
    """Each part with where it begins in its block."""
    start = 0
    for part in parts:
        yield part, start
        start += part.size
