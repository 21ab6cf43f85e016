"""The conversations' SQLite file: opening, reading, atomic writes and error messages."""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kvchat.chat.record.migrations import migrate
from kvchat.errors import KvchatError
from kvchat.system.files import retry_while_open, temporary_path
from kvchat.text.language import _

LOCK_TIMEOUT_S = 10.0  # write lock timeout (the app and `ask` share the file)
BACKUP_FOLDER = "backups"  # folder beside the file, see kvchat.chat.record.recovery
SMALL_FILE_BYTES = 64_000_000  # checking such a file takes a fraction of a second


class StorageFailed(KvchatError):
    """The chat database could not be read or written."""


class ChatsDamaged(StorageFailed):
    def __init__(self, path: Path, detail: str, title: str = "") -> None:
        advice = _(
            "Restart kvchat to repair it, or run kvchat repair. The repair recovers all readable messages, adds those "
            "from the newest automatic backup and sets the damaged file aside."
        )
        super().__init__(title or _("The chat database is damaged"), f"{path}: {detail}.", advice)


class DatabaseFile:
    """The file, migrated to the newest format. All methods raise StorageFailed on disk or file errors."""

    def file_id(self) -> str:
        """Return this file's id. A file that was restored from a backup or recreated has a different one."""
        with _translate_errors(self.file):
            info = self.file.stat()
        return f"{info.st_dev:x}-{info.st_ino:x}"

    def __init__(self, path: Path) -> None:
        """Open the file. Raises ChatsDamaged if it is empty, or if it is missing although backups exist."""
        self.file = path
        with _translate_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            log = path.with_name(f"{path.name}-wal")
            self._was_closed_cleanly = not (log.exists() and log.stat().st_size) and not damage_marker(path).exists()
            if not path.exists():
                _create(path)
            elif not path.stat().st_size:
                raise ChatsDamaged(path, _("it has no content"), _("The chat database is empty"))
            self._connection = _connect(path)
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.execute("PRAGMA fullfsync = ON")  # on macOS, fsync does not flush the disk's cache
                self._connection.execute("PRAGMA foreign_keys = ON")
                self._connection.execute("PRAGMA secure_delete = ON")  # overwrite deleted content
                migrate(self._connection, path)
            except BaseException:
                self._connection.close()
                raise

    def check(self) -> None:
        """Check the file if it is small or the last run did not end cleanly. Raises ChatsDamaged."""
        if self._was_closed_cleanly and self.file.stat().st_size > SMALL_FILE_BYTES:
            return
        with _translate_errors(self.file):
            result = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if result != "ok":
                raise ChatsDamaged(self.file, str(result).replace("\n", " "))
            damage_marker(self.file).unlink(missing_ok=True)

    def close(self) -> None:
        self._connection.close()

    def checkpoint(self) -> None:
        with _translate_errors(self.file):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def rows(self, query: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        with self.reading() as db:
            return db.execute(query, values).fetchall()

    def write(self, statement: str, *values: Sequence[object]) -> int:
        """Execute a statement once per tuple of values, in one transaction; return the number of rows changed."""
        with self.transaction() as db:
            return db.executemany(statement, values).rowcount

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with _translate_errors(self.file):
            yield self._connection

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        with _translate_errors(self.file):
            self._connection.execute("BEGIN")
            try:
                yield self._connection
            finally:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")  # read-only

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit all writes in the `with` block, or none. They are on disk when the outermost `with` block ends."""
        with _translate_errors(self.file):
            if self._connection.in_transaction:
                yield self._connection
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise


def damage_marker(path: Path) -> Path:
    """Return the file that marks a database as possibly damaged: the next start checks it, whatever its size."""
    return path.with_name(f"{path.name}.doubt")


def create_empty(file: Path) -> None:
    os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with contextlib.closing(_connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")  # deleted on failure
        migrate(connection, file)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # only damaged bytes are lost
    return connection


def _create(path: Path) -> None:
    """Create the file atomically; an empty one would count as damaged. Raises ChatsDamaged."""
    if any(path.with_name(BACKUP_FOLDER).glob("*.db")):
        raise ChatsDamaged(path, _("only its backups were found"), _("The chat database is missing"))
    new = temporary_path(path)
    try:
        create_empty(new)
        if not path.exists():  # another process may have created it
            retry_while_open(partial(new.rename, path)) if os.name == "nt" else os.link(new, path)
    except FileExistsError:
        pass
    finally:
        new.unlink(missing_ok=True)


@contextlib.contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Raise StorageFailed for errors of the disk or file. ProgrammingError and IntegrityError, which are bugs, pass."""
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        raise StorageFailed(
            _("Your chats could not be read or written"),
            f"{path}: {error}.",
            _("Check that the disk is not full and that you have permission to write to the file, then try again."),
        ) from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.InterfaceError)):
            raise
        raise mark_damaged(path, str(error)) from error
    except UnicodeDecodeError as error:  # Python cannot decode SQLite's quote of damaged text
        raise mark_damaged(path, error.object.decode("utf-8", "replace")) from error


def mark_damaged(path: Path, detail: str) -> ChatsDamaged:
    """Record the damage, so that the next start checks the file; return the error to raise."""
    with contextlib.suppress(OSError):
        damage_marker(path).touch(0o600)
    return ChatsDamaged(path, detail)


def insert_rows(db: sqlite3.Connection, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    known = [column["name"] for column in db.execute(f"PRAGMA table_info({table})")]
    for row in rows:
        columns = [name for name in known if name in row]
        places = ", ".join("?" * len(columns))
        db.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", [row[name] for name in columns])
