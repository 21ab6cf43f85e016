"""The index file: an SQLite database of all save points. If it is lost, the store starts empty.

Readers have their own connections, so a lookup never waits for a writer.
"""

import contextlib
import errno
import os
import sqlite3
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvchat.kvstore import disk
from kvchat.kvstore.index.schema import MIGRATIONS, CorruptIndex, is_sane
from kvchat.kvstore.index.usage import note_index_loss
from kvchat.kvstore.savepoint import NotSaved, StoreRefused
from kvchat.system.migrations import check_version, migrate
from kvchat.text.language import N_, _
from kvchat.text.reasons import Reason, ReasonCode

INDEX_TOO_NEW = N_("Your chat memory was saved by a newer version of kvchat")
_PAGE_BYTES = 8192  # a page has room for several token segments
_LOG_BYTES = 400_000  # size of the write-ahead log that triggers a checkpoint
_MAX_IDLE_READERS = 4
_READERS_TIMEOUT_S = 5.0  # time for other threads to finish reading before a damaged file is replaced
_DAMAGE_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_ENVIRONMENT_CODES = {
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM),
    *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL),
}
# Errors in kvchat's code that damaged rows can cause. They may also be bugs, so `is_sane` checks the file.
_SUSPICIOUS_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    sqlite3.Error,
)


class IndexLost(StoreRefused):
    """The index was damaged and has been replaced by an empty one."""

    def __init__(self) -> None:
        detail = _("kvchat moved the damaged index aside and created a new one. Each chat is reprocessed once.")
        super().__init__(_("The chat memory index was damaged."), detail)


class IndexFailed(StoreRefused):
    """A disk or lock error, after which the transaction was rolled back."""

    def __init__(self, error: object) -> None:
        super().__init__(_("Chat memory could not be read or written."), f"{error}.")
        self.error = str(error)


class Index:
    """Transactions on the index file. Thread-safe. All methods raise IndexLost and IndexFailed."""

    def __init__(
        self, path: Path, on_loss: Callable[[], None] = lambda: None, problem: StoreRefused | None = None
    ) -> None:
        """Open or create the file. Also raises DatabaseTooNew.

        `on_loss`: called when the file was damaged or deleted. `problem`: error to raise in each transaction,
        without opening the file.
        """
        self.path, self.problem = path, problem
        self.is_fresh = False  # True after the file was created or replaced, until the block files are checked
        self._on_loss = on_loss
        self._writing = threading.RLock()
        self._readers = threading.Condition()  # guards the fields below; acquire `_writing` first
        self._idle_readers: list[sqlite3.Connection] = []
        self._busy_readers = 0
        self._generation = 0  # incremented when the file is replaced
        if problem is not None:
            return
        try:
            self._writer = self._connect()
        except _SUSPICIOUS_ERRORS as error:
            if not _is_damage(error, None):
                raise IndexFailed(error) from error
            self._renew(self._generation)

    def close(self) -> None:
        with self._writing:
            self._close_idle_readers()
            if self.problem is None:
                self._writer.close()

    def shrink(self) -> None:
        """Remove deleted data from the write-ahead log; compact the file if most of it is unused. Ignores errors."""
        with self._writing, contextlib.suppress(sqlite3.Error):
            self._writer.execute("PRAGMA busy_timeout = 100")
            free, pages = (self._writer.execute(f"PRAGMA {name}_count").fetchone()[0] for name in ("freelist", "page"))
            if 2 * free > pages:
                self._writer.execute("VACUUM")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Open a read transaction, which sees a consistent snapshot of the index."""
        with self._readers:
            generation = self._generation
            connection = self._idle_readers.pop() if self._idle_readers else self._reconnect(read_only=True)
            self._busy_readers += 1
        is_lost = False
        try:
            with self._transaction(connection, "BEGIN", generation):
                yield connection
        except IndexLost:
            is_lost = True
            raise
        finally:
            with self._readers:
                self._busy_readers -= 1
                self._readers.notify_all()
                if not is_lost and generation == self._generation and len(self._idle_readers) < _MAX_IDLE_READERS:
                    self._idle_readers.append(connection)
                else:
                    connection.close()
            if is_lost:
                self._renew(generation)

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Open an exclusive write transaction; it is rolled back if the body of the `with` statement raises."""
        with self._writing:
            if self.problem is not None:
                raise self.problem
            if not self.path.exists():  # the cache was cleared
                self._close_idle_readers()
                self._writer.close()
                self._on_loss()
                self._writer = self._reconnect()
            self._writer.execute("PRAGMA busy_timeout = 5000")
            generation = self._generation
            try:
                with self._transaction(self._writer, "BEGIN IMMEDIATE", generation):
                    yield self._writer
            except IndexLost:
                self._renew(generation)
                raise

    def check(self) -> None:
        with self.read() as connection:
            if not is_sane(connection):
                raise CorruptIndex

    @contextmanager
    def _transaction(self, connection: sqlite3.Connection, begin: str, generation: int) -> Iterator[None]:
        """Context manager for a transaction. Raises IndexLost if the file is damaged or was replaced meanwhile.

        After IndexLost, the caller must call `_renew`.
        """
        try:
            connection.execute(begin)
            yield
            connection.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            is_failure = isinstance(error, sqlite3.DatabaseError)
            if (is_failure and generation != self._generation) or _is_damage(error, connection):
                traceback.clear_frames(error.__traceback__)  # unfinished queries would keep the file open
                raise IndexLost from error
            if is_failure:
                raise IndexFailed(error) from error
            raise

    def _reconnect(self, *, read_only: bool = False) -> sqlite3.Connection:
        try:
            return self._connect(read_only=read_only)
        except (sqlite3.Error, OSError) as error:
            raise IndexFailed(error) from error

    def _connect(self, *, read_only: bool = False) -> sqlite3.Connection:
        if self.problem is not None:
            raise self.problem
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):  # reopening and closing would drop this process's locks
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            self.is_fresh = True
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            if not read_only:
                for pragma in (
                    f"page_size = {_PAGE_BYTES}",
                    "journal_mode = WAL",
                    "synchronous = NORMAL",  # a power cut may cost the newest save points
                    f"wal_autocheckpoint = {_LOG_BYTES // _PAGE_BYTES}",  # in pages; counts toward the store's size
                    "journal_size_limit = 0",  # truncate a large log file after a checkpoint
                    "secure_delete = ON",  # overwrite the tokens of deleted conversations
                ):
                    connection.execute(f"PRAGMA {pragma}")
                migrate(connection, self.path, MIGRATIONS, _(INDEX_TOO_NEW), keep_copy=False)
        except BaseException:
            connection.close()
            raise
        return connection

    def _renew(self, generation: int) -> None:
        """Replace the damaged file, unless another thread has done so since `generation`.

        Closes all connections first, because Windows cannot delete an open file.
        """
        with self._writing, self._readers:
            if generation != self._generation:
                return
            self._readers.wait_for(lambda: not self._busy_readers, _READERS_TIMEOUT_S)
            try:
                self._close_idle_readers()
                if hasattr(self, "_writer"):
                    self._writer.close()
                for suffix in ("", "-wal", "-shm"):
                    self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
                self._on_loss()
                self._writer = self._connect()
                note_index_loss(self._writer)
            except (OSError, sqlite3.Error) as error:
                raise IndexFailed(_("its index is damaged and cannot be recreated: {error}", error=error)) from error
            self.is_fresh = True

    def _close_idle_readers(self) -> None:
        """Close idle readers now, and busy ones when they finish."""
        with self._readers:
            self._generation += 1
            while self._idle_readers:
                self._idle_readers.pop().close()


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a read transaction on an index that another process may be using. Raises IndexFailed."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("BEGIN")
            yield connection
    except (sqlite3.Error, CorruptIndex) as error:
        raise IndexFailed(error) from error


def not_saved_error(error: OSError) -> NotSaved:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotSaved(Reason(ReasonCode.DISK_FULL), _("Free up disk space."))
    return NotSaved(Reason(ReasonCode.NOT_WRITTEN, {"error": error.strerror or str(error)}))


@contextmanager
def disk_errors() -> Iterator[None]:
    """Context manager that turns an OSError into IndexFailed."""
    try:
        yield
    except OSError as error:
        raise IndexFailed(error) from error


@contextmanager
def saving_errors() -> Iterator[None]:
    """Context manager that turns an index error into NotSaved."""
    try:
        yield
    except IndexLost as error:
        raise NotSaved(Reason(ReasonCode.INDEX_DAMAGED)) from error
    except IndexFailed as error:
        raise NotSaved(Reason(ReasonCode.INDEX_NOT_WRITTEN, {"error": error.error})) from error


def store_unusable_error(folder: Path, error: Exception) -> StoreRefused:
    title = _("The chat memory folder cannot be used.")
    advice = _("Check the permissions of the folder and that the disk is not full.")
    reason = error.error if isinstance(error, IndexFailed) else getattr(error, "strerror", None) or error
    return StoreRefused(title, f"{folder}: {reason}.", advice)


def check_store(folder: Path) -> None:
    """Raise KvchatError if the store in `folder` cannot be used. Never writes: another process may own the folder."""
    index = folder / disk.INDEX
    try:
        os.scandir(folder).close()
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if index.exists():
            with open_read_only(index) as connection:
                check_version(connection, index, MIGRATIONS, _(INDEX_TOO_NEW))
    except (OSError, IndexFailed) as error:
        if isinstance(error, OSError) or isinstance(error.__cause__, sqlite3.OperationalError):
            raise store_unusable_error(folder, error) from error  # else it is damaged and will be replaced


def _is_damage(error: BaseException, connection: sqlite3.Connection | None) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DAMAGE_CODES or isinstance(error, CorruptIndex):
        return True
    if code in _ENVIRONMENT_CODES or not isinstance(error, _SUSPICIOUS_ERRORS):
        return False
    return connection is None or not is_sane(connection)
