"""Slot files that were never saved: cut to a prefix, or with older sliding-window rows, out of what the store has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvchat.kvstore.blocks.blocks import BlockFiles
from kvchat.kvstore.blocks.rebuild import Hashes, compose
from kvchat.kvstore.blocks.residue import read_residue
from kvchat.kvstore.layout.layout import Layout, UnknownLayout
from kvchat.kvstore.layout.parser import parse
from kvchat.kvstore.layout.plan import CannotCompose, OlderSave, complete_windows, cut, window_reach
from kvchat.kvstore.layout.recipe import RESIDUE, BlockUse, Extent, Recipe, residue_extents, residue_parts
from kvchat.kvstore.savepoint import Wanted, always


@dataclass(frozen=True)
class OlderRecipe:
    """A save point whose first `shared` tokens are the newest one's as well."""

    recipe: Recipe
    shared: int


def compose_prefix(recipe: Recipe, n_tokens: int, blocks: BlockFiles, target: Path, wanted: Wanted = always) -> Hashes:
    """Make the file for exactly the first `n_tokens` tokens. Returns what rebuild.compose does.

    Raises CannotCompose where the state cannot be cut, and what rebuild.compose raises.
    """
    plan = cut(_layout(recipe, blocks), n_tokens)
    return compose(plan, (recipe,), blocks, target, wanted)


def compose_windows(
    recipe: Recipe,
    older: Sequence[OlderRecipe],
    more_rows: int,
    blocks: BlockFiles,
    target: Path,
    wanted: Wanted = always,
) -> Hashes:
    """Make the file with up to `more_rows` older sliding-window rows. Returns what rebuild.compose does.

    Raises CannotCompose where there is none to add, and what rebuild.compose raises.
    """
    newest = _layout(recipe, blocks)
    if not newest.windows:
        raise CannotCompose("no sliding window has lost rows")
    first = max(cache.first_position for cache in newest.windows)
    usable: list[OlderSave] = []
    recipes: list[Recipe] = []
    for one in older:
        try:
            usable.append(OlderSave(_layout(one.recipe, blocks), one.shared))
        except CannotCompose:
            continue
        recipes.append(one.recipe)
    reach = max(window_reach(newest, usable), first - more_rows)
    if reach >= first:
        raise CannotCompose("no save point has older rows of its windows")
    return compose(complete_windows(newest, usable, reach), (recipe, *recipes), blocks, target, wanted)


def _layout(recipe: Recipe, blocks: BlockFiles) -> Layout:
    """The layout of a stored slot file, read from its residue alone. Raises CannotCompose, residue.DamagedBlock."""
    if not recipe.row_map.caches:
        raise CannotCompose("its layout is unknown")
    residue = _Residue(recipe, blocks)
    try:
        return parse(recipe.file_size, residue.read)
    except UnknownLayout as error:
        raise CannotCompose(str(error)) from error


class _Residue:
    """Reads a stored slot file wherever it has no rows; one block of residue is in memory at a time."""

    def __init__(self, recipe: Recipe, blocks: BlockFiles) -> None:
        self._blocks = blocks
        extents = residue_extents(recipe.row_map, recipe.file_size)
        self._places = [
            (part.offset, part.length, start, use)
            for use in recipe.uses
            if use.cache == RESIDUE
            for part, start in _with_starts(list(residue_parts(extents, use.row, use.rows)))
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


def _with_starts(parts: Sequence[Extent]) -> Iterator[tuple[Extent, int]]:
    """Each part with where it begins in its block."""
    start = 0
    for part in parts:
        yield part, start
        start += part.length
