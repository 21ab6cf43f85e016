"""Recipes in the index as paths in a tree of links: what many turns share is there once. Within a transaction.

A link is one use of a block after those on the path to it. A conversation holds the links on the paths of its save
points; a link nobody holds is gone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

_START = 0
_COLUMNS = "block_id, cache, first_row, n_rows, skip, position"
Link = tuple[int, int, int, int, int, int]  # those columns


def add(db: sqlite3.Connection, path: Sequence[Link]) -> int:
    """Put a path into the tree, as far as it is not there yet; returns its last link."""
    link_id, new = _START, False
    for link in path:
        row = None if new else db.execute(_same(), (link_id, *link)).fetchone()
        if row is None:
            new = True
            row = db.execute(
                f"INSERT INTO links (parent_id, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id", (link_id, *link)
            ).fetchone()
        link_id = int(row[0])
    return link_id


def hold(db: sqlite3.Connection, link_id: int, conversation: int) -> None:
    """One more save point of the conversation ends at the link."""
    while link_id != _START:
        row = db.execute(
            "INSERT INTO held VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING n", (link_id, conversation)
        ).fetchone()
        if row[0] > 1:  # it holds the way here already
            return
        link_id = _parent(db, link_id)


def release(db: sqlite3.Connection, link_id: int, conversation: int) -> None:
    """One save point less of the conversation ends at the link. What nobody holds any more goes."""
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


def path_to(db: sqlite3.Connection, link_id: int) -> list[sqlite3.Row]:
    """Of each use on the path: name, size, cache, first row, rows, skip, position, and the block's fast hash."""
    query = """
        WITH RECURSIVE up (id, parent_id, block_id, cache, first_row, n_rows, skip, position) AS (
            SELECT * FROM links WHERE id = ?
            UNION ALL SELECT l.* FROM up JOIN links l ON l.id = up.parent_id AND l.id < up.id
        )
        SELECT name, size, cache, first_row, n_rows, skip, position, xxh3 FROM up JOIN blocks b ON b.id = block_id
    """
    return db.execute(query, (link_id,)).fetchall()


def points_beyond(db: sqlite3.Connection, block: bytes) -> list[int]:
    """The save points whose path goes over a use of this block."""
    query = """
        WITH RECURSIVE down (id) AS (
            SELECT links.id FROM links JOIN blocks b ON b.id = block_id WHERE b.name = ?
            UNION SELECT l.id FROM down JOIN links l ON l.parent_id = down.id AND l.id > down.id
        )
        SELECT s.id FROM down CROSS JOIN save_points s ON s.link_id = down.id
    """
    return [int(row[0]) for row in db.execute(query, (block,))]


def _same() -> str:
    same = " AND ".join(f"{name} = ?" for name in _COLUMNS.split(", "))
    return f"SELECT id FROM links WHERE parent_id = ? AND {same}"


def _parent(db: sqlite3.Connection, link_id: int) -> int:
    row = db.execute("SELECT parent_id FROM links WHERE id = ? AND parent_id < id", (link_id,)).fetchone()
    return int(row[0]) if row else _START
