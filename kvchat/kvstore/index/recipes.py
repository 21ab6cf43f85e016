"""Recipes and blocks in the index: each function works within the caller's transaction.

Recipes are paths in a tree of links: what many turns share is there once. A link is one use of a block after those on
the path to it. A conversation holds the links on the paths of its save points; a link nobody holds is gone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kvchat.kvstore.blocks.recipe import RESIDUE, BlockUse, Recipe, RecipeError, pack_row_map, unpack_row_map

_START = 0
_COLUMNS = "block_id, cache, first_row, n_rows, skip, position"
_Link = tuple[int, int, int, int, int, int]  # those columns
_SAME = "SELECT id FROM links WHERE parent_id = ? AND " + " AND ".join(f"{name} = ?" for name in _COLUMNS.split(", "))


def store_recipe(db: sqlite3.Connection, point_id: int, recipe: Recipe, on_disk: Mapping[bytes, int]) -> bool:
    """Make a staged save point an absorbed one; return False if it was deleted meanwhile.

    `on_disk`: the bytes that each block takes on disk.
    """
    row = db.execute("SELECT conversation_id FROM save_points WHERE id = ?", (point_id,)).fetchone()
    if row is None:
        return False
    some_rows = bool(recipe.row_map.caches)  # without any the layout is unknown, and all of it counts as rows
    db.executemany(
        "INSERT INTO blocks (name, size, residue, disk_bytes, xxh3) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET xxh3 = excluded.xxh3 WHERE excluded.xxh3 <> x''",
        {(u.block, u.size, some_rows and u.cache == RESIDUE, on_disk[u.block], u.xxh3) for u in recipe.uses},
    )
    link_id = _add(db, _path(db, recipe))
    hold_recipe(db, link_id, row[0])
    recipe = replace(recipe, uses=_in_file_order(recipe.uses))
    db.execute(
        "UPDATE save_points SET file_size = ?, row_map = ?, seal = ?, link_id = ? WHERE id = ?",
        (recipe.file_size, pack_row_map(recipe.row_map), recipe.seal(), link_id, point_id),
    )
    return True


def load_recipe(db: sqlite3.Connection, point_id: int) -> Recipe | None:
    """Return the recipe of an absorbed save point, None without. Raises RecipeError if it was changed."""
    query = "SELECT file_size, row_map, seal, link_id FROM save_points WHERE id = ? AND link_id IS NOT NULL"
    row = db.execute(query, (point_id,)).fetchone()
    if row is None:
        return None
    file_size, row_map, seal, link_id = row
    uses = [BlockUse(*use) for use in _path_to(db, link_id)]
    recipe = Recipe(file_size, unpack_row_map(row_map), _in_file_order(uses))
    if recipe.seal() != seal:
        raise RecipeError("its recipe was changed")
    return recipe


def absorbed_of(db: sqlite3.Connection, conversation_id: str) -> dict[int, str | None]:
    query = (
        "SELECT s.id, message_id FROM save_points s JOIN conversations c ON c.id = s.conversation_id"
        " WHERE name = ? AND link_id IS NOT NULL ORDER BY s.id"
    )
    return dict(db.execute(query, (conversation_id,)).fetchall())


def unused_blocks(db: sqlite3.Connection, limit: int) -> list[tuple[int, bytes, int]]:
    """Return blocks no save point uses: id, name, bytes on disk. The links count, for the sum may be wrong."""
    really = "NOT EXISTS (SELECT 1 FROM links WHERE block_id = blocks.id)"
    query = f"SELECT id, name, disk_bytes FROM blocks WHERE holders = 0 AND {really} LIMIT ?"
    return db.execute(query, (limit,)).fetchall()


def _path(db: sqlite3.Connection, recipe: Recipe) -> list[_Link]:
    """Return the recipe's uses as links, those first that the next turn shares: rows that keep their place."""
    kinds = [cache.kind for cache in recipe.row_map.caches]

    def moves(use: BlockUse) -> tuple[int, int, int, int]:
        if use.cache != RESIDUE and kinds[use.cache] == "full":
            return 0, use.position, use.cache, use.row
        return 1, use.cache % (len(kinds) + 1), use.row, 0

    names = {use.block for use in recipe.uses}
    ids = {name: db.execute("SELECT id FROM blocks WHERE name = ?", (name,)).fetchone()[0] for name in names}
    uses = sorted(recipe.uses, key=moves)
    return [(ids[use.block], use.cache, use.row, use.rows, use.skip, use.position) for use in uses]


def _in_file_order(uses: Iterable[BlockUse]) -> tuple[BlockUse, ...]:
    """Sort cache by cache, row by row, then the residue: the order in which a file is taken apart, and sealed."""
    return tuple(sorted(uses, key=lambda use: (use.cache == RESIDUE, use.cache, use.row)))


def _add(db: sqlite3.Connection, path: Sequence[_Link]) -> int:
    """Put a path into the tree, as far as it is not there yet; return its last link."""
    link_id, new = _START, False
    for link in path:
        row = None if new else db.execute(_SAME, (link_id, *link)).fetchone()
        if row is None:
            new = True
            row = db.execute(
                f"INSERT INTO links (parent_id, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id", (link_id, *link)
            ).fetchone()
        link_id = int(row[0])
    return link_id


def hold_recipe(db: sqlite3.Connection, link_id: int, conversation: int) -> None:
    """Count one more save point of the conversation that ends at the link."""
    while link_id != _START:
        row = db.execute(
            "INSERT INTO held VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING n", (link_id, conversation)
        ).fetchone()
        if row[0] > 1:  # it holds the way here already
            return
        link_id = _parent(db, link_id)


def release_recipe(db: sqlite3.Connection, link_id: int, conversation: int) -> None:
    """Count one save point less that ends at the link; delete what nobody holds any more."""
    while link_id != _START:
        place = (link_id, conversation)
        row = db.execute(
            "UPDATE held SET n = n - 1 WHERE link_id = ? AND conversation_id = ? RETURNING n", place
        ).fetchone()
        if row is None or row[0] > 0:
            return
        db.execute("DELETE FROM held WHERE link_id = ? AND conversation_id = ?", place)
        parent_id = _parent(db, link_id)
        if not db.execute("SELECT 1 FROM held WHERE link_id = ?", (link_id,)).fetchone():
            db.execute("DELETE FROM links WHERE id = ?", (link_id,))
        link_id = parent_id


def _path_to(db: sqlite3.Connection, link_id: int) -> list[sqlite3.Row]:
    """Return for each use on the path: name, size, cache, first row, rows, skip, position, the block's fast hash."""
    query = """
        WITH RECURSIVE up (id, parent_id, block_id, cache, first_row, n_rows, skip, position) AS (
            SELECT * FROM links WHERE id = ?
            UNION ALL SELECT l.* FROM up JOIN links l ON l.id = up.parent_id AND l.id < up.id
        )
        SELECT name, size, cache, first_row, n_rows, skip, position, xxh3 FROM up JOIN blocks b ON b.id = block_id
    """
    return db.execute(query, (link_id,)).fetchall()


def users_of(db: sqlite3.Connection, block: bytes) -> list[int]:
    query = """
        WITH RECURSIVE down (id) AS (
            SELECT links.id FROM links JOIN blocks b ON b.id = block_id WHERE b.name = ?
            UNION SELECT l.id FROM down JOIN links l ON l.parent_id = down.id AND l.id > down.id
        )
        SELECT s.id FROM down CROSS JOIN save_points s ON s.link_id = down.id
    """
    return [int(row[0]) for row in db.execute(query, (block,))]


def _parent(db: sqlite3.Connection, link_id: int) -> int:
    row = db.execute("SELECT parent_id FROM links WHERE id = ? AND parent_id < id", (link_id,)).fetchone()
    return int(row[0]) if row else _START
