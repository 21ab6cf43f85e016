"""Numbered migrations of a SQLite schema, each applied once, in the transaction that records it."""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.text.language import N_, _

KEEP_COPIES_S = 7 * 86_400.0  # of the copy made before a migration
_PAGES_AT_ONCE = 1000  # 4 MB


class DatabaseTooNew(KvchatError):
    def __init__(self, title: str, path: Path, found: int, known: int) -> None:
        sentence = N_("{path} has format {found}; this version supports formats up to {known}.")
        detail = _(sentence, path=path, found=found, known=known)
        super().__init__(title, detail, _("Install the newer version again. Nothing was changed."))


def migrate(
    connection: sqlite3.Connection, path: Path, steps: Sequence[str], too_new: str, *, keep_copy: bool = True
) -> None:
    """Apply the missing `steps` to a database in autocommit mode, after making a copy. Raises DatabaseTooNew."""
    if schema_version(connection) < len(steps):
        if keep_copy and schema_version(connection) > 0:
            back_up(connection, path.with_name(f"{path.name}.before-{len(steps)}"))
        connection.execute(
            "BEGIN IMMEDIATE"
        )  # the version is read again below, because another process may have migrated
        try:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, applied_at REAL NOT NULL)"
            )
            for number in range(schema_version(connection) + 1, len(steps) + 1):
                for statement in split_statements(steps[number - 1]):
                    connection.execute(statement)
                connection.execute("INSERT INTO migrations VALUES (?, ?)", (number, time.time()))
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()  # unlike ROLLBACK, allowed after SQLite's own rollback on a full disk
            raise
    check_version(connection, path, steps, too_new)


def check_version(connection: sqlite3.Connection, path: Path, steps: Sequence[str], too_new: str) -> None:
    if schema_version(connection) > len(steps):
        raise DatabaseTooNew(too_new, path, schema_version(connection), len(steps))


def back_up(connection: sqlite3.Connection, target: Path, step: Callable[[], None] = lambda: None) -> None:
    """Copy a database that may be in use, calling `step` after each batch of pages."""
    connection.execute("BEGIN")  # or a write between two batches would restart the copy
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        with closing(sqlite3.connect(target)) as copy:
            connection.backup(copy, pages=_PAGES_AT_ONCE, progress=lambda status, left, total: step())
    finally:
        connection.rollback()
    target.chmod(0o600)


def drop_old_copies(path: Path) -> None:
    """Delete the copies made by `migrate` that are older than KEEP_COPIES_S.

    They contain data that the user may have deleted since.
    """
    for copy in path.parent.glob(f"{path.name}.before-*"):
        with contextlib.suppress(OSError):
            if time.time() - copy.stat().st_mtime > KEEP_COPIES_S:
                copy.unlink()


def split_statements(script: str) -> Iterator[str]:
    pending = ""
    for part in script.split(";"):
        pending += part + ";"
        if sqlite3.complete_statement(pending):  # not at the semicolons within a trigger
            yield pending
            pending = ""


def schema_version(connection: sqlite3.Connection) -> int:
    """Return the number of the last migration, or 0 if none was applied."""
    exists = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'migrations'").fetchone()
    if not exists:
        return 0
    return int(connection.execute("SELECT coalesce(max(number), 0) FROM migrations").fetchone()[0])
