"""Recipes and blocks in the index: each function works within the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import replace

from kvchat.kvstore.index import links as index_links
from kvchat.kvstore.layout.recipe import RESIDUE, BlockUse, Recipe, RecipeError, pack_row_map, unpack_row_map


def store_recipe(db: sqlite3.Connection, point_id: int, recipe: Recipe, on_disk: Mapping[bytes, int]) -> bool:
    """Make a staged save point an absorbed one; False when it was deleted meanwhile.

    `on_disk` are the bytes that each block takes on disk.
    """
    row = db.execute("SELECT conversation_id, link_id FROM save_points WHERE id = ?", (point_id,)).fetchone()
    if row is None:
        return False
    some_rows = bool(recipe.row_map.caches)  # without any the layout is unknown, and all of it counts as rows
    db.executemany(
        "INSERT INTO blocks (name, size, residue, disk_bytes, xxh3) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET xxh3 = excluded.xxh3 WHERE excluded.xxh3 IS NOT NULL",
        {(u.block, u.size, some_rows and u.cache == RESIDUE, on_disk[u.block], u.xxh3) for u in recipe.uses},
    )
    link_id = index_links.add(db, _path(db, recipe))
    index_links.hold(db, link_id, row[0])
    if row[1] is not None:
        index_links.release(db, row[1], row[0])
    recipe = replace(recipe, uses=_in_file_order(recipe.uses))
    facts = (recipe.file_size, recipe.file_hash, pack_row_map(recipe.row_map), recipe.seal(), link_id, point_id)
    db.execute(
        "UPDATE save_points SET owner = NULL, file_size = ?, file_hash = ?, row_map = ?, seal = ?, link_id = ?"
        " WHERE id = ?",
        facts,
    )
    return True


def load_recipe(db: sqlite3.Connection, point_id: int) -> Recipe | None:
    """The recipe of an absorbed save point, None without. Raises RecipeError if it is not what was stored."""
    row = db.execute(
        "SELECT file_size, file_hash, row_map, seal, link_id FROM save_points WHERE id = ? AND owner IS NULL",
        (point_id,),
    ).fetchone()
    if row is None:
        return None
    uses = [BlockUse(*use) for use in index_links.path_to(db, row[4])]
    recipe = Recipe(row[0], unpack_row_map(row[2]), _in_file_order(uses), row[1])
    if recipe.seal() != row[3]:
        raise RecipeError("its recipe was changed")
    return recipe


def learn_hashes(db: sqlite3.Connection, xxh3: Mapping[bytes, bytes]) -> None:
    """Write down the fast hashes of blocks."""
    db.executemany("UPDATE blocks SET xxh3 = ?2 WHERE name = ?1", list(xxh3.items()))


def users_of(db: sqlite3.Connection, block: bytes) -> list[int]:
    """The save points that use a block."""
    return index_links.points_beyond(db, block)


def unused_blocks(db: sqlite3.Connection, limit: int) -> list[tuple[int, bytes, int]]:
    """Blocks no save point uses: id, name, bytes on disk. Not only the sum is asked: it may be wrong."""
    really = "NOT EXISTS (SELECT 1 FROM links WHERE block_id = blocks.id)"
    query = f"SELECT id, name, disk_bytes FROM blocks WHERE holders = 0 AND {really} LIMIT ?"
    return db.execute(query, (limit,)).fetchall()


def _path(db: sqlite3.Connection, recipe: Recipe) -> list[index_links.Link]:
    """The recipe's uses as links, those first that the next turn will have as well: rows that keep their place."""
    kinds = [cache.kind for cache in recipe.row_map.caches]

    def moves(use: BlockUse) -> tuple[int, int, int, int]:
        if use.cache != RESIDUE and kinds[use.cache] == "full":
            return 0, use.position, use.cache, use.row
        return 1, use.cache % (len(kinds) + 1), use.row, 0

    names = {use.block for use in recipe.uses}
    ids = {name: _block_id(db, name) for name in names}
    return [
        (ids[use.block], use.cache, use.row, use.rows, use.skip, use.position) for use in sorted(recipe.uses, key=moves)
    ]


def _block_id(db: sqlite3.Connection, name: bytes) -> int:
    return int(db.execute("SELECT id FROM blocks WHERE name = ?", (name,)).fetchone()[0])


def _in_file_order(uses: Iterable[BlockUse]) -> tuple[BlockUse, ...]:
    """Cache by cache, row by row, then the residue: the order in which a file is taken apart, and sealed."""
    return tuple(sorted(uses, key=lambda use: (use.cache == RESIDUE, use.cache, use.row)))
