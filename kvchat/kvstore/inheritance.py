"""What becomes of save points that are to be deleted and that others begin with: those take them over.

Where states cannot be cut, the save point at the end of a shared system prompt is worth something to every
conversation that has it, and belongs to whichever came by first; so is one that another branch goes through.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from kvchat.kvstore import token_tree


def hand_over(db: sqlite3.Connection, doomed: Sequence[int]) -> list[int]:
    """Give the save points that begin one which stays to that one's message; returns the others.

    Within the caller's transaction.
    """
    ids = json.dumps(list(doomed))
    query = (
        "SELECT id, fingerprint_id, node_id FROM save_points"
        " WHERE id IN (SELECT value FROM json_each(?)) ORDER BY n_tokens"
    )
    left = []
    for point_id, kind, node_id in db.execute(query, (ids,)).fetchall():
        heir = _heir(db, ids, kind, node_id)
        if heir is None:
            left.append(point_id)
        else:
            _give(db, point_id, heir)
    return left


def _heir(db: sqlite3.Connection, doomed: str, kind: int, node_id: int) -> int | None:
    """A save point beyond this place that stays; None without, and where one stays at this very place."""
    stays = "id NOT IN (SELECT value FROM json_each(?))"
    if db.execute(f"SELECT 1 FROM save_points WHERE node_id = ? AND {stays}", (node_id, doomed)).fetchone():
        return None
    tokens = token_tree.tokens_of(db, node_id)
    for place in token_tree.places(db, kind, tokens, beside=True):
        if place.shared < len(tokens):
            return None
        row = db.execute(
            f"""
            WITH RECURSIVE down (id) AS (
                VALUES (?) UNION ALL SELECT nodes.id FROM down JOIN nodes ON nodes.parent_id = down.id
            )
            SELECT s.id FROM down CROSS JOIN save_points s ON s.node_id = down.id
            JOIN conversations c ON c.id = s.conversation_id
            WHERE NOT c.never_save AND s.{stays} LIMIT 1
            """,
            (place.node_id, doomed),
        ).fetchone()
        if row:
            return int(row[0])
    return None


def _give(db: sqlite3.Connection, point_id: int, heir: int) -> None:
    """The uses are written anew: triggers keep the sums by whom they belong to then."""
    uses = db.execute("SELECT * FROM block_uses WHERE save_point_id = ?", (point_id,)).fetchall()
    db.execute("DELETE FROM block_uses WHERE save_point_id = ?", (point_id,))
    db.execute(
        "UPDATE save_points SET (conversation_id, message_id) ="
        " (SELECT conversation_id, message_id FROM save_points WHERE id = ?) WHERE id = ?",
        (heir, point_id),
    )
    db.executemany("INSERT INTO block_uses VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [tuple(use) for use in uses])
