"""Save points in the index: each function works within the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime

from kvchat.kvstore.audience import CHATS
from kvchat.kvstore.index import recipes as index_recipes
from kvchat.kvstore.index import token_tree
from kvchat.kvstore.index.check import CorruptIndex, fingerprint_of, moment
from kvchat.kvstore.savepoint import PROGRAM, Fingerprint, SavePoint, Tokens
from kvchat.words.reasons import Reason, ReasonCode, reason_of

_LATE = 16  # save points: some turns of some chats


@dataclass(frozen=True)
class NewPoint:
    """What is known of a save point when its file has just been taken."""

    conversation_id: str
    message_id: str | None  # the last one that the tokens hold
    fingerprint: Fingerprint
    tokens: Tokens
    size: int  # bytes of the slot file
    prefill_ms: float
    created_at: datetime
    audience: str = CHATS  # who may reuse it


def fingerprint_id(db: sqlite3.Connection, fingerprint: Fingerprint) -> int | None:
    """The number of a fingerprint, None if nothing was ever saved under it."""
    row = db.execute("SELECT id FROM fingerprints WHERE facts = ?", (_facts(fingerprint),)).fetchone()
    return int(row[0]) if row else None


def trees(db: sqlite3.Connection, kind: int | None, audiences: Sequence[str]) -> list[int]:
    """The token trees of these audiences under a fingerprint's number, as far as there are any."""
    query = "SELECT id FROM trees WHERE fingerprint_id = ? AND audience IN (SELECT value FROM json_each(?))"
    return [int(row[0]) for row in db.execute(query, (kind, json.dumps(list(audiences))))]


def conversation_key(db: sqlite3.Connection, conversation_id: str) -> int:
    """The number of a conversation, a new one if need be."""
    db.execute("INSERT OR IGNORE INTO conversations (name) VALUES (?)", (conversation_id,))
    row = db.execute("SELECT id FROM conversations WHERE name = ?", (conversation_id,)).fetchone()
    return int(row[0])


def never_save(db: sqlite3.Connection, conversation_id: str) -> bool:
    """Whether the user chose never to save a conversation."""
    row = db.execute("SELECT never_save FROM conversations WHERE name = ?", (conversation_id,)).fetchone()
    return bool(row and row[0])


def add_staged(db: sqlite3.Connection, new: NewPoint, owner: str) -> SavePoint:
    """Add a save point whose only copy is the slot file in `owner`'s staging folder."""
    db.execute("INSERT OR IGNORE INTO fingerprints (facts) VALUES (?)", (_facts(new.fingerprint),))
    kind = fingerprint_id(db, new.fingerprint)
    assert kind is not None
    conversation = conversation_key(db, new.conversation_id)
    db.execute("INSERT OR IGNORE INTO trees (fingerprint_id, audience) VALUES (?, ?)", (kind, new.audience))
    (tree_id,) = trees(db, kind, [new.audience])
    node_id = token_tree.add_tokens(db, tree_id, new.tokens)
    now = new.created_at.timestamp()
    point_id = db.execute(
        "INSERT INTO save_points (conversation_id, message_id, fingerprint_id, node_id, n_tokens, owner, file_size,"
        " prefill_ms, created_at, last_used_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (conversation, new.message_id, kind, node_id, len(new.tokens), owner, new.size, new.prefill_ms, now, now),
    ).lastrowid
    db.execute("DELETE FROM losses WHERE conversation = ? AND fingerprint_id = ?", (new.conversation_id, kind))
    return SavePoint(
        str(point_id),
        new.conversation_id,
        new.fingerprint,
        new.tokens,
        new.size,
        new.created_at,
        new.created_at,
        new.prefill_ms,
        new.audience,
    )


def load(db: sqlite3.Connection, point_id: int) -> SavePoint | None:
    """A save point by its number, None when it is gone."""
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


def count_use(db: sqlite3.Connection, point_id: int, now: datetime) -> None:
    """Count a use."""
    db.execute("UPDATE save_points SET last_used_at = ?, uses = uses + 1 WHERE id = ?", (now.timestamp(), point_id))


def delete(db: sqlite3.Connection, point_ids: Iterable[int]) -> None:
    """Delete save points with their recipes. Blocks that nothing uses any more are left for `unused_blocks`."""
    for point_id in point_ids:
        query = "DELETE FROM save_points WHERE id = ? RETURNING conversation_id, node_id, link_id"
        for conversation, node_id, link_id in db.execute(query, (point_id,)).fetchall():
            index_recipes.release_recipe(db, link_id or 0, conversation)
            token_tree.drop_unused(db, node_id)


def hand_over(db: sqlite3.Connection, doomed: Sequence[int]) -> list[int]:
    """Of save points that are to be deleted, give those that begin one which stays to that one; returns the others.

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
    """A save point beyond this place that stays; None without, and where one stays at this very place."""

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
    (before, link_id), (after, _) = (db.execute(query, (one,)).fetchone() for one in (point_id, heir))
    db.execute(
        "UPDATE save_points SET (conversation_id, message_id) ="
        " (SELECT conversation_id, message_id FROM save_points WHERE id = ?) WHERE id = ?",
        (heir, point_id),
    )
    index_recipes.hold_recipe(db, link_id or 0, after)
    index_recipes.release_recipe(db, link_id or 0, before)


def lose(
    db: sqlite3.Connection, point_ids: Sequence[int], reason: Reason, now: datetime, *, tell: bool, block: bytes | None
) -> None:
    """Delete save points and remember why: `find` answers with the reason, and the user is told once if `tell`."""
    for point_id in point_ids:
        db.execute(
            "INSERT INTO losses (save_point_id, conversation, fingerprint_id, reason, block, lost_at, told)"
            " SELECT save_points.id, name, fingerprint_id, ?, ?, ?, ? FROM save_points"
            " JOIN conversations ON conversations.id = conversation_id WHERE save_points.id = ?",
            (json.dumps(asdict(reason)), block, now.timestamp(), not tell, point_id),
        )
    delete(db, point_ids)


def staged_by(db: sqlite3.Connection, owner: str) -> list[int]:
    """The save points whose only copy lies in this staging folder, the oldest first."""
    return [int(row[0]) for row in db.execute("SELECT id FROM save_points WHERE owner = ? ORDER BY id", (owner,))]


def owners(db: sqlite3.Connection) -> list[str]:
    """The staging folders that alone hold save points."""
    return [str(row[0]) for row in db.execute("SELECT DISTINCT owner FROM save_points WHERE owner IS NOT NULL")]


def loss_of(db: sqlite3.Connection, point_id: int) -> Reason | None:
    """Why a save point was taken out of use, None if it was not."""
    row = db.execute("SELECT reason FROM losses WHERE save_point_id = ?", (point_id,)).fetchone()
    return lost_for(row[0]) if row else None


def newest_loss(db: sqlite3.Connection, conversation_id: str, kind: int | None) -> Reason | None:
    """Why a conversation has no save point for a fingerprint, None if it never had one."""
    row = db.execute(
        "SELECT reason FROM losses WHERE conversation = ? AND fingerprint_id = ? ORDER BY id DESC LIMIT 1",
        (conversation_id, kind),
    ).fetchone()
    return lost_for(row[0]) if row else None


def lost_for(stored: str) -> Reason:
    """The reason of a loss, as far as it can be read."""
    with suppress(ValueError, RecursionError):
        if reason := reason_of(json.loads(stored)):
            return reason
    return Reason(ReasonCode.SET_ASIDE)


def fingerprints_of(db: sqlite3.Connection, conversation_id: str) -> list[Fingerprint]:
    """The fingerprints under which a conversation has save points, the newest last."""
    rows = db.execute(
        "SELECT facts FROM save_points s JOIN conversations c ON c.id = s.conversation_id JOIN fingerprints f"
        " ON f.id = s.fingerprint_id WHERE c.name = ? GROUP BY f.id ORDER BY max(s.created_at)",
        (conversation_id,),
    )
    return [fingerprint_of(facts) for (facts,) in rows]


def points_of(db: sqlite3.Connection, conversation_id: str | None) -> list[int]:
    """The save points of a conversation, or all."""
    if conversation_id is None:
        return [int(row[0]) for row in db.execute("SELECT id FROM save_points")]
    query = "SELECT s.id FROM save_points s JOIN conversations c ON c.id = s.conversation_id WHERE name = ?"
    return [int(row[0]) for row in db.execute(query, (conversation_id,))]


def points_for(db: sqlite3.Connection, audience: str) -> list[int]:
    """The save points of an audience."""
    query = (
        "SELECT s.id FROM save_points s JOIN nodes n ON n.id = node_id JOIN trees t ON t.id = tree_id"
        " WHERE audience = ?"
    )
    return [int(row[0]) for row in db.execute(query, (audience,))]


def points_of_messages(db: sqlite3.Connection, conversation_id: str, message_ids: Collection[str]) -> list[int]:
    """The conversation's save points that end in these messages, and those of which that is not known."""
    query = (
        "SELECT s.id FROM save_points s JOIN conversations c ON c.id = s.conversation_id WHERE name = ?"
        " AND (message_id IS NULL OR message_id IN (SELECT value FROM json_each(?)))"
    )
    return [int(row[0]) for row in db.execute(query, (conversation_id, json.dumps(list(message_ids))))]


def largest(db: sqlite3.Connection) -> int | None:
    """The absorbed save point with the largest slot file, None without any."""
    row = db.execute("SELECT id FROM save_points WHERE owner IS NULL ORDER BY file_size DESC LIMIT 1").fetchone()
    return int(row[0]) if row else None


def largest_of_late(db: sqlite3.Connection) -> int:
    """The bytes of the largest slot file among those used last; 0 without any."""
    late = "SELECT file_size FROM save_points ORDER BY last_used_at DESC LIMIT ?"
    return int(db.execute(f"SELECT coalesce(max(file_size), 0) FROM ({late})", (_LATE,)).fetchone()[0])


def unused_since(db: sqlite3.Connection, moment: float, protected: int | None, *, programs: bool) -> list[int]:
    """The absorbed save points last used before that, but for `protected` and those of pinned conversations.

    `programs`: only those of other programs.
    """
    query = (
        "SELECT s.id FROM save_points s JOIN conversations c ON c.id = s.conversation_id"
        " WHERE owner IS NULL AND last_used_at < ? AND NOT pinned AND s.id IS NOT ?"
    )
    values = (moment, protected, f"{PROGRAM}*") if programs else (moment, protected)
    return [int(row[0]) for row in db.execute(query + " AND name GLOB ?" * programs, values)]


def same_place(db: sqlite3.Connection, point_id: int) -> list[int]:
    """The other absorbed save points of the same conversation at the same node: newer ones make them needless."""
    query = (
        "SELECT o.id FROM save_points o JOIN save_points s ON o.node_id = s.node_id AND o.conversation_id ="
        " s.conversation_id WHERE s.id = ?1 AND o.id < ?1 AND o.owner IS NULL"
    )
    return [int(row[0]) for row in db.execute(query, (point_id,))]


def bad_blocks(db: sqlite3.Connection, conversation_id: str) -> frozenset[str]:
    """The file names of bad blocks that held some of a conversation."""
    query = "SELECT block FROM losses WHERE block IS NOT NULL AND conversation = ?"
    return frozenset(block.hex() for (block,) in db.execute(query, (conversation_id,)))


def forget(db: sqlite3.Connection, conversation_id: str | None) -> None:
    """Drop what is remembered of a conversation's losses, or all, and a conversation nothing is left of."""
    mine, values = (" WHERE {} = ?", (conversation_id,)) if conversation_id is not None else (" WHERE true", ())
    db.execute("DELETE FROM losses" + mine.format("conversation"), values)
    db.execute(
        f"DELETE FROM conversations{mine.format('name')} AND NOT pinned AND NOT never_save"
        " AND NOT EXISTS (SELECT 1 FROM save_points WHERE conversation_id = conversations.id)",
        values,
    )


def set_flag(db: sqlite3.Connection, conversation_id: str, *, pinned: bool | None, never: bool | None) -> None:
    """Pin a conversation, or never save it; None leaves a flag as it is."""
    key = conversation_key(db, conversation_id)
    db.execute(
        "UPDATE conversations SET pinned = coalesce(?, pinned), never_save = coalesce(?, never_save) WHERE id = ?",
        (pinned, never, key),
    )


def count_written(db: sqlite3.Connection, day: str, written: int) -> None:
    """Add to the bytes written on a day."""
    db.execute("INSERT INTO written VALUES (?1, ?2) ON CONFLICT (day) DO UPDATE SET bytes = bytes + ?2", (day, written))


def _facts(fingerprint: Fingerprint) -> str:
    """As JSON. A field with its default is left out: such came later, and older save points are to be found."""
    told = {one.name: value for one in fields(fingerprint) if (value := getattr(fingerprint, one.name)) != one.default}
    return json.dumps(told, sort_keys=True)
