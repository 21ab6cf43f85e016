"""Save points in the index: each function works within the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields, replace
from typing import Literal

from kvchat.kvstore.index import recipes as index_recipes
from kvchat.kvstore.index import token_tree
from kvchat.kvstore.index.schema import CorruptIndex, fingerprint_of, moment
from kvchat.kvstore.savepoint import PROGRAM, Fingerprint, SavePoint

_LATE = 16  # save points: some turns of some chats
_OF_CHAT = "SELECT s.id FROM save_points s JOIN conversations c ON c.id = s.conversation_id WHERE name = ?"


def fingerprint_id(db: sqlite3.Connection, fingerprint: Fingerprint) -> int | None:
    row = db.execute("SELECT id FROM fingerprints WHERE facts = ?", (_facts(fingerprint),)).fetchone()
    return int(row[0]) if row else None


def _facts(fingerprint: Fingerprint) -> str:
    """Return it as JSON, without fields that have their default: they came later than older save points."""
    told = {f.name: value for f in fields(fingerprint) if (value := getattr(fingerprint, f.name)) != f.default}
    return json.dumps(told, sort_keys=True)


def trees(db: sqlite3.Connection, kind: int | None, audiences: Sequence[str]) -> list[int]:
    """Return the token trees of these audiences under a fingerprint's number."""
    query = "SELECT id FROM trees WHERE fingerprint_id = ? AND audience IN (SELECT value FROM json_each(?))"
    return _numbers(db, query, kind, json.dumps(list(audiences)))


def conversation_key(db: sqlite3.Connection, conversation_id: str) -> int:
    db.execute("INSERT OR IGNORE INTO conversations (name) VALUES (?)", (conversation_id,))
    row = db.execute("SELECT id FROM conversations WHERE name = ?", (conversation_id,)).fetchone()
    return int(row[0])


def never_save(db: sqlite3.Connection, conversation_id: str) -> bool:
    row = db.execute("SELECT never_save FROM conversations WHERE name = ?", (conversation_id,)).fetchone()
    return bool(row and row[0])


def set_flag(db: sqlite3.Connection, conversation_id: str, flag: Literal["pinned", "never_save"], value: bool) -> None:
    key = conversation_key(db, conversation_id)
    db.execute(f"UPDATE conversations SET {flag} = ? WHERE id = ?", (value, key))


def add_staged(db: sqlite3.Connection, new: SavePoint, message_id: str | None) -> SavePoint:
    """Add a save point whose only copy is its slot file in staging; return it with its id."""
    db.execute("INSERT OR IGNORE INTO fingerprints (facts) VALUES (?)", (_facts(new.fingerprint),))
    kind = fingerprint_id(db, new.fingerprint)
    assert kind is not None
    conversation = conversation_key(db, new.conversation_id)
    db.execute("INSERT OR IGNORE INTO trees (fingerprint_id, audience) VALUES (?, ?)", (kind, new.audience))
    (tree_id,) = trees(db, kind, [new.audience])
    node_id = token_tree.add_tokens(db, tree_id, new.tokens)
    now = new.created_at.timestamp()
    point_id = db.execute(
        "INSERT INTO save_points (conversation_id, message_id, fingerprint_id, node_id, n_tokens, file_size,"
        " prefill_ms, created_at, last_used_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (conversation, message_id, kind, node_id, new.n_tokens, new.size, new.prefill_ms, now, now),
    ).lastrowid
    db.execute("DELETE FROM losses WHERE conversation = ? AND fingerprint_id = ?", (new.conversation_id, kind))
    return replace(new, id=str(point_id))


def load(db: sqlite3.Connection, point_id: int) -> SavePoint | None:
    row = db.execute(
        "SELECT conversations.name, facts, node_id, file_size, created_at, last_used_at, prefill_ms, audience"
        " FROM save_points JOIN conversations ON conversations.id = conversation_id"
        " JOIN fingerprints ON fingerprints.id = save_points.fingerprint_id LEFT JOIN nodes ON nodes.id = node_id"
        " LEFT JOIN trees ON trees.id = tree_id WHERE save_points.id = ?",
        (point_id,),
    ).fetchone()
    if row is None:
        return None
    name, facts, node_id, size, created_at, used_at, prefill_ms, audience = row
    tokens = token_tree.tokens_of(db, node_id)
    fingerprint = fingerprint_of(facts)
    if size <= 0 or prefill_ms < 0:
        raise CorruptIndex
    created, used = moment(created_at), moment(used_at)
    return SavePoint(str(point_id), name, fingerprint, tokens, size, created, used, prefill_ms, audience)


def delete(db: sqlite3.Connection, point_ids: Iterable[int]) -> None:
    """Delete save points with their recipes. Blocks that nothing uses any more are left for `unused_blocks`."""
    for point_id in point_ids:
        query = "DELETE FROM save_points WHERE id = ? RETURNING conversation_id, node_id, link_id"
        for conversation, node_id, link_id in db.execute(query, (point_id,)).fetchall():
            index_recipes.release_recipe(db, link_id or 0, conversation)
            token_tree.drop_unused(db, node_id)


def hand_over(db: sqlite3.Connection, doomed: Sequence[int]) -> list[int]:
    """Give those of the `doomed` save points that begin one which stays to that one; return the others.

    Where states cannot be cut, the one at the end of a shared system prompt is worth something to every conversation
    that has it, and belongs to whichever came by first; so is one that another branch goes through.
    """
    ids = json.dumps(list(doomed))
    query = (
        "SELECT s.id, tree_id, node_id FROM save_points s JOIN nodes n ON n.id = node_id"
        " WHERE s.id IN (SELECT value FROM json_each(?)) ORDER BY s.n_tokens DESC"
    )
    barren: set[int] = set()  # the longest first: of a chat's line, no place is then looked at twice
    left = []
    for point_id, tree_id, node_id in db.execute(query, (ids,)).fetchall():
        heir = _heir(db, frozenset(doomed), barren, tree_id, node_id)
        if heir is None:
            left.append(point_id)
        else:
            _give(db, point_id, heir)
    return left


def _heir(db: sqlite3.Connection, doomed: frozenset[int], barren: set[int], tree_id: int, node_id: int) -> int | None:
    """Return a save point beyond this place that stays; None without, and where one stays at this very place."""

    def heir_at(node_id: int, which: str = "NOT never_save") -> int | None:
        query = "SELECT s.id FROM save_points s JOIN conversations c ON c.id = conversation_id WHERE node_id = ? AND "
        return next((id for (id,) in db.execute(query + which, (node_id,)) if id not in doomed), None)

    if heir_at(node_id, "true") is not None:
        return None
    tokens = token_tree.tokens_of(db, node_id)
    for place in token_tree.places(db, [tree_id], tokens):
        if place.shared < len(tokens):
            return None
        heir = token_tree.first_below(db, place.node_id, heir_at, barren)
        if heir is not None:
            return heir
    return None


def _give(db: sqlite3.Connection, point_id: int, heir: int) -> None:
    """Make a save point that of another one's conversation and message."""
    query = "SELECT conversation_id, link_id FROM save_points WHERE id = ?"
    (before, link_id), (after, _) = (db.execute(query, (id,)).fetchone() for id in (point_id, heir))
    db.execute(
        "UPDATE save_points SET (conversation_id, message_id) ="
        " (SELECT conversation_id, message_id FROM save_points WHERE id = ?) WHERE id = ?",
        (heir, point_id),
    )
    index_recipes.hold_recipe(db, link_id or 0, after)
    index_recipes.release_recipe(db, link_id or 0, before)


def staged(db: sqlite3.Connection) -> dict[int, int]:
    """Map the save points whose only copy lies in staging, the oldest first, to their bytes."""
    return dict(db.execute("SELECT id, file_size FROM save_points WHERE link_id IS NULL ORDER BY id").fetchall())


def fingerprints_of(db: sqlite3.Connection, conversation_id: str) -> list[Fingerprint]:
    rows = db.execute(
        "SELECT facts FROM save_points s JOIN conversations c ON c.id = s.conversation_id JOIN fingerprints f"
        " ON f.id = s.fingerprint_id WHERE c.name = ? GROUP BY f.id ORDER BY max(s.created_at)",
        (conversation_id,),
    )
    return [fingerprint_of(facts) for (facts,) in rows]


def points_of(db: sqlite3.Connection, conversation_id: str | None) -> list[int]:
    if conversation_id is None:
        return _numbers(db, "SELECT id FROM save_points")
    return _numbers(db, _OF_CHAT, conversation_id)


def points_of_messages(db: sqlite3.Connection, conversation_id: str, message_ids: Collection[str]) -> list[int]:
    """Return the conversation's save points that end in these messages, or name none."""
    query = f"{_OF_CHAT} AND (message_id IS NULL OR message_id IN (SELECT value FROM json_each(?)))"
    return _numbers(db, query, conversation_id, json.dumps(list(message_ids)))


def points_for(db: sqlite3.Connection, audience: str) -> list[int]:
    query = "SELECT s.id FROM save_points s JOIN nodes n ON n.id = node_id JOIN trees t ON t.id = tree_id"
    return _numbers(db, f"{query} WHERE audience = ?", audience)


def largest_of_late(db: sqlite3.Connection) -> int:
    """Return the bytes of the largest slot file among those used last; 0 without any."""
    late = "SELECT file_size FROM save_points ORDER BY last_used_at DESC LIMIT ?"
    return _numbers(db, f"SELECT coalesce(max(file_size), 0) FROM ({late})", _LATE)[0]


def unused_since(db: sqlite3.Connection, moment: float, protected: int | None, *, programs: bool) -> list[int]:
    """Return the absorbed save points last used before that, but for `protected` and those of pinned conversations.

    `programs`: only those of other programs.
    """
    query = (
        "SELECT s.id FROM save_points s JOIN conversations c ON c.id = s.conversation_id"
        " WHERE link_id IS NOT NULL AND last_used_at < ? AND NOT pinned AND s.id IS NOT ?"
    )
    return _numbers(db, f"{query} AND name GLOB ?", moment, protected, f"{PROGRAM}*" if programs else "*")


def same_place(db: sqlite3.Connection, point_id: int) -> list[int]:
    """Return the older absorbed save points of the same conversation at the same node."""
    query = (
        "SELECT o.id FROM save_points o JOIN save_points s ON o.node_id = s.node_id AND o.conversation_id ="
        " s.conversation_id WHERE s.id = ?1 AND o.id < ?1 AND o.link_id IS NOT NULL"
    )
    return _numbers(db, query, point_id)


def forget(db: sqlite3.Connection, conversation_id: str | None) -> None:
    """Drop what is remembered of a conversation's losses, or all, and a conversation nothing is left of."""
    mine, values = (" WHERE {} = ?", (conversation_id,)) if conversation_id is not None else (" WHERE true", ())
    db.execute("DELETE FROM losses" + mine.format("conversation"), values)
    db.execute(
        f"DELETE FROM conversations{mine.format('name')} AND NOT pinned AND NOT never_save"
        " AND NOT EXISTS (SELECT 1 FROM save_points WHERE conversation_id = conversations.id)",
        values,
    )


def _numbers(db: sqlite3.Connection, query: str, *values: object) -> list[int]:
    return [int(row[0]) for row in db.execute(query, values)]
