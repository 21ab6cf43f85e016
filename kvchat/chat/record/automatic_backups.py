"""Automatic backups of the chats, next to their file: one a day, the newest three.

A backup is copied row by row into a new file, so a damaged file never replaces a good backup. Permanent deletion
includes the backups.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from kvchat.chat.record.database_file import BACKUPS, ChatsDamaged, StorageFailed, make_empty
from kvchat.system.files import name_beside
from kvchat.words.language import _

KEPT = 3
LOOK_EVERY_S = 3600.0
FAULTS = (sqlite3.Error, UnicodeDecodeError)  # of a damaged file: SQLite quotes invalid text
LARGE = 256_000_000  # bytes: larger files are copied daily, not at every exit
# Chat data, ordered so that references resolve. Search tables are rebuilt from it.
TABLES = (
    "conversations",
    "messages",
    "attachments",
    "drafts",
    "draft_attachments",
    "presets",
    "prepared",
    "removed",
    "deleted",
)
# Titles made from deleted text have changed.
_TITLES = "UPDATE conversations SET title = live.title FROM live.conversations AS live WHERE live.id = conversations.id"


def backups_of(file: Path) -> list[Path]:
    """Return the automatic backups of the chats in `file`, newest first; those dated in the future last."""
    found, today = file.with_name(BACKUPS).glob("chats-*.db"), _todays(file).name
    return sorted(found, key=lambda backup: (backup.name <= today, backup.name), reverse=True)


def _todays(file: Path) -> Path:
    return file.with_name(BACKUPS) / f"chats-{datetime.now(UTC):%Y-%m-%d}.db"


def back_up(file: Path, *, often: bool) -> bool:
    """Make today's backup if something has changed; True if it was made. Raises StorageFailed and ChatsDamaged."""
    today = _todays(file)
    try:
        newest = next((backup for backup in backups_of(file) if backup.name <= today.name), None)
        changed = [part.stat().st_mtime for part in (file, file.with_name(f"{file.name}-wal")) if part.exists()]
        if newest is not None and newest.stat().st_mtime >= max(changed, default=0.0):
            return False
        if newest == today and not (often and file.stat().st_size < LARGE):
            return False
        today.parent.mkdir(mode=0o700, exist_ok=True)
        new = name_beside(today)
        try:
            _copy(file, new)
            new.replace(today)
        finally:
            new.unlink(missing_ok=True)
        # Take out what was deleted meanwhile: `scrub` may have run before the backup existed.
        with closing(_attached(today, file)) as db, db:
            db.execute("PRAGMA foreign_keys = OFF")  # orphaned messages follow another one in the chat
            db.execute("BEGIN IMMEDIATE")
            for table in ("messages", "conversations", "removed", "prepared"):
                db.execute(f"DELETE FROM main.{table} WHERE id NOT IN (SELECT id FROM live.{table})")
            db.execute("DELETE FROM main.attachments WHERE message_id NOT IN (SELECT id FROM main.messages)")
            db.execute(_TITLES)
        for old in backups_of(file)[KEPT:]:
            old.unlink(missing_ok=True)
        return True
    except (OSError, sqlite3.OperationalError) as error:
        raise StorageFailed(_("The automatic backup failed"), f"{today}: {error}.", _("Free up disk space.")) from error
    except FAULTS as error:
        raise ChatsDamaged(file, str(error)) from error


class DailyBackups:
    """Makes backups while kvchat runs and at its end. Event-loop thread only."""

    def __init__(self, file: Path, tell: Callable[[str, str], None]) -> None:
        self._file, self._tell = file, tell
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Make the run's last backup; without `begin`, only if today has none."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._make(often=self._task is not None)

    async def _run(self) -> None:
        while True:
            await self._make(often=False)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _make(self, *, often: bool) -> None:
        try:
            await asyncio.to_thread(back_up, self._file, often=often)
        except StorageFailed as error:
            self._tell(error.title, error.told)


def scrub(file: Path, ids: Iterable[str]) -> None:
    gone = [(id,) for id in ids]
    for backup in backups_of(file):
        try:
            with closing(_attached(backup, file)) as db, db:
                db.execute("BEGIN IMMEDIATE")
                db.executemany("DELETE FROM messages WHERE conversation_id = ? OR id = ?1", gone)
                for table in ("conversations", "removed"):
                    db.executemany(f"DELETE FROM {table} WHERE id = ?", gone)
                db.executemany("DELETE FROM prepared WHERE 'prepared:' || id = ?", gone)
                db.execute(_TITLES)
        except FAULTS:  # delete a backup that cannot be scrubbed
            with contextlib.suppress(OSError):
                backup.unlink()


def _copy(file: Path, target: Path) -> None:
    make_empty(target)
    with closing(_attached(target, file)) as db:
        db.execute("PRAGMA main.journal_mode = OFF")  # deleted on failure
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("BEGIN")
        for table in TABLES:
            columns = ", ".join(row[1] for row in db.execute(f"PRAGMA main.table_info({table})"))
            db.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM live.{table} ORDER BY rowid")
        db.execute("COMMIT")


def _attached(target: Path, file: Path) -> sqlite3.Connection:
    db = sqlite3.connect(target, timeout=10.0, isolation_level=None, uri=True)
    try:
        db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("ATTACH ? AS live", (f"{file.absolute().as_uri()}?mode=ro",))
    except BaseException:
        db.close()
        raise
    return db
