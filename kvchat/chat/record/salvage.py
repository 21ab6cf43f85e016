"""Recovery of a damaged chats database into a new file, using its newest backup.

Each table is read from both ends, as far as SQLite gets. A chat whose row is lost gets a new one; a message whose
parent is lost follows the one before it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kvchat.chat.record.automatic_backups import FAULTS, TABLES
from kvchat.chat.record.database_file import make_empty
from kvchat.chat.record.titles import title_from

RECOVERED = "Recovered chat"
_BAD = "\ufffd"  # replaces invalid bytes
_Row = dict[str, Any]


@dataclass(frozen=True)
class Salvaged:
    chats: int
    messages: int
    from_backup: int  # of `messages`
    lost: tuple[tuple[str, int], ...]  # known messages found nowhere, by chat title
    unreadable: bool = False  # nothing could be read from the damaged file


def salvage(damaged: Path, backup: Path | None, target: Path) -> Salvaged:
    """Build `target` from everything readable and not deleted. SQLite may write to `damaged`: pass a copy."""
    make_empty(target)
    known: dict[str, str | None] = {}  # messages known to have existed, and their chats
    with closing(sqlite3.connect(target, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("BEGIN")
        _take(db, damaged, known)
        unreadable = not _count(db, "conversations") and not _count(db, "messages")
        before = _count(db, "messages")
        if backup is not None:
            _take(db, backup, {}, all_of_it=False)
        from_backup = _count(db, "messages") - before
        _join(db)
        there = {row[0] for row in db.execute("SELECT id FROM messages")}
        titles = dict(db.execute("SELECT id, title FROM conversations").fetchall())
        missing = Counter(chat for id, chat in known.items() if id not in there)
        lost = tuple((titles.get(chat or "", RECOVERED), number) for chat, number in missing.most_common())
        db.execute("COMMIT")
        return Salvaged(_count(db, "conversations"), _count(db, "messages"), from_backup, lost, unreadable)


def is_whole(file: Path) -> bool:
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
    except FAULTS:
        return False


def _take(db: sqlite3.Connection, source: Path, known: dict[str, str | None], *, all_of_it: bool = True) -> None:
    """Copy readable rows; existing rows stay, except texts with lost characters."""
    if not source.exists() or not source.stat().st_size:
        return
    removed = (
        "SELECT value ->> '$.id' FROM removed, json_each(removed.rows, '$.messages') WHERE json_valid(removed.rows)"
    )
    deleted = {id for query in ("SELECT id FROM deleted", removed) for (id,) in db.execute(query) if id is not None}
    with closing(sqlite3.connect(source, isolation_level=None)) as there, contextlib.suppress(*FAULTS):
        there.row_factory = sqlite3.Row
        there.text_factory = partial(str, encoding="utf-8", errors="replace")
        for table in TABLES:
            if table in ("removed", "deleted") and not all_of_it:
                continue
            types = {column[1]: column[2] for column in db.execute(f"PRAGMA table_info({table})")}
            for order in ("ASC", "DESC"):
                with contextlib.suppress(*FAULTS):  # until the damage
                    for row in there.execute(f"SELECT * FROM {table} ORDER BY rowid {order}"):
                        _take_row(db, table, types, dict(zip(row.keys(), tuple(row), strict=True)), deleted)
        with contextlib.suppress(*FAULTS):
            known |= _known(there)


def _take_row(db: sqlite3.Connection, table: str, types: dict[str, str], row: _Row, deleted: set[str]) -> None:
    values = {
        name: _fitting(value, types[name], None if name in ("deleted_at", "deleted_seen") else 0)
        for name, value in row.items()
        if name in types
    }
    if values.get("id") in deleted or values.get("message_id") in deleted:
        return
    names, places = ", ".join(values), ", ".join("?" * len(values))
    try:
        db.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", list(values.values()))
    except sqlite3.IntegrityError:  # already there, or unusable
        for name in ("content", "thinking") if table == "messages" else ():
            if isinstance(values.get(name), str) and _BAD not in values[name]:  # undamaged here
                query = f"UPDATE messages SET {name} = ? WHERE id = ? AND instr({name}, ?)"
                db.execute(query, (values[name], values["id"], _BAD))


def _fitting(value: Any, kind: str, default: float | None) -> Any:
    if kind == "TEXT" and isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if kind == "TEXT" and value is not None:
        return str(value)
    if kind in ("REAL", "INTEGER") and isinstance(value, str | bytes):
        return default
    return value


def _known(db: sqlite3.Connection) -> dict[str, str | None]:
    ids: dict[int, str] = {}
    chats: dict[int, str] = {}
    for found, column, index in (
        (ids, "id", "sqlite_autoindex_messages_1"),
        (chats, "conversation_id", "messages_of_conversation"),
    ):
        with contextlib.suppress(*FAULTS):  # until the damage
            query = f"SELECT rowid, {column} FROM messages INDEXED BY {index} ORDER BY {column}"
            found.update(map(tuple, db.execute(query)))
    return {id: chats.get(number) for number, id in ids.items()}


def _join(db: sqlite3.Connection) -> None:
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
        "SELECT DISTINCT conversation_id FROM messages WHERE conversation_id NOT IN (SELECT id FROM conversations)"
    )
    for (conversation_id,) in db.execute(orphans).fetchall():
        first, last = db.execute(
            "SELECT min(created_at), max(created_at) FROM messages WHERE conversation_id = ?", (conversation_id,)
        ).fetchone()
        words = db.execute(
            "SELECT content FROM messages WHERE conversation_id = ? AND role = 'user' ORDER BY place LIMIT 1",
            (conversation_id,),
        ).fetchone()
        title = title_from(words[0]) if words and words[0].strip() else RECOVERED
        db.execute(
            "INSERT INTO conversations (id, title, created_at, updated_at) VALUES (?, ?, ?, ?)",
            (conversation_id, title, first, last),
        )
    _join_messages(db)
    for table in ("attachments", "removed", "drafts", "draft_attachments"):
        column, other = ("message_id", "messages") if table == "attachments" else ("conversation_id", "conversations")
        db.execute(f"DELETE FROM {table} WHERE {column} <> '' AND {column} NOT IN (SELECT id FROM {other})")
    db.execute(
        "UPDATE conversations SET leaf_id = (SELECT id FROM messages WHERE conversation_id = conversations.id"
        " ORDER BY place DESC LIMIT 1)"
        " WHERE leaf_id IS NULL OR NOT EXISTS"
        " (SELECT 1 FROM messages WHERE messages.id = leaf_id AND conversation_id = conversations.id)"
    )


def _join_messages(db: sqlite3.Connection) -> None:
    chats: defaultdict[str, list[tuple[str, str | None]]] = defaultdict(list)
    for id, chat, parent in db.execute("SELECT id, conversation_id, parent_id FROM messages ORDER BY place").fetchall():
        chats[chat].append((id, parent))
    for messages in chats.values():
        parents = dict(messages)
        for at, (id, parent) in enumerate(messages):
            before = messages[at - 1][0] if at else None
            if (parent is not None and parent not in parents) or _circles(parents, id):
                parents[id] = before if before is not None and not _circles(parents | {id: before}, id) else None
                db.execute("UPDATE messages SET parent_id = ? WHERE id = ?", (parents[id], id))


def _circles(parents: dict[str, str | None], id: str) -> bool:
    passed, at = {id}, parents[id]
    while at is not None and at in parents:
        if at == id:
            return True
        if at in passed:
            return False  # another cycle: it is cut on its own turn
        passed.add(at)
        at = parents[at]
    return False


def _count(db: sqlite3.Connection, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
