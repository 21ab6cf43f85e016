"""What the index says about sizes: usage for the panel, candidates for eviction. Within the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from kvchat.kvstore.eviction import Candidate
from kvchat.kvstore.index_points import moment
from kvchat.kvstore.savepoint import ConversationUsage, Loss

_BLOCK_BITS = 32  # conversation and block number in one 64-bit number


@dataclass(frozen=True)
class Totals:
    """Sums over the whole index, in bytes."""

    save_points: int
    logical: int
    blocks: int
    residue: int
    written: int
    written_today: int


def totals(db: sqlite3.Connection, today: str) -> Totals:
    """The sums."""
    points, logical = db.execute("SELECT count(*), coalesce(sum(file_size), 0) FROM save_points").fetchone()
    blocks, residue = db.execute(
        "SELECT coalesce(sum(size), 0), coalesce(sum(size * residue), 0) FROM blocks"
    ).fetchone()
    written, of_today = db.execute(
        "SELECT coalesce(sum(bytes), 0), coalesce(sum(bytes * (day = ?)), 0) FROM written", (today,)
    ).fetchone()
    return Totals(points, logical, blocks, residue, written, of_today)


def plain_bytes(db: sqlite3.Connection) -> int:
    """Bytes of the blocks of files whose layout is unknown."""
    query = (
        "SELECT coalesce(sum(size), 0) FROM blocks WHERE id IN (SELECT block_id FROM block_uses WHERE save_point_id IN"
        " (SELECT save_point_id FROM block_uses GROUP BY save_point_id HAVING max(cache) < 0))"
    )
    return int(db.execute(query).fetchone()[0])


def by_conversation(db: sqlite3.Connection) -> list[ConversationUsage]:
    """What each conversation costs that has save points, or a wish of the user's about them; the largest first."""
    exclusive, shared = _bytes_by_conversation(db)
    rows = db.execute(
        "SELECT c.id, name, count(s.id), coalesce(max(last_used_at), 0), coalesce(max(prefill_ms), 0), saved_ms,"
        " pinned, never_save, coalesce(sum(CASE WHEN owner IS NULL THEN 0 ELSE file_size END), 0)"
        " FROM conversations c LEFT JOIN save_points s ON c.id = s.conversation_id"
        " GROUP BY c.id HAVING count(s.id) > 0 OR pinned OR never_save"
    )
    usages = []
    for key, name, points, used_at, prefill_ms, saved_ms, pinned, never_save, staged in rows:
        own, common = exclusive.get(key, 0) + staged, shared.get(key, 0)
        usages.append(
            ConversationUsage(
                conversation_id=name,
                bytes=own + common,
                save_points=points,
                last_used_at=moment(used_at),
                exclusive_bytes=own,
                shared_bytes=common,
                prefill_seconds=prefill_ms / 1000,
                seconds_saved=saved_ms / 1000,
                pinned=bool(pinned),
                never_save=bool(never_save),
            )
        )
    return sorted(usages, key=lambda one: (-one.bytes, one.conversation_id))


def candidates(db: sqlite3.Connection, protected: int | None) -> tuple[list[Candidate], dict[int, int]]:
    """Every absorbed save point as eviction sees it, and the size of every block."""
    blocks: defaultdict[int, set[int]] = defaultdict(set)
    for point_id, block_id in db.execute("SELECT save_point_id, block_id FROM block_uses"):
        blocks[point_id].add(block_id)
    rows = db.execute(
        "SELECT s.id, name, fingerprint_id, n_tokens, prefill_ms, created_at, last_used_at, pinned FROM save_points s"
        " JOIN conversations c ON c.id = s.conversation_id WHERE owner IS NULL"
    )
    found = [
        Candidate(
            id=point_id,
            conversation_id=name,
            line=line,
            n_tokens=n_tokens,
            prefill_ms=prefill_ms,
            created_at=moment(created_at),
            last_used_at=moment(used_at),
            kept=bool(pinned) or point_id == protected,
            blocks=frozenset(blocks[point_id]),
        )
        for point_id, name, line, n_tokens, prefill_ms, created_at, used_at, pinned in rows
    ]
    return found, dict(db.execute("SELECT id, size FROM blocks").fetchall())


def untold_losses(db: sqlite3.Connection) -> tuple[Loss, ...]:
    """What was lost and the user has not been told; from now on they have."""
    rows = db.execute(
        "SELECT conversation, count(*), max(reason) FROM losses WHERE NOT told GROUP BY conversation, reason"
    ).fetchall()
    db.execute("UPDATE losses SET told = 1 WHERE NOT told")
    return tuple(Loss(*row) for row in rows)


def _bytes_by_conversation(db: sqlite3.Connection) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes of the blocks of each conversation (by its number): its own alone, and shared with others."""
    pairs = db.execute(
        f"SELECT DISTINCT (conversation_id << {_BLOCK_BITS}) | block_id"
        " FROM block_uses JOIN save_points ON id = save_point_id"
    ).fetchall()
    held = np.fromiter((pair[0] for pair in pairs), np.int64, len(pairs))
    sizes = db.execute("SELECT id, size FROM blocks").fetchall()
    if not len(held) or not sizes:
        return {}, {}
    size_of = np.zeros(max(block_id for block_id, _ in sizes) + 1, np.int64)
    for block_id, size in sizes:
        size_of[block_id] = size
    conversation, block = held >> _BLOCK_BITS, held & ((1 << _BLOCK_BITS) - 1)
    users = np.bincount(block, minlength=len(size_of))
    alone = users[block] == 1
    sums = [np.bincount(conversation[mask], size_of[block[mask]]) for mask in (alone, ~alone)]
    own, common = ({int(c): int(total[c]) for c in np.flatnonzero(total)} for total in sums)
    return own, common
