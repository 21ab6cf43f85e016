"""How fast the store rebuilds, beside a plain copy of the same file."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from kvchat.kvstore.blocks.rebuild import Unusable, rebuild
from kvchat.kvstore.files import disk
from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.index import recipes as index_recipes
from kvchat.kvstore.layout.recipe import Recipe, RecipeError
from kvchat.kvstore.parts import STAGING, Parts


@dataclass(frozen=True)
class RebuildSpeed:
    """Medians of rebuilding a slot file from its blocks, and of copying the same file from and to the same places."""

    bytes: int
    rebuild_ms: float
    copy_ms: float

    @property
    def ratio(self) -> float:
        """The speed of the rebuild, hash included, by that of the copy."""
        return self.copy_ms / self.rebuild_ms


def measure_rebuild(parts: Parts, rounds: int) -> RebuildSpeed | None:
    """Rebuild and copy the largest absorbed save point's file in turns; None without one, or if its blocks are bad.

    Blocks and the copied file lie on the disk and in its cache; both results go where engines restore from. Raises
    OSError, IndexFailed and IndexLost.
    """
    recipe = _largest(parts)
    if recipe is None:
        return None
    staging, size, unabsorbed = parts.staging, recipe.file_size, parts.unabsorbed()
    original = parts.folder / STAGING / disk.temporary_name()
    rebuilds: list[float] = []
    copies: list[float] = []
    try:
        rebuild(recipe, parts.blocks, original)
        for number in range(2 * rounds):
            target = staging.blank(size, None, unabsorbed)
            if number % 2:
                copy = target.with_name(disk.temporary_name())  # a new file, as every copy is
                copies.append(_ms(partial(shutil.copyfile, original, copy)))
                copy.unlink()
            else:
                rebuilds.append(_ms(partial(rebuild, recipe, parts.blocks, target)))
            staging.give_back(target)
    except Unusable:
        return None
    finally:
        original.unlink(missing_ok=True)
    return RebuildSpeed(recipe.file_size, median(rebuilds), median(copies))


def _largest(parts: Parts) -> Recipe | None:
    with parts.index.read() as db:
        point = index_points.largest(db)
        try:
            return index_recipes.load_recipe(db, point) if point is not None else None
        except RecipeError:
            return None


def _ms(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return 1000 * (time.perf_counter() - started)
