"""Automatic backups of the chats, and recovery of a damaged database from what is readable and the newest backup.

**Backups** are next to the chats' file: one a day, the newest three. Each is copied row by row into a new file, so a
damaged file never replaces a good backup. Permanent deletion includes the backups.

**Recovery** reads each table from both ends, as far as SQLite gets. A chat whose row is lost gets a new one; a
message whose parent is lost follows the one before it.
"""

import asyncio
import contextlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from kvchat.chat.record.database_file import BACKUP_FOLDER, ChatsDamaged, StorageFailed, create_empty
from kvchat.chat.record.titles import title_from
from kvchat.system.files import replace_file, temporary_path
from kvchat.text.language import _

KEPT_BACKUPS = 3
CHECK_INTERVAL_S = 3600.0
DAMAGE_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # of a damaged file: SQLite quotes invalid text
LARGE_FILE_BYTES = 256_000_000  # larger files are copied daily, not at every exit
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
_COPY_TITLES = (
    "UPDATE conversations SET title = live.title FROM live.conversations AS live WHERE live.id = conversations.id"
)


def list_backups(file: Path) -> list[Path]:
    """Return the automatic backups of the chats in `file`, newest first; those dated in the future last."""
    backups, today = file.with_name(BACKUP_FOLDER).glob("chats-*.db"), _todays_backup(file).name
    return sorted(backups, key=lambda backup: (backup.name <= today, backup.name), reverse=True)


def _todays_backup(file: Path) -> Path:
    return file.with_name(BACKUP_FOLDER) / f"chats-{datetime.now(UTC):%Y-%m-%d}.db"


def back_up(file: Path, *, replace_todays: bool) -> bool:
    """Make today's backup if something has changed; True if it was made. Raises StorageFailed and ChatsDamaged."""
    today = _todays_backup(file)
    try:
        newest = next((backup for backup in list_backups(file) if backup.name <= today.name), None)
        changed = [part.stat().st_mtime for part in (file, file.with_name(f"{file.name}-wal")) if part.exists()]
        if newest is not None and newest.stat().st_mtime >= max(changed, default=0.0):
            return False
        if newest == today and not (replace_todays and file.stat().st_size < LARGE_FILE_BYTES):
            return False
        today.parent.mkdir(mode=0o700, exist_ok=True)
        new = temporary_path(today)
        try:
            _copy_chats(file, new)
            replace_file(new, today)
        finally:
            new.unlink(missing_ok=True)
        # Take out what was deleted meanwhile: `scrub_backups` may have run before the backup existed.
        with closing(_open_with_live(today, file)) as db, db:
            db.execute("PRAGMA foreign_keys = OFF")  # orphaned messages follow another one in the chat
            db.execute("BEGIN IMMEDIATE")
            for table in ("messages", "conversations", "removed", "prepared"):
                db.execute(f"DELETE FROM main.{table} WHERE id NOT IN (SELECT id FROM live.{table})")
            db.execute("DELETE FROM main.attachments WHERE message_id NOT IN (SELECT id FROM main.messages)")
            db.execute(_COPY_TITLES)
        for old in list_backups(file)[KEPT_BACKUPS:]:
            old.unlink(missing_ok=True)
        return True
    except (OSError, sqlite3.OperationalError) as error:
        raise StorageFailed(_("The automatic backup failed"), f"{today}: {error}.", _("Free up disk space.")) from error
    except DAMAGE_ERRORS as error:
        raise ChatsDamaged(file, str(error)) from error


class DailyBackups:
    """Makes backups while kvchat runs and when it exits. Event-loop thread only."""

    def __init__(self, file: Path, report_error: Callable[[str, str], None]) -> None:
        self._file, self._report_error = file, report_error
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Make the run's last backup. If `start` was not called, make one only if there is none from today."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._back_up(replace_todays=self._task is not None)

    async def _run(self) -> None:
        while True:
            await self._back_up(replace_todays=False)
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _back_up(self, *, replace_todays: bool) -> None:
        try:
            await asyncio.to_thread(back_up, self._file, replace_todays=replace_todays)
        except StorageFailed as error:
            self._report_error(error.title, error.explanation)


def scrub_backups(file: Path, deleted_ids: Iterable[str]) -> None:
    ids = [(id,) for id in deleted_ids]
    for backup in list_backups(file):
        try:
            with closing(_open_with_live(backup, file)) as db, db:
                db.execute("BEGIN IMMEDIATE")
                db.executemany("DELETE FROM messages WHERE conversation_id = ? OR id = ?1", ids)
                for table in ("conversations", "removed"):
                    db.executemany(f"DELETE FROM {table} WHERE id = ?", ids)
                db.executemany("DELETE FROM prepared WHERE 'prepared:' || id = ?", ids)
                db.execute(_COPY_TITLES)
        except DAMAGE_ERRORS:  # delete a backup that cannot be scrubbed
            with contextlib.suppress(OSError):
                backup.unlink()


def _copy_chats(file: Path, target: Path) -> None:
    create_empty(target)
    with closing(_open_with_live(target, file)) as db:
        db.execute("PRAGMA main.journal_mode = OFF")  # deleted on failure
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("BEGIN")
        for table in TABLES:
            columns = ", ".join(row[1] for row in db.execute(f"PRAGMA main.table_info({table})"))
            db.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM live.{table} ORDER BY rowid")
        db.execute("COMMIT")


def _open_with_live(target: Path, file: Path) -> sqlite3.Connection:
    db = sqlite3.connect(target, timeout=10.0, isolation_level=None, uri=True)
    try:
        db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("ATTACH ? AS live", (f"{file.absolute().as_uri()}?mode=ro",))
    except BaseException:
        db.close()
        raise
    return db


RECOVERED_TITLE = "Recovered chat"
_REPLACEMENT = "\ufffd"  # replaces invalid bytes
_Row = dict[str, Any]


@dataclass(frozen=True)
class SalvageReport:
    chats: int
    messages: int
    from_backup: int  # of `messages`
    lost_messages: tuple[tuple[str, int], ...]  # known messages found nowhere, by chat title
    unreadable: bool = False  # nothing could be read from the damaged file


def salvage(damaged: Path, backup: Path | None, target: Path) -> SalvageReport:
    """Build `target` from everything readable and not deleted. SQLite may write to `damaged`: pass a copy."""
    create_empty(target)
    known_messages: dict[str, str | None] = {}  # messages known to have existed, and their chats
    with closing(sqlite3.connect(target, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("BEGIN")
        _copy_readable(db, damaged, known_messages)
        unreadable = not _count(db, "conversations") and not _count(db, "messages")
        before = _count(db, "messages")
        if backup is not None:
            _copy_readable(db, backup, {}, with_deletions=False)
        from_backup = _count(db, "messages") - before
        _repair_references(db)
        recovered_ids = {row[0] for row in db.execute("SELECT id FROM messages")}
        titles = dict(db.execute("SELECT id, title FROM conversations").fetchall())
        missing = Counter(chat for id, chat in known_messages.items() if id not in recovered_ids)
        lost = tuple((titles.get(chat or "", RECOVERED_TITLE), number) for chat, number in missing.most_common())
        db.execute("COMMIT")
        return SalvageReport(_count(db, "conversations"), _count(db, "messages"), from_backup, lost, unreadable)


def is_intact(file: Path) -> bool:
    """Return True if SQLite finds no damage and the messages form a tree. Raises OSError."""
    queries = (
        "SELECT NOT EXISTS (SELECT 1 FROM pragma_foreign_key_check)",
        "SELECT NOT EXISTS (SELECT 1 FROM conversations WHERE leaf_id NOT IN (SELECT id FROM messages))",
        "SELECT NOT EXISTS (SELECT 1 FROM messages WHERE typeof(content) = 'blob' OR typeof(thinking) = 'blob')",
        "WITH RECURSIVE down (id) AS (SELECT id FROM messages WHERE parent_id IS NULL"
        " UNION SELECT messages.id FROM down JOIN messages ON messages.parent_id = down.id)"
        " SELECT (SELECT count(*) FROM down) = count(*) FROM messages",
    )
    if not file.exists() or not file.stat().st_size:
        return False
    try:
        with closing(sqlite3.connect(file)) as db:
            if db.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
                return False
            db.execute("INSERT INTO searched_words (searched_words) VALUES ('integrity-check')")
            db.rollback()
            for _ in db.execute(
                "SELECT title, content, thinking FROM messages JOIN conversations ON conversations.id = conversation_id"
            ):
                pass  # reading finds invalid text
            return all(db.execute(query).fetchone()[0] for query in queries)
    except DAMAGE_ERRORS:
        return False


def _copy_readable(
    db: sqlite3.Connection, source: Path, known_messages: dict[str, str | None], *, with_deletions: bool = True
) -> None:
    """Copy the readable rows to `db`, and keep those that it has already, except texts that had lost characters.

    Adds to `known_messages` the messages that the source is known to have had, with their chats.
    """
    if not source.exists() or not source.stat().st_size:
        return
    removed = (
        "SELECT value ->> '$.id' FROM removed, json_each(removed.rows, '$.messages') WHERE json_valid(removed.rows)"
    )
    deleted = {id for query in ("SELECT id FROM deleted", removed) for (id,) in db.execute(query) if id is not None}
    with closing(sqlite3.connect(source, isolation_level=None)) as source_db, contextlib.suppress(*DAMAGE_ERRORS):
        source_db.row_factory = sqlite3.Row
        source_db.text_factory = partial(str, encoding="utf-8", errors="replace")
        for table in TABLES:
            if table in ("removed", "deleted") and not with_deletions:
                continue
            types = {column[1]: column[2] for column in db.execute(f"PRAGMA table_info({table})")}
            for order in ("ASC", "DESC"):
                with contextlib.suppress(*DAMAGE_ERRORS):  # until the damage
                    for row in source_db.execute(f"SELECT * FROM {table} ORDER BY rowid {order}"):
                        _copy_row(db, table, types, dict(zip(row.keys(), tuple(row), strict=True)), deleted)
        with contextlib.suppress(*DAMAGE_ERRORS):
            known_messages |= _known_messages(source_db)


def _copy_row(db: sqlite3.Connection, table: str, types: dict[str, str], row: _Row, deleted: set[str]) -> None:
    values: _Row = {}
    for name, value in row.items():
        if (kind := types.get(name)) == "TEXT" and value is not None:
            value = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        elif kind in ("REAL", "INTEGER") and isinstance(value, str | bytes):
            value = None if name in ("deleted_at", "deleted_seen") else 0
        if kind is not None:
            values[name] = value
    if values.get("id") in deleted or values.get("message_id") in deleted:
        return
    names, places = ", ".join(values), ", ".join("?" * len(values))
    try:
        db.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", list(values.values()))
    except sqlite3.IntegrityError:  # already there, or unusable
        for name in ("content", "thinking") if table == "messages" else ():
            if isinstance(values.get(name), str) and _REPLACEMENT not in values[name]:  # undamaged here
                query = f"UPDATE messages SET {name} = ? WHERE id = ? AND instr({name}, ?)"
                db.execute(query, (values[name], values["id"], _REPLACEMENT))


def _known_messages(db: sqlite3.Connection) -> dict[str, str | None]:
    ids: dict[int, str] = {}
    chats: dict[int, str] = {}
    for values, column, index in (
        (ids, "id", "sqlite_autoindex_messages_1"),
        (chats, "conversation_id", "messages_of_conversation"),
    ):
        with contextlib.suppress(*DAMAGE_ERRORS):  # until the damage
            query = f"SELECT rowid, {column} FROM messages INDEXED BY {index} ORDER BY {column}"
            values.update(map(tuple, db.execute(query)))
    return {id: chats.get(number) for number, id in ids.items()}


def _repair_references(db: sqlite3.Connection) -> None:
    for link in ("other.id = messages.parent_id", "other.parent_id = messages.id"):
        db.execute(  # move a message without a chat to its neighbor's chat
            f"UPDATE messages SET conversation_id = other.conversation_id FROM messages AS other WHERE {link}"
            " AND messages.conversation_id NOT IN (SELECT id FROM conversations)"
            " AND other.conversation_id IN (SELECT id FROM conversations)"
            " AND NOT EXISTS (SELECT 1 FROM messages AS more WHERE more.conversation_id = messages.conversation_id"
            " AND more.id <> messages.id)"  # if there are several, the chat's row is lost
        )
    db.execute(
        "UPDATE searched SET conversation_id = messages.conversation_id FROM messages"
        " WHERE messages.id = message_id AND searched.conversation_id <> messages.conversation_id"
    )
    orphans = (
        "SELECT conversation_id, min(created_at), max(created_at) FROM messages"
        " WHERE conversation_id NOT IN (SELECT id FROM conversations) GROUP BY conversation_id"
    )
    question = "SELECT content FROM messages WHERE conversation_id = ? AND role = 'user' ORDER BY place LIMIT 1"
    new = "INSERT INTO conversations (id, title, created_at, updated_at) VALUES (?, ?, ?, ?)"
    for conversation_id, first, last in db.execute(orphans).fetchall():
        row = db.execute(question, (conversation_id,)).fetchone()
        title = title_from(row[0]) if row and row[0].strip() else RECOVERED_TITLE
        db.execute(new, (conversation_id, title, first, last))
    _repair_parents(db)
    for table in ("attachments", "removed", "drafts", "draft_attachments"):
        column, other = ("message_id", "messages") if table == "attachments" else ("conversation_id", "conversations")
        db.execute(f"DELETE FROM {table} WHERE {column} <> '' AND {column} NOT IN (SELECT id FROM {other})")
    db.execute(
        "UPDATE conversations SET leaf_id = (SELECT id FROM messages WHERE conversation_id = conversations.id"
        " ORDER BY place DESC LIMIT 1)"
        " WHERE leaf_id IS NULL OR NOT EXISTS"
        " (SELECT 1 FROM messages WHERE messages.id = leaf_id AND conversation_id = conversations.id)"
    )


def _repair_parents(db: sqlite3.Connection) -> None:
    """Attach messages that lost their parent, or form a cycle, to the message before them."""
    query = "SELECT id, conversation_id, parent_id FROM messages ORDER BY conversation_id, place"
    rows = db.execute(query).fetchall()
    chats = {id: chat for id, chat, _parent in rows}
    children: defaultdict[str | None, list[str]] = defaultdict(list)
    for id, chat, parent in rows:
        if parent is None or chats.get(parent) == chat:
            children[parent].append(id)
    attached: set[str] = set()  # messages below a root

    def attach(ids: list[str]) -> None:
        while ids:
            attached.add(id := ids.pop())
            ids += [child for child in children[id] if child not in attached]

    attach(list(children[None]))
    before = ""
    for id, chat, _parent in rows:
        if id not in attached:
            parent = before if chats.get(before) == chat else None
            db.execute("UPDATE messages SET parent_id = ? WHERE id = ?", (parent, id))
            attach([id])
        before = id


def _count(db: sqlite3.Connection, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
