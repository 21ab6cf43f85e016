"""The database's schema as a list of numbered steps: append-only, each applied once, atomically with its record."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from kvchat.errors import KvchatError

MIGRATIONS: tuple[str, ...] = (
    # 1: conversations, and messages as a tree
    """
    CREATE TABLE conversations (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        title_by_user INTEGER NOT NULL DEFAULT 0,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        leaf_id TEXT
    );
    CREATE INDEX conversations_by_update ON conversations (updated_at DESC);
    CREATE TABLE messages (
        id TEXT PRIMARY KEY,
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        parent_id TEXT REFERENCES messages (id) ON DELETE CASCADE,
        role TEXT NOT NULL,
        content TEXT NOT NULL,
        thinking TEXT NOT NULL DEFAULT '',
        state TEXT NOT NULL,
        created_at REAL NOT NULL,
        receipt TEXT,
        writer TEXT  -- the process that is streaming this reply, as pid:start time
    );
    CREATE INDEX messages_of_conversation ON messages (conversation_id, created_at);
    CREATE INDEX messages_of_parent ON messages (parent_id);
    """,
)


class DatabaseTooNew(KvchatError):
    """The database was written by a newer kvchat."""

    def __init__(self, path: Path, found: int) -> None:
        super().__init__(
            "Your conversations were last opened by a newer kvchat",
            f"{path} has format {found}; this version knows formats up to {len(MIGRATIONS)}.",
            "Install the newer version again. Nothing was changed.",
        )


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the database to the newest format, with a copy of it beside it first if it already holds something.

    `connection` must be in autocommit mode (isolation_level None). Raises DatabaseTooNew.
    """
    if _version(connection) < len(MIGRATIONS):
        _apply_missing(connection, path)
    if _version(connection) > len(MIGRATIONS):
        raise DatabaseTooNew(path, _version(connection))


def _apply_missing(connection: sqlite3.Connection, path: Path) -> None:
    if _version(connection) > 0:
        back_up(connection, path.with_name(f"{path.name}.before-{len(MIGRATIONS)}"))
    connection.execute("BEGIN IMMEDIATE")  # another process may have been quicker: look again under the lock
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, applied_at REAL NOT NULL)"
        )
        for number in range(_version(connection) + 1, len(MIGRATIONS) + 1):
            for statement in MIGRATIONS[number - 1].split(";"):
                connection.execute(statement)
            connection.execute("INSERT INTO migrations VALUES (?, ?)", (number, time.time()))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    """The number of the last migration applied; 0 for an empty database."""
    exists = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'migrations'").fetchone()
    if not exists:
        return 0
    return int(connection.execute("SELECT coalesce(max(number), 0) FROM migrations").fetchone()[0])


def back_up(connection: sqlite3.Connection, target: Path) -> None:
    """A consistent copy of a live database, by SQLite's own backup."""
    copy = sqlite3.connect(target)
    try:
        connection.backup(copy)
    finally:
        copy.close()
    target.chmod(0o600)
