"""What becomes of a deleted conversation's save points that others begin with: one of those takes them over.

Where states cannot be cut, the save point at the end of a shared system prompt is worth something to every
conversation that has it, and belongs to whichever came by first.
"""

from __future__ import annotations

import sqlite3

from kvchat.kvstore import token_tree


def hand_over(db: sqlite3.Connection, conversation_id: str) -> None:
    """Give the conversation's save points that begin another one's to that one. Within the caller's transaction."""
    query = (
        "SELECT s.id, s.fingerprint_id, s.node_id FROM save_points s JOIN conversations c ON c.id = s.conversation_id"
        " WHERE c.name = ? ORDER BY s.n_tokens"
    )
    for point_id, kind, node_id in db.execute(query, (conversation_id,)).fetchall():
        heir = _heir(db, conversation_id, kind, node_id)
        if heir is None:
            return  # longer ones begin nothing either
        _give(db, point_id, heir)


def _heir(db: sqlite3.Connection, conversation_id: str, kind: int, node_id: int) -> int | None:
    """Another conversation with a save point at this place or beyond it."""
    tokens = token_tree.tokens_of(db, node_id)
    for place in token_tree.places(db, kind, tokens, beside=True):
        if place.shared < len(tokens):
            return None
        row = db.execute(
            """
            WITH RECURSIVE down (id) AS (
                VALUES (?) UNION ALL SELECT nodes.id FROM down JOIN nodes ON nodes.parent_id = down.id
            )
            SELECT c.id FROM down CROSS JOIN save_points s ON s.node_id = down.id
            JOIN conversations c ON c.id = s.conversation_id WHERE c.name <> ? AND NOT c.never_save LIMIT 1
            """,
            (place.node_id, conversation_id),
        ).fetchone()
        if row:
            return int(row[0])
    return None


def _give(db: sqlite3.Connection, point_id: int, heir: int) -> None:
    """The uses are written anew: triggers keep the sums by whom they belong to then."""
    uses = db.execute("SELECT * FROM block_uses WHERE save_point_id = ?", (point_id,)).fetchall()
    db.execute("DELETE FROM block_uses WHERE save_point_id = ?", (point_id,))
    db.execute("UPDATE save_points SET conversation_id = ? WHERE id = ?", (heir, point_id))
    db.executemany("INSERT INTO block_uses VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [tuple(use) for use in uses])
