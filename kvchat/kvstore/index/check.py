"""Whether what the index holds can be what was put there: it is believed by nobody who has reason for doubt."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from kvchat.kvstore.index.schema import MIGRATIONS, SEGMENT, TOKEN_BYTES
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.system.migrations import migrate

_MOST = 1 << 50  # of bytes and milliseconds; a sum of 8,000 of these still fits
_LATEST = 1 << 34  # seconds since 1970
# What every row of a table has to be.
_SANE = {
    "nodes": f"parent_id BETWEEN 0 AND id - 1 AND typeof(name) = 'blob' AND typeof(packed) = 'blob'"
    f" AND length(packed) BETWEEN {TOKEN_BYTES} AND {SEGMENT * TOKEN_BYTES} AND length(packed) % {TOKEN_BYTES} = 0"
    f" AND n_tokens BETWEEN 1 AND {1 << 31} AND EXISTS (SELECT 1 FROM trees WHERE id = tree_id)",
    "trees": "typeof(audience) = 'text' AND EXISTS (SELECT 1 FROM fingerprints WHERE id = fingerprint_id)",
    "conversations": f"typeof(name) = 'text' AND pinned IN (0, 1) AND never_save IN (0, 1)"
    f" AND saved_ms BETWEEN 0 AND {_MOST} AND typeof(held_bytes) = 'integer' AND typeof(exclusive_bytes) = 'integer'"
    f" AND abs(held_bytes) < {_MOST} AND abs(exclusive_bytes) < {_MOST}",
    "save_points": f"typeof(file_size) = 'integer' AND file_size BETWEEN 1 AND {_MOST}"
    f" AND prefill_ms BETWEEN 0 AND {_MOST} AND created_at BETWEEN 0 AND {_LATEST}"
    f" AND last_used_at BETWEEN 0 AND {_LATEST} AND n_tokens BETWEEN 1 AND {1 << 31}"
    " AND (owner IS NULL OR typeof(owner) = 'text') AND (message_id IS NULL OR typeof(message_id) = 'text')"
    " AND (owner IS NOT NULL OR typeof(row_map) = 'blob' AND typeof(seal) = 'blob' AND typeof(link_id) = 'integer')"
    " AND EXISTS (SELECT 1 FROM nodes WHERE id = node_id)"
    " AND EXISTS (SELECT 1 FROM conversations WHERE id = conversation_id)"
    " AND EXISTS (SELECT 1 FROM fingerprints WHERE id = save_points.fingerprint_id)",
    "blocks": f"typeof(name) = 'blob' AND length(name) = 32 AND typeof(size) = 'integer' AND size BETWEEN 0 AND {_MOST}"
    f" AND typeof(disk_bytes) = 'integer' AND disk_bytes BETWEEN 0 AND {_MOST} AND residue IN (0, 1)"
    " AND typeof(holders) = 'integer' AND (xxh3 IS NULL OR typeof(xxh3) = 'blob')",
    "links": "parent_id BETWEEN 0 AND id - 1 AND typeof(parent_id) = 'integer' AND typeof(cache) = 'integer'"
    " AND typeof(first_row) = 'integer' AND typeof(n_rows) = 'integer' AND typeof(skip) = 'integer'"
    " AND typeof(position) = 'integer' AND EXISTS (SELECT 1 FROM blocks WHERE id = block_id)",
    "held": "typeof(n) = 'integer' AND EXISTS (SELECT 1 FROM links WHERE id = link_id)",
    "losses": "typeof(reason) = 'text' AND typeof(conversation) = 'text' AND (block IS NULL OR typeof(block) = 'blob')",
    "written": f"typeof(bytes) = 'integer' AND bytes BETWEEN 0 AND {_MOST}",
    "sums": f"typeof(row_bytes) = 'integer' AND typeof(disk_bytes) = 'integer' AND typeof(points) = 'integer'"
    f" AND typeof(logical_bytes) = 'integer' AND typeof(written) = 'integer' AND abs(row_bytes) < {_MOST}"
    f" AND abs(disk_bytes) < {_MOST} AND abs(logical_bytes) < 4096 * {_MOST} AND abs(written) < 4096 * {_MOST}",
    "marks": "typeof(value) = 'text'",
}
_WORDS = (
    ("conversations", "name"),
    ("trees", "audience"),
    ("losses", "reason"),
    ("losses", "conversation"),
    ("save_points", "owner"),
)


class CorruptIndex(ValueError):
    """What was read from the index cannot have been put there."""


def is_sane(db: sqlite3.Connection) -> bool:
    """Whether the file is whole and each row can be true. A file that cannot be looked at is taken to be so."""
    try:
        if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            return False
        if _schema(db) != _schema_as_made():
            return False
        if db.execute("SELECT count(*) FROM sums").fetchone()[0] != 1:
            return False
        for table, is_true in _SANE.items():
            if db.execute(f"SELECT 1 FROM {table} WHERE NOT coalesce({is_true}, 0) LIMIT 1").fetchone():
                return False
        for (facts,) in db.execute("SELECT facts FROM fingerprints"):
            fingerprint_of(facts)
        for table, column in _WORDS:
            for _ in db.execute(f"SELECT DISTINCT {column} FROM {table}"):
                pass  # fetching it decodes it
        for (message_id,) in db.execute("SELECT DISTINCT message_id FROM save_points WHERE message_id IS NOT NULL"):
            str(message_id).encode()
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM)
    except (sqlite3.Error, ValueError, TypeError):
        return False
    return True


def _schema(db: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """What there is, and what the triggers do: nobody else tells when one of those is not what it was."""
    query = "SELECT type, name, CASE WHEN type = 'trigger' THEN sql ELSE '' END FROM main.sqlite_master"
    return set(db.execute(query).fetchall())


@cache
def _schema_as_made() -> set[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrate(db, Path(), MIGRATIONS, "", keep_copy=False)
        return _schema(db)


def moment(seconds: float) -> datetime:
    """A stored time as a datetime. Raises CorruptIndex."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, TypeError, OverflowError, OSError) as error:
        raise CorruptIndex from error


def fingerprint_of(facts: str) -> Fingerprint:
    """A fingerprint out of what is stored of it. Raises CorruptIndex."""
    try:
        known = json.loads(facts)
        fingerprint = Fingerprint(**known)
    except (ValueError, TypeError) as error:
        raise CorruptIndex from error
    for one in fields(fingerprint):
        if not isinstance(getattr(fingerprint, one.name), int if one.name == "streams" else str):
            raise CorruptIndex
    return fingerprint
