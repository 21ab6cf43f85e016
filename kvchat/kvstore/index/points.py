"""Save points and their recipes in the index. All functions run within the caller's transaction.

A recipe is stored as a path in a tree of links, so that turns share the links of common blocks. A link is the use of
one block; its parent is the previous use. Links on no save point's path are deleted.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import datetime
from typing import Literal

from kvchat.kvstore.blocks.recipe import RESIDUE, BlockUse, Recipe, RecipeError, pack_row_map, unpack_row_map
from kvchat.kvstore.index import token_tree
from kvchat.kvstore.index.schema import CorruptIndex, parse_fingerprint
from kvchat.kvstore.savepoint import Fingerprint, SavePoint

POINTS = "SELECT s.id FROM save_points s JOIN conversations c ON c.id = s.conversation_id"
_NO_LINK = 0
_COLUMNS = "block_id, cache, first_row, n_rows, skip, position"
_FIND_LINK = f"SELECT id FROM links WHERE parent_id = ? AND ({_COLUMNS}) = (?, ?, ?, ?, ?, ?)"
_ADD_LINK = f"INSERT INTO links (parent_id, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id"


def find_fingerprint(db: sqlite3.Connection, fingerprint: Fingerprint) -> int | None:
    row = db.execute("SELECT id FROM fingerprints WHERE facts = ?", (_facts(fingerprint),)).fetchone()
    return int(row[0]) if row else None


def _facts(fingerprint: Fingerprint) -> str:
    """Return the fingerprint as JSON. Default values are left out, because older save points lack newer fields."""
    facts = {f.name: value for f in fields(fingerprint) if (value := getattr(fingerprint, f.name)) != f.default}
    return json.dumps(facts, sort_keys=True)


def find_trees(db: sqlite3.Connection, fingerprint_id: int | None, audiences: Sequence[str]) -> list[int]:
    query = "SELECT id FROM trees WHERE fingerprint_id = ? AND audience IN (SELECT value FROM json_each(?))"
    return fetch_integers(db, query, fingerprint_id, json.dumps(list(audiences)))


def is_never_saved(db: sqlite3.Connection, conversation_id: str) -> bool:
    row = db.execute("SELECT never_save FROM conversations WHERE name = ?", (conversation_id,)).fetchone()
    return bool(row and row[0])


def set_flag(db: sqlite3.Connection, conversation_id: str, flag: Literal["pinned", "never_save"], value: bool) -> None:
    query = f"INSERT INTO conversations (name, {flag}) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET {flag} = ?2"
    db.execute(query, (conversation_id, value))


def add_staged(db: sqlite3.Connection, new: SavePoint, message_id: str | None, now: datetime) -> SavePoint:
    def find_or_add(table: str, **values: object) -> int:
        columns = ", ".join(values)
        row = (*values.values(),)
        db.execute(f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({', '.join('?' * len(row))})", row)
        where = " AND ".join(f"{column} = ?" for column in values)
        return int(db.execute(f"SELECT id FROM {table} WHERE {where}", row).fetchone()[0])

    fingerprint = find_or_add("fingerprints", facts=_facts(new.fingerprint))
    conversation = find_or_add("conversations", name=new.conversation_id)
    tree_id = find_or_add("trees", fingerprint_id=fingerprint, audience=new.audience)
    node_id = token_tree.add_tokens(db, tree_id, new.tokens)
    created = now.timestamp()
    point_id = db.execute(
        "INSERT INTO save_points (conversation_id, message_id, fingerprint_id, node_id, n_tokens, file_size,"
        " prefill_ms, created_at, last_used_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (conversation, message_id, fingerprint, node_id, new.n_tokens, new.size, new.prefill_ms, created, created),
    ).lastrowid
    db.execute("DELETE FROM losses WHERE conversation = ? AND fingerprint_id = ?", (new.conversation_id, fingerprint))
    return replace(new, id=str(point_id))


def load(db: sqlite3.Connection, point_id: int) -> SavePoint | None:
    row = db.execute(
        "SELECT conversations.name, facts, node_id, file_size, prefill_ms, audience"
        " FROM save_points JOIN conversations ON conversations.id = conversation_id"
        " JOIN fingerprints ON fingerprints.id = save_points.fingerprint_id LEFT JOIN nodes ON nodes.id = node_id"
        " LEFT JOIN trees ON trees.id = tree_id WHERE save_points.id = ?",
        (point_id,),
    ).fetchone()
    if row is None:
        return None
    name, facts, node_id, size, prefill_ms, audience = row
    tokens = token_tree.load_tokens(db, node_id)
    if size <= 0 or prefill_ms < 0:
        raise CorruptIndex
    return SavePoint(str(point_id), name, parse_fingerprint(facts), tokens, size, prefill_ms, audience)


def delete(db: sqlite3.Connection, point_ids: Iterable[int]) -> None:
    """Delete save points and their recipes, but not their blocks (see `Inventory.delete_unused_blocks`)."""
    for point_id in point_ids:
        query = "DELETE FROM save_points WHERE id = ? RETURNING node_id, link_id"
        for node_id, link_id in db.execute(query, (point_id,)).fetchall():
            _drop_unused_links(db, link_id or _NO_LINK)
            token_tree.delete_unused_nodes(db, node_id)


def transfer_to_extensions(db: sqlite3.Connection, point_ids: Sequence[int]) -> list[int]:
    """Hand save points over to another conversation that continues them; return the ids of those not handed over.

    A save point is handed over if a save point that is not in `point_ids` extends its tokens. The save point at the end
    of a shared system prompt belongs to the first conversation with this prompt, but is useful to all of them if states
    cannot be cut. The same applies to save points that several branches extend.
    """
    query = (
        "SELECT s.id, tree_id, node_id FROM save_points s JOIN nodes n ON n.id = node_id"
        " WHERE s.id IN (SELECT value FROM json_each(?)) ORDER BY s.n_tokens DESC"
    )
    empty_nodes: set[int] = set()  # longest first, so that no node is checked twice
    rest = []
    for point_id, tree_id, node_id in db.execute(query, (json.dumps(list(point_ids)),)).fetchall():
        successor = _find_successor(db, frozenset(point_ids), empty_nodes, tree_id, node_id)
        if successor is None:
            rest.append(point_id)
            continue
        owner = "SELECT conversation_id, message_id FROM save_points WHERE id = ?"
        db.execute(
            f"UPDATE save_points SET (conversation_id, message_id) = ({owner}) WHERE id = ?", (successor, point_id)
        )
    return rest


def _find_successor(
    db: sqlite3.Connection, excluded: frozenset[int], empty_nodes: set[int], tree_id: int, node_id: int
) -> int | None:
    """Return the id of a save point that extends the node's tokens and is not in `excluded`.

    Skips conversations that are never saved. Returns None if there is none, or if another save point has exactly the
    node's tokens. `empty_nodes`: as for `find_first_below`.
    """

    def successor_at(node_id: int, condition: str = "NOT never_save") -> int | None:
        ids = fetch_integers(db, f"{POINTS} WHERE node_id = ? AND {condition}", node_id)
        return next((id for id in ids if id not in excluded), None)

    if successor_at(node_id, "true") is not None:
        return None
    tokens = token_tree.load_tokens(db, node_id)
    for match in token_tree.find_matches(db, [tree_id], tokens):
        if match.shared < len(tokens):
            return None
        successor = token_tree.find_first_below(db, match.node_id, successor_at, empty_nodes)
        if successor is not None:
            return successor
    return None


def staged_sizes(db: sqlite3.Connection) -> dict[int, int]:
    return dict(db.execute("SELECT id, file_size FROM save_points WHERE link_id IS NULL ORDER BY id").fetchall())


def delete_conversations(db: sqlite3.Connection, condition: str, *values: object) -> list[int]:
    """Delete all that is kept for the conversations that match an SQL condition; return the deleted save points.

    Save points handed over by `transfer_to_extensions` stay, and so do conversations with flags.
    """
    ids = transfer_to_extensions(db, fetch_integers(db, f"{POINTS} WHERE {condition}", *values))
    delete(db, ids)
    names = f"SELECT name FROM conversations WHERE {condition}"
    db.execute(f"DELETE FROM losses WHERE conversation IN ({names})", values)
    empty = "NOT EXISTS (SELECT 1 FROM save_points WHERE conversation_id = conversations.id)"
    db.execute(f"DELETE FROM conversations WHERE {condition} AND NOT pinned AND NOT never_save AND {empty}", values)
    return ids


def fetch_integers(db: sqlite3.Connection, query: str, *values: object) -> list[int]:
    return [int(row[0]) for row in db.execute(query, values)]


def store_recipe(db: sqlite3.Connection, point_id: int, recipe: Recipe, on_disk: Mapping[bytes, int]) -> bool:
    """Store the recipe of a staged save point; return False if the save point was deleted.

    `on_disk`: disk usage of each block. Also deletes the conversation's older absorbed save points with the same
    tokens.
    """
    row = db.execute("SELECT conversation_id, node_id FROM save_points WHERE id = ?", (point_id,)).fetchone()
    if row is None:
        return False
    conversation, node_id = row
    some_rows = bool(recipe.row_map.caches)  # without caches (unknown layout) all blocks count as rows
    db.executemany(
        "INSERT INTO blocks (name, size, residue, disk_bytes, xxh3) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET xxh3 = excluded.xxh3 WHERE excluded.xxh3 <> x''",
        {(u.block, u.size, some_rows and u.cache == RESIDUE, on_disk[u.block], u.xxh3) for u in recipe.uses},
    )
    link_id = _add_path(db, recipe)
    db.execute(
        "UPDATE save_points SET file_size = ?, row_map = ?, seal = ?, link_id = ? WHERE id = ?",
        (recipe.file_size, pack_row_map(recipe.row_map), recipe.digest(), link_id, point_id),
    )
    same = "SELECT id FROM save_points WHERE node_id = ? AND conversation_id = ? AND id < ? AND link_id IS NOT NULL"
    delete(db, fetch_integers(db, same, node_id, conversation, point_id))
    return True


def load_recipe(db: sqlite3.Connection, point_id: int) -> Recipe | None:
    """Return a save point's recipe, or None if it is not absorbed. Raises RecipeError if it was modified."""
    query = "SELECT file_size, row_map, seal, link_id FROM save_points WHERE id = ? AND link_id IS NOT NULL"
    row = db.execute(query, (point_id,)).fetchone()
    if row is None:
        return None
    file_size, row_map, seal, link_id = row
    path = """
        WITH RECURSIVE up (id, parent_id, block_id, cache, first_row, n_rows, skip, position) AS (
            SELECT * FROM links WHERE id = ?
            UNION ALL SELECT l.* FROM up JOIN links l ON l.id = up.parent_id AND l.id < up.id
        )
        SELECT name, size, cache, first_row, n_rows, skip, position, xxh3 FROM up JOIN blocks b ON b.id = block_id
    """
    uses = tuple(BlockUse(*use) for use in db.execute(path, (link_id,)))
    recipe = Recipe(file_size, unpack_row_map(row_map), uses)
    if recipe.digest() != seal:
        raise RecipeError("its recipe was modified")
    return recipe


def find_recipe(db: sqlite3.Connection, point_id: int) -> Recipe | None:
    """Return a save point's recipe, or None if it is not absorbed or was modified."""
    with suppress(RecipeError):
        return load_recipe(db, point_id)
    return None


def _add_path(db: sqlite3.Connection, recipe: Recipe) -> int:
    """Add a recipe's missing links; return the last link's id. Rows that later turns can share come first."""
    is_window = [cache.is_window for cache in recipe.row_map.caches]

    def sort_key(use: BlockUse) -> tuple[int, int, int, int]:
        if use.cache != RESIDUE and not is_window[use.cache]:
            return 0, use.position, use.cache, use.row
        return 1, use.cache % (len(is_window) + 1), use.row, 0

    names = {use.block for use in recipe.uses}
    ids = {name: db.execute("SELECT id FROM blocks WHERE name = ?", (name,)).fetchone()[0] for name in names}
    link_id, is_new = _NO_LINK, False
    for use in sorted(recipe.uses, key=sort_key):
        link = (link_id, ids[use.block], use.cache, use.row, use.rows, use.skip, use.position)
        row = None if is_new else db.execute(_FIND_LINK, link).fetchone()
        if row is None:
            is_new = True
            row = db.execute(_ADD_LINK, link).fetchone()
        link_id = int(row[0])
    return link_id


def _drop_unused_links(db: sqlite3.Connection, link_id: int) -> None:
    """Delete unused links from the end of a path upwards."""
    unused = (
        "DELETE FROM links WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM links WHERE parent_id = ?1)"
        " AND NOT EXISTS (SELECT 1 FROM save_points WHERE link_id = ?1) RETURNING parent_id"
    )
    while row := db.execute(unused, (link_id,)).fetchone():
        link_id = row[0]


def points_using_block(db: sqlite3.Connection, block: bytes) -> list[int]:
    query = """
        WITH RECURSIVE down (id) AS (
            SELECT links.id FROM links JOIN blocks b ON b.id = block_id WHERE b.name = ?
            UNION SELECT l.id FROM down JOIN links l ON l.parent_id = down.id AND l.id > down.id
        )
        SELECT s.id FROM down CROSS JOIN save_points s ON s.link_id = down.id
    """
    return fetch_integers(db, query, block)
