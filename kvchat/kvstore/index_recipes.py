"""Recipes and blocks in the index: each function works within the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from kvchat.kvstore.recipe import RESIDUE, BlockUse, Recipe, RecipeError, pack_row_map, unpack_row_map


def store_recipe(db: sqlite3.Connection, point_id: int, recipe: Recipe, on_disk: Mapping[bytes, int]) -> bool:
    """Make a staged save point an absorbed one; False when it was deleted meanwhile.

    `on_disk` are the bytes that each block takes on disk.
    """
    facts = (recipe.file_size, recipe.file_hash, pack_row_map(recipe.row_map), recipe.seal(), point_id)
    changed = db.execute(
        "UPDATE save_points SET owner = NULL, file_size = ?, file_hash = ?, row_map = ?, seal = ? WHERE id = ?", facts
    ).rowcount
    if not changed:
        return False
    some_rows = bool(recipe.row_map.caches)  # without any the layout is unknown, and all of it counts as rows
    db.executemany(
        "INSERT INTO blocks (name, size, residue, disk_bytes, xxh3) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET xxh3 = excluded.xxh3 WHERE excluded.xxh3 IS NOT NULL",
        {(u.block, u.size, some_rows and u.cache == RESIDUE, on_disk[u.block], u.xxh3) for u in recipe.uses},
    )
    db.executemany(
        "INSERT INTO block_uses SELECT ?, ?, id, ?, ?, ?, ?, ? FROM blocks WHERE name = ?",
        [
            (point_id, number, p.cache, p.row, p.rows, p.skip, p.position, p.block)
            for number, p in enumerate(recipe.uses)
        ],
    )
    return True


def load_recipe(db: sqlite3.Connection, point_id: int) -> Recipe | None:
    """The recipe of an absorbed save point, None without. Raises RecipeError if it is not what was stored."""
    row = db.execute(
        "SELECT file_size, file_hash, row_map, seal FROM save_points WHERE id = ? AND owner IS NULL", (point_id,)
    ).fetchone()
    if row is None:
        return None
    uses = db.execute(
        "SELECT name, size, cache, first_row, n_rows, skip, position, xxh3 FROM block_uses"
        " JOIN blocks ON blocks.id = block_id WHERE save_point_id = ? ORDER BY number",
        (point_id,),
    )
    recipe = Recipe(row[0], row[1], unpack_row_map(row[2]), tuple(BlockUse(*use) for use in uses))
    if recipe.seal() != row[3]:
        raise RecipeError("its recipe was changed")
    return recipe


def users_of(db: sqlite3.Connection, block: bytes) -> list[int]:
    """The save points that use a block."""
    query = "SELECT DISTINCT save_point_id FROM block_uses JOIN blocks ON blocks.id = block_id WHERE name = ?"
    return [int(row[0]) for row in db.execute(query, (block,))]


def unused_blocks(db: sqlite3.Connection, limit: int) -> list[tuple[int, bytes, int]]:
    """Blocks no save point uses: id, name, bytes on disk."""
    unused = "NOT EXISTS (SELECT 1 FROM block_uses WHERE block_id = blocks.id)"
    query = f"SELECT id, name, disk_bytes FROM blocks WHERE {unused} LIMIT ?"
    return db.execute(query, (limit,)).fetchall()
