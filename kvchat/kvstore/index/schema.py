"""The index's schema as a list of migrations (see kvchat.system.migrations), and integrity checks.

Token lists are stored as a tree of segments (see token_tree), so that common prefixes are stored and compared only
once. Recipes are stored as paths in a tree of links for the same reason (see points). Times are seconds since 1970.
"""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from kvchat.kvstore.savepoint import Fingerprint
from kvchat.system.migrations import migrate

SEGMENT_TOKENS, TOKEN_BYTES = 256, 4  # maximum tokens per tree node; bytes per token
_MAX_NUMBER = 1 << 50  # bytes or milliseconds; the sum of 8,000 such values fits into 64 bits
_SUM_RANGE = f"BETWEEN -{4096 * _MAX_NUMBER} AND {4096 * _MAX_NUMBER}"
_MAX_TIME_S = 1 << 34  # seconds since 1970
_MAX_TOKENS = 1 << 31
_SUM_TRIGGERS = (
    "block_added",
    "block_removed",
    "point_added",
    "point_resized",
    "point_removed",
    "day_added",
    "day_raised",
)
_SUM_COLUMNS = ("conversations.held_bytes", "conversations.exclusive_bytes", "blocks.holders")

# Tables are strict, with CHECKs, so that SQLite detects damaged contents (see `is_sane`).
MIGRATIONS: tuple[str, ...] = (
    f"""
    CREATE TABLE fingerprints (id INTEGER PRIMARY KEY, facts TEXT NOT NULL UNIQUE) STRICT;
    CREATE TABLE trees (  -- a token tree for each audience: what others may not reuse is not found
        id INTEGER PRIMARY KEY,
        fingerprint_id INTEGER NOT NULL REFERENCES fingerprints (id),
        audience TEXT NOT NULL,
        UNIQUE (fingerprint_id, audience)
    ) STRICT;
    CREATE TABLE nodes (
        id INTEGER PRIMARY KEY,
        tree_id INTEGER NOT NULL REFERENCES trees (id),
        parent_id INTEGER NOT NULL CHECK (parent_id BETWEEN 0 AND id - 1),  -- 0 for the first segment
        name BLOB NOT NULL,
        n_tokens INTEGER NOT NULL CHECK (n_tokens BETWEEN 1 AND {_MAX_TOKENS}),  -- up to the end of the segment
        packed BLOB NOT NULL CHECK (length(packed) BETWEEN {TOKEN_BYTES} AND {SEGMENT_TOKENS * TOKEN_BYTES}
            AND length(packed) % {TOKEN_BYTES} = 0),
        UNIQUE (tree_id, name)
    ) STRICT;
    CREATE INDEX nodes_of_parent ON nodes (parent_id, tree_id, packed);
    CREATE TABLE conversations (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1)),
        never_save INTEGER NOT NULL DEFAULT 0 CHECK (never_save IN (0, 1)),
        held_bytes INTEGER NOT NULL DEFAULT 0 CHECK (held_bytes {_SUM_RANGE}),  -- of its blocks, on disk
        exclusive_bytes INTEGER NOT NULL DEFAULT 0 CHECK (exclusive_bytes {_SUM_RANGE})  -- of those nobody else holds
    ) STRICT;
    CREATE TABLE blocks (
        id INTEGER PRIMARY KEY,
        name BLOB NOT NULL UNIQUE CHECK (length(name) = 32),
        size INTEGER NOT NULL CHECK (size BETWEEN 0 AND {_MAX_NUMBER}),
        residue INTEGER NOT NULL CHECK (residue IN (0, 1)),  -- no rows; of unknown layout all blocks count as rows
        xxh3 BLOB NOT NULL,  -- proves at a restore that it is what it was, some times as fast as its name
        disk_bytes INTEGER NOT NULL CHECK (disk_bytes BETWEEN 0 AND {_MAX_NUMBER}),  -- as the file system allots them
        holders INTEGER NOT NULL DEFAULT 0  -- conversations
    ) STRICT;
    CREATE INDEX blocks_unused ON blocks (id) WHERE holders = 0;
    CREATE TABLE links (
        id INTEGER PRIMARY KEY,
        parent_id INTEGER NOT NULL CHECK (parent_id BETWEEN 0 AND id - 1),  -- the use before this one, 0 for the first
        block_id INTEGER NOT NULL REFERENCES blocks (id),
        cache INTEGER NOT NULL,
        first_row INTEGER NOT NULL,
        n_rows INTEGER NOT NULL,
        skip INTEGER NOT NULL,
        position INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX links_of_parent ON links (parent_id, block_id);
    CREATE INDEX links_of_block ON links (block_id);
    CREATE TABLE save_points (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        conversation_id INTEGER NOT NULL REFERENCES conversations (id),
        message_id TEXT,  -- it ends in that message, and goes with it
        fingerprint_id INTEGER NOT NULL REFERENCES fingerprints (id),
        node_id INTEGER NOT NULL REFERENCES nodes (id),
        n_tokens INTEGER NOT NULL CHECK (n_tokens BETWEEN 1 AND {_MAX_TOKENS}),
        file_size INTEGER NOT NULL CHECK (file_size BETWEEN 1 AND {_MAX_NUMBER}),
        prefill_ms REAL NOT NULL CHECK (prefill_ms BETWEEN 0 AND {_MAX_NUMBER}),
        created_at REAL NOT NULL CHECK (created_at BETWEEN 0 AND {_MAX_TIME_S}),
        last_used_at REAL NOT NULL CHECK (last_used_at BETWEEN 0 AND {_MAX_TIME_S}),
        row_map BLOB,
        seal BLOB,
        link_id INTEGER REFERENCES links (id),  -- the last use of its recipe; NULL: its file in staging is all there is
        CHECK (link_id IS NULL OR (row_map IS NOT NULL AND seal IS NOT NULL))
    ) STRICT;
    CREATE INDEX save_points_of_conversation ON save_points (conversation_id, fingerprint_id);
    CREATE INDEX save_points_of_node ON save_points (node_id, last_used_at);
    CREATE INDEX save_points_of_link ON save_points (link_id) WHERE link_id IS NOT NULL;
    CREATE INDEX save_points_staged ON save_points (id) WHERE link_id IS NULL;
    CREATE INDEX save_points_by_use ON save_points (last_used_at);
    CREATE TABLE losses (
        id INTEGER PRIMARY KEY,
        save_point_id INTEGER NOT NULL,
        conversation TEXT NOT NULL,
        fingerprint_id INTEGER NOT NULL,
        reason TEXT NOT NULL,
        block BLOB,  -- the bad block that was set aside, if it was one
        lost_at REAL NOT NULL,
        told INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX losses_of_conversation ON losses (conversation, fingerprint_id);
    CREATE TABLE written (
        day TEXT PRIMARY KEY NOT NULL,
        bytes INTEGER NOT NULL CHECK (bytes BETWEEN 0 AND {_MAX_NUMBER})
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE marks (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
    """,
    # Drop sums updated by triggers: computing them from all rows when needed takes less time.
    "\n".join(
        (
            *(f"DROP TRIGGER IF EXISTS {name};" for name in _SUM_TRIGGERS),
            *(f"DROP TABLE IF EXISTS {name};" for name in ("held", "holdings", "sums")),
            "DROP INDEX blocks_unused;",
            *(f"ALTER TABLE {place.replace('.', ' DROP COLUMN ')};" for place in _SUM_COLUMNS),
        )
    ),
)
_TEXTS = (
    *(("conversations", "name"), ("trees", "audience"), ("save_points", "message_id")),
    *(("losses", "reason"), ("losses", "conversation")),
)


class CorruptIndex(ValueError):
    """An impossible value in the index."""


def is_sane(db: sqlite3.Connection) -> bool:
    """True if the file and all its rows are valid, or if it cannot be checked (locked, I/O error, no memory)."""
    try:
        if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok" or _schema(db) != _expected_schema():
            return False
        if db.execute("PRAGMA foreign_key_check").fetchone():
            return False
        for (facts,) in db.execute("SELECT facts FROM fingerprints"):
            parse_fingerprint(facts)
        for table, column in _TEXTS:
            db.execute(f"SELECT DISTINCT {column} FROM {table}").fetchall()  # fetching decodes it
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM)
    except (sqlite3.Error, ValueError, TypeError):
        return False
    return True


def _schema(db: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Return tables, indexes and triggers with their SQL, to detect changed triggers."""
    return set(db.execute("SELECT type, name, coalesce(sql, '') FROM main.sqlite_master").fetchall())


@cache
def _expected_schema() -> set[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrate(db, Path(), MIGRATIONS, "", keep_copy=False)
        return _schema(db)


def to_datetime(seconds: float) -> datetime:
    """Convert a stored time to a datetime in UTC. Raises CorruptIndex."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, TypeError, OverflowError, OSError) as error:
        raise CorruptIndex from error


def parse_fingerprint(facts: str) -> Fingerprint:
    """Parse a stored fingerprint. Raises CorruptIndex."""
    try:
        return Fingerprint(**json.loads(facts))
    except (ValueError, TypeError) as error:
        raise CorruptIndex from error
