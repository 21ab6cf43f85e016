"""The index: one SQLite file that knows every save point. It may always be lost; the store then starts empty."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvchat.kvstore.index_schema import MIGRATIONS
from kvchat.migrations import migrate

LOCK_WAIT_S = 30.0  # how long a write waits for another process's
TOO_NEW = "Your save points were last kept by a newer kvchat"
_PAGES = ("freelist_count", "page_count")
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}


class IndexLost(Exception):
    """The index was damaged. It was set aside and replaced by an empty one."""


class IndexFailed(Exception):
    """The disk or a lock failed the index; what was asked was not done. The message says why."""


class Index:
    """The connection. Safe for threads: each transaction has it alone.

    Raises IndexLost and IndexFailed from every method.
    """

    def __init__(self, path: Path, set_aside: Callable[[Path], None]) -> None:
        """Open or make the file. `set_aside` is given a damaged one. Raises migrations.DatabaseTooNew as well."""
        self.path = path
        self._set_aside = set_aside
        self._lock = threading.RLock()
        try:
            self._connection = self._connect()
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise IndexFailed(str(error)) from error
            self._remove()
            self._connection = self._connect()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def shrink(self) -> None:
        """Nothing of deleted save points stays in the index; the disk gets back what they took if that is most of it.

        Comes to nothing while another process is in the way.
        """
        with self._lock, contextlib.suppress(sqlite3.OperationalError):
            free, pages = (self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _PAGES)
            if 2 * free > pages:
                self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one state of the index throughout."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction no other process can write during. Undone as a whole when it raises."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def check(self) -> None:
        """Look the whole file over. Raises IndexLost if it is damaged."""
        with self.read() as connection:
            answer = connection.execute("PRAGMA quick_check(1)").fetchone()
            if answer[0] != "ok":
                self._renew()
                raise IndexLost

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock:
            connection = self._connection
            try:
                connection.execute(begin)
                yield connection
                if connection is self._connection:
                    connection.execute("COMMIT")
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                if not isinstance(error, sqlite3.DatabaseError):
                    raise
                if not _is_damage(error):
                    raise IndexFailed(str(error)) from error
                self._renew()
                raise IndexLost from error

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(self.path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the newest save points, no more
            connection.execute("PRAGMA wal_autocheckpoint = 100")  # pages; the log is part of what the store takes
            connection.execute("PRAGMA journal_size_limit = 0")  # and so is its file, once a large one was written
            connection.execute("PRAGMA secure_delete = ON")  # tokens of a deleted conversation are gone, not hidden
            migrate(connection, self.path, MIGRATIONS, TOO_NEW, keep_copy=False)
        except BaseException:
            connection.close()
            raise
        return connection

    def _renew(self) -> None:
        """Start an empty index; the damaged one is set aside."""
        self._connection.close()
        self._remove()
        self._connection = self._connect()

    def _remove(self) -> None:
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self._set_aside(self.path)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file itself is bad, not a lock, the disk, or our SQL."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
