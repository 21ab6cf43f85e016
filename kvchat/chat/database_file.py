"""The conversations' SQLite file: opened, read, written all or nothing, and its faults in words."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from kvchat.chat.migrations import migrate
from kvchat.errors import KvchatError

LOCK_WAIT_S = 10.0  # how long a write waits for another process (the app and `ask` share the file)


class StorageFailed(KvchatError):
    """The conversations' database could not be read or written."""


class DatabaseFile:
    """The file, brought to the newest format. Raises StorageFailed from every method when disk or file fail."""

    def file_id(self) -> str:
        """What tells this file from one that was put in its place, out of a backup or after a loss."""
        with _in_words(self.file):
            found = self.file.stat()
        return f"{found.st_dev:x}-{found.st_ino:x}"

    def __init__(self, path: Path) -> None:
        self.file = path
        with _in_words(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._connection = sqlite3.connect(path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
            self._connection.row_factory = sqlite3.Row
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.execute("PRAGMA foreign_keys = ON")
                self._connection.execute("PRAGMA secure_delete = ON")  # what is deleted is gone, not hidden
                migrate(self._connection, path)
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def write_through(self) -> None:
        """Nothing stays in the log beside the file, as far as no other process is in the way."""
        with _in_words(self.file):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """To ask something. Nothing is changed in it."""
        with _in_words(self.file):
            yield self._connection

    @contextlib.contextmanager
    def moment(self) -> Iterator[sqlite3.Connection]:
        """To ask several things of one moment, whoever writes meanwhile, and without holding them up."""
        with _in_words(self.file):
            self._connection.execute("BEGIN")
            try:
                yield self._connection
            finally:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")  # nothing was changed

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and on disk when the block has ended."""
        with _in_words(self.file):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise


@contextlib.contextmanager
def _in_words(path: Path) -> Iterator[None]:
    """Errors the environment causes become StorageFailed; misuse (ProgrammingError, IntegrityError) stays a bug."""
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        raise StorageFailed(
            "Your chats could not be read or written",
            f"{path}: {error}.",
            "Check that the disk is not full and that the file may be written, then try again.",
        ) from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.InterfaceError)):
            raise
        raise StorageFailed(
            "The chats' file is damaged",
            f"{path}: {error}.",
            "Put a copy of the file back from your backup, or move it away to start with an empty one.",
        ) from error
