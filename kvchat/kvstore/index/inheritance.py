"""What becomes of save points that are to be deleted and that others begin with: those take them over.

Where states cannot be cut, the save point at the end of a shared system prompt is worth something to every
conversation that has it, and belongs to whichever came by first; so is one that another branch goes through.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.index import token_tree


def hand_over(db: sqlite3.Connection, doomed: Sequence[int]) -> list[int]:
    """Give the save points that begin one which stays to that one's message; returns the others.

    Within the caller's transaction.
    """
    ids = json.dumps(list(doomed))
    query = (
        "SELECT id, fingerprint_id, node_id FROM save_points"
        " WHERE id IN (SELECT value FROM json_each(?)) ORDER BY n_tokens DESC"
    )
    barren: set[int] = set()  # the longest first: of a chat's line, no place is then looked at twice
    left = []
    for point_id, kind, node_id in db.execute(query, (ids,)).fetchall():
        heir = _heir(db, frozenset(doomed), barren, kind, node_id)
        if heir is None:
            left.append(point_id)
        else:
            index_points.give(db, point_id, heir)
    return left


def _heir(db: sqlite3.Connection, doomed: frozenset[int], barren: set[int], kind: int, node_id: int) -> int | None:
    """A save point beyond this place that stays; None without, and where one stays at this very place."""

    def heir_at(node_id: int, which: str = "NOT never_save") -> int | None:
        query = "SELECT s.id FROM save_points s JOIN conversations c ON c.id = conversation_id WHERE node_id = ? AND "
        return next((id for (id,) in db.execute(query + which, (node_id,)) if id not in doomed), None)

    if heir_at(node_id, "true") is not None:
        return None
    tokens = token_tree.tokens_of(db, node_id)
    for place in token_tree.places(db, kind, tokens):
        if place.shared < len(tokens):
            return None
        heir = token_tree.first_below(db, place.node_id, heir_at, barren)
        if heir is not None:
            return heir
    return None
