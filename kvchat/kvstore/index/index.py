"""The index: one SQLite file that knows every save point. It may always be lost; the store then starts empty.

Readers have connections of their own, so that whoever looks something up waits for nobody who writes.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvchat.kvstore.index.check import CorruptIndex, is_sane
from kvchat.kvstore.index.notes import note_index_loss
from kvchat.kvstore.index.schema import MIGRATIONS
from kvchat.system.migrations import migrate
from kvchat.words.language import N_, _

LOCK_WAIT_S = 30.0  # how long a write in the background waits for another process's
FIRST_WAIT_S = 3.0  # how long opening waits, and whoever only reads, where next to nothing can be in the way
TOO_NEW = N_("The memory of your chats was last kept by a newer kvchat")
_PAGE_BYTES = 8192  # a whole segment of tokens fits into a page of an index with its neighbours
_LOG_BYTES = 400_000  # of the write-ahead log, before it is worked into the file
_MOST_IDLE = 4
_PAGES = ("freelist_count", "page_count")
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_ENVIRONMENT = {
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM),
    *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL),
}
# What our own code may say of rows that are not what they were. It may also be a bug: the index is looked over first.
_SUSPICIOUS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError, sqlite3.Error)
_File = tuple[int, int]  # device and number: the same path may become another file


class IndexLost(Exception):
    """The index was damaged. It was set aside and replaced by an empty one."""


class IndexFailed(Exception):
    """The disk or a lock failed the index; what was asked was not done. The message says why."""

    @property
    def locked(self) -> bool:
        """Whether another process or thread was in the way, which passes."""
        code = getattr(self.__cause__, "sqlite_errorcode", 0) & 0xFF
        return isinstance(self.__cause__, TimeoutError) or code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@dataclass(frozen=True)
class _Open:
    """A connection, and the file it is to."""

    connection: sqlite3.Connection
    file: _File | None


class Index:
    """The connections. Safe for threads: each transaction has one alone.

    Raises IndexLost and IndexFailed from every method.
    """

    def __init__(self, path: Path, set_aside: Callable[[Path], None]) -> None:
        """Open or make the file. `set_aside` is given a damaged one. Raises migrations.DatabaseTooNew as well."""
        self.path = path
        self.fresh = False  # the file has been made, or made anew, since somebody last looked at what lies beside it
        # How long a write waits for another process's: long, unless the last was in vain or it is the first.
        self.patience_s = FIRST_WAIT_S
        self._set_aside = set_aside
        self._writing = threading.RLock()
        self._readers: list[_Open] = []
        self._asked_at: float | None = None  # since when there is a write, or one that waits for another process's
        seen = self._file()
        try:
            self._writer = self._connect()
        except (sqlite3.Error, *_SUSPICIOUS) as error:
            if not _is_damage(error, None):
                raise IndexFailed(str(error)) from error
            self._renew(seen)

    def close(self) -> None:
        """Close the file."""
        with self._writing:
            self._close_readers()
            self._writer.connection.close()

    def shrink(self) -> None:
        """Nothing of deleted save points stays in the index; the disk gets back what they took if that is most of it.

        Comes to nothing while somebody is in the way.
        """
        with self._writing, contextlib.suppress(sqlite3.Error):
            connection = self._writer.connection
            connection.execute("PRAGMA busy_timeout = 100")
            free, pages = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _PAGES)
            if 2 * free > pages:
                connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one state of the index throughout, whatever is written meanwhile."""
        try:
            one = self._readers.pop()
        except IndexError:
            one = None
        if one is not None and one.file != self._file():
            one.connection.close()
            one = None
        with self._in_words():
            one = one or self._connect(reads=True)
        try:
            with self._transaction(one, "BEGIN") as connection:
                yield connection
        finally:
            if len(self._readers) < _MOST_IDLE:
                self._readers.append(one)
            else:
                one.connection.close()

    @contextmanager
    def write(self, patience_s: float | None = None) -> Iterator[sqlite3.Connection]:
        """A transaction no other process can write during. Undone as a whole when it raises.

        `patience_s`: how long it waits for another thread's, and for another process's; else as long as they may take.
        """
        with self._turn(patience_s):
            if self._writer.file != self._file():  # another process has set it aside, or the folder was emptied
                self._writer.connection.close()
                with self._in_words():
                    self._writer = self._connect()
            wait_s = patience_s
            if wait_s is None:
                wait_s, self.patience_s = self.patience_s, FIRST_WAIT_S
            self._writer.connection.execute(f"PRAGMA busy_timeout = {int(1000 * wait_s)}")
            self._asked_at = time.monotonic()
            try:
                with self._transaction(self._writer, "BEGIN IMMEDIATE") as connection:
                    yield connection
            finally:
                self._asked_at = None
            if patience_s is None:
                self.patience_s = LOCK_WAIT_S

    def is_kept_waiting(self, patience_s: float) -> bool:
        """Whether a write of this process has been asked for so long ago and is not done."""
        asked_at = self._asked_at
        return asked_at is not None and time.monotonic() - asked_at > patience_s

    @contextmanager
    def _turn(self, patience_s: float | None) -> Iterator[None]:
        if not self._writing.acquire(timeout=-1 if patience_s is None else patience_s):
            raise IndexFailed(_("it is being written")) from TimeoutError()
        try:
            yield
        finally:
            self._writing.release()

    def check(self) -> None:
        """Look the whole file over. Raises IndexLost if it is damaged."""
        with self.read() as connection:
            if not is_sane(connection):
                raise CorruptIndex

    @contextmanager
    def _transaction(self, one: _Open, begin: str) -> Iterator[sqlite3.Connection]:
        try:
            one.connection.execute(begin)
            yield one.connection
            one.connection.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                one.connection.execute("ROLLBACK")
            if not _is_damage(error, one.connection):
                if isinstance(error, sqlite3.DatabaseError):
                    raise IndexFailed(str(error)) from error
                raise
            self._renew(one.file)
            raise IndexLost from error

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """While connecting; damage that another process left meanwhile is met by the transaction."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise IndexFailed(str(error)) from error

    def _connect(self, *, reads: bool = False) -> _Open:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):  # opened and closed again, locks of this process would be lost
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            self.fresh = True
        file = self._file()
        connection = sqlite3.connect(self.path, timeout=FIRST_WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            if not reads:
                connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the newest save points
                # In pages; the log is part of what the store takes.
                connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_BYTES // _PAGE_BYTES}")
                connection.execute("PRAGMA journal_size_limit = 0")  # and so is its file, once a large one was written
                connection.execute("PRAGMA secure_delete = ON")  # tokens of a deleted conversation are gone, not hidden
                migrate(connection, self.path, MIGRATIONS, _(TOO_NEW), keep_copy=False)
        except BaseException:
            connection.close()
            raise
        return _Open(connection, file)

    def _renew(self, damaged: _File | None) -> None:
        """Start an empty index; the damaged one is set aside, unless another process has just done that."""
        from filelock import FileLock, Timeout  # slow to import, and mostly not needed

        with self._writing:
            try:
                with FileLock(self.path.with_name(f"{self.path.name}.lock"), timeout=FIRST_WAIT_S):
                    self._close_readers()
                    if hasattr(self, "_writer"):
                        self._writer.connection.close()
                    if self._file() == damaged:
                        for suffix in ("-wal", "-shm"):
                            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
                        self._set_aside(self.path)
                    if damaged is not None and self._file() == damaged:
                        raise IndexFailed(_("it is damaged, and something holds on to it"))
                    self._writer = self._connect()
                    note_index_loss(self._writer.connection)
            except (Timeout, OSError, sqlite3.Error) as error:
                raise IndexFailed(_("it is damaged, and cannot be made anew: {error}", error=error)) from error
            self.fresh = True

    def _close_readers(self) -> None:
        while self._readers:
            self._readers.pop().connection.close()

    def _file(self) -> _File | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


def _is_damage(error: BaseException, connection: sqlite3.Connection | None) -> bool:
    """Whether the file itself is bad, not a lock, the disk, or our code."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DAMAGED or isinstance(error, CorruptIndex):
        return True
    if code in _ENVIRONMENT or not isinstance(error, _SUSPICIOUS):
        return False
    return connection is None or not is_sane(connection)
