"""Operations on the message tree: create, select, delete and restore branches."""

import base64
import json
import sqlite3
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvchat.chat.record.database import ConversationGone, Database, insert_message
from kvchat.chat.record.database_file import insert_rows
from kvchat.chat.record.messages import (
    Message,
    Role,
    as_text,
    attachment_from_row,
    message_from_row,
    searchable_text,
)
from kvchat.chat.record.titles import NEW_TITLE, shared_words, title_from
from kvchat.errors import KvchatError
from kvchat.text.language import _, join_list

# UNION, not UNION ALL: messages of a damaged file may form a cycle.
_DESCENDANTS = """
    WITH RECURSIVE down (id) AS (
        SELECT ? UNION SELECT messages.id FROM down JOIN messages ON messages.parent_id = down.id
    )
"""

_REMOVED_QUERY = (
    "SELECT removed.*, conversations.title AS title_now FROM removed"
    " JOIN conversations ON conversations.id = conversation_id"
)
_FIRST_QUESTION = "SELECT content FROM messages WHERE conversation_id = ? AND role = 'user' ORDER BY place LIMIT 1"


class ParentDeleted(KvchatError):
    def __init__(self) -> None:
        super().__init__(_("The previous message was also deleted"), "", _("Restore that message first."))


@dataclass(frozen=True)
class RemovedMessages:
    conversation_id: str
    leaf_id: str | None  # the conversation's old leaf
    title: str  # old title
    rows: tuple[dict[str, Any], ...]  # table `messages`, parents before children
    attachments: tuple[dict[str, Any], ...]  # table `attachments`
    removed_at: float = 0.0  # seconds since 1970
    current_title: str = ""

    @property
    def id(self) -> str:
        return str(self.rows[0]["id"])

    @property
    def text(self) -> str:
        names = (row["name"] for row in self.attachments if row["message_id"] == self.id)
        return str(self.rows[0]["content"]).strip() or join_list(names)


def current_branch(database: Database, conversation_id: str) -> list[Message]:
    """Return the messages from root to leaf with their siblings; system prompts are not shown as branches."""
    branch = database.branch(conversation_id)
    query = "SELECT id, parent_id, role FROM messages WHERE conversation_id = ? ORDER BY place"
    children: defaultdict[str | None, list[str]] = defaultdict(list)
    rows = database.rows(query, (conversation_id,))
    systems = {row["id"] for row in rows if row["role"] == Role.SYSTEM.value and row["parent_id"] is None}
    for row in rows:
        if row["id"] not in systems:
            children[None if row["parent_id"] in systems else row["parent_id"]].append(row["id"])
    forks = {parent: tuple(ids) for parent, ids in children.items() if len(ids) > 1}
    return [
        message
        if message.id in systems
        else replace(message, siblings=forks.get(None if message.parent_id in systems else message.parent_id, ()))
        for message in branch
    ]


def switch(database: Database, conversation_id: str, message_id: str) -> None:
    """Show the branch through this message, down to its newest leaf. Raises ConversationGone."""
    with database.transaction() as db:
        if not db.execute("SELECT 1 FROM messages WHERE id = ?", (message_id,)).fetchone():
            raise ConversationGone
        database.set_leaf(conversation_id, _newest_leaf(db, message_id))


def copy_to_branch(database: Database, parent_id: str | None, messages: Sequence[Message], leaf_id: str) -> None:
    """Copy messages under `parent_id`; the last becomes the leaf. Raises KvchatError if `leaf_id` is not the leaf."""
    with database.transaction() as db:
        query = "SELECT leaf_id FROM conversations WHERE id = ?"
        row = db.execute(query, (messages[0].conversation_id,)).fetchone()
        if row is None:
            raise ConversationGone
        if row["leaf_id"] != leaf_id:
            what, advice = _("No messages were dropped."), _("Try again if the context is still full.")
            raise KvchatError(_("The chat has changed in the meantime"), what, advice)
        for message in messages:
            parent_id = insert_message(db, replace(message, parent_id=parent_id), is_new=False).id


def fork(database: Database, message: Message) -> str:
    """Copy the messages up to this one into a new conversation with the same title and options; return its id."""
    path = database.path(message.id)
    with database.transaction() as db:
        now, fork_id = time.time(), uuid.uuid4().hex
        copied = db.execute(
            "INSERT INTO conversations (id, title, title_by_user, created_at, updated_at, model, options, prepared)"
            " SELECT ?, title, title_by_user, ?, ?, model, options, prepared FROM conversations WHERE id = ?",
            (fork_id, now, now, message.conversation_id),
        )
        if not copied.rowcount or not path:
            raise ConversationGone
        parent_id = None
        for original in path:
            copy = replace(original, conversation_id=fork_id, parent_id=parent_id)
            parent_id = insert_message(db, copy, is_new=False).id
    return fork_id


def remove(database: Database, message: Message) -> RemovedMessages:
    """Delete a message and its descendants; a sibling branch is shown instead."""
    with database.transaction() as db:
        query = f"{_DESCENDANTS} SELECT messages.* FROM down JOIN messages USING (id)"
        rows = [dict(row) for row in db.execute(query, (message.id,))]
        children: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            children[row["parent_id"]].append(row)
        ordered = [row for row in rows if row["id"] == message.id]
        for row in ordered:
            ordered += [child for child in children.pop(row["id"], []) if child["id"] != message.id]
        removed = tuple(ordered)
        query = "SELECT leaf_id, title FROM conversations WHERE id = ?"
        leaf = db.execute(query, (message.conversation_id,)).fetchone()
        if leaf is None or not removed:
            raise ConversationGone
        if leaf["leaf_id"] in {row["id"] for row in removed}:
            siblings = "SELECT id FROM messages WHERE conversation_id = ? AND parent_id IS ? ORDER BY place"
            ids = [row["id"] for row in db.execute(siblings, (message.conversation_id, message.parent_id))]
            position = ids.index(message.id) if message.id in ids else 0
            beside = ids[position - 1] if position else next(iter(ids[1:2]), None)
            database.set_leaf(message.conversation_id, _newest_leaf(db, beside) if beside else message.parent_id)
        attached = f"{_DESCENDANTS} SELECT attachments.* FROM attachments WHERE message_id IN (SELECT id FROM down)"
        attachments = tuple(dict(row) for row in db.execute(attached, (message.id,)))
        # Newest first: SQLite limits a cascade to a depth of 1,000 messages.
        db.executemany("DELETE FROM messages WHERE id = ?", [(row["id"],) for row in reversed(removed)])
        stored = [row | {"data": base64.b64encode(attachment_from_row(row).data).decode()} for row in attachments]
        stored_rows = json.dumps({"messages": removed, "attachments": stored}, ensure_ascii=False, default=as_text)
        at, chat = time.time(), message.conversation_id
        db.execute(
            "INSERT OR REPLACE INTO removed (id, conversation_id, removed_at, leaf_id, title, rows)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (message.id, chat, at, leaf["leaf_id"], leaf["title"], stored_rows),
        )
        entry = RemovedMessages(chat, leaf["leaf_id"], leaf["title"], removed, attachments, at)
        _retitle_without(db, entry)
        return entry


def removed_messages(database: Database) -> list[RemovedMessages]:
    return [removed for row in database.rows(_REMOVED_QUERY) if (removed := _removed(row))]


def restore_messages(database: Database, first_id: str) -> None:
    """Undo `remove`, also restoring a chat deleted since. Raises ConversationGone and ParentDeleted."""
    with database.transaction() as db:
        row = db.execute(f"{_REMOVED_QUERY} WHERE removed.id = ?", (first_id,)).fetchone()
        removed = _removed(row) if row else None
        if removed is None:
            raise ConversationGone
        parent = removed.rows[0]["parent_id"]
        circle = parent in {row["id"] for row in removed.rows}  # in a damaged file
        if parent and not circle and not db.execute("SELECT 1 FROM messages WHERE id = ?", (parent,)).fetchone():
            raise ParentDeleted
        db.execute("PRAGMA defer_foreign_keys = ON")
        insert_rows(db, "messages", removed.rows)
        insert_rows(db, "attachments", removed.attachments)
        db.execute("DELETE FROM removed WHERE id = ?", (first_id,))
        db.execute("UPDATE conversations SET deleted_at = NULL WHERE id = ?", (removed.conversation_id,))
        database.set_leaf(removed.conversation_id, removed.leaf_id)
        _set_title(db, removed.conversation_id, removed.title)


def delete_removed(database: Database, first_id: str) -> set[str]:
    """Delete removed messages permanently; return their ids, which other stores may still hold."""
    with database.transaction() as db:
        row = db.execute("SELECT *, '' AS title_now FROM removed WHERE id = ?", (first_id,)).fetchone()
        if row is None:
            return set()
        removed = _removed(row)
        ids = {entry["id"] for entry in removed.rows} if removed else {first_id}
        db.execute("DELETE FROM removed WHERE id = ?", (first_id,))
        db.executemany("INSERT OR IGNORE INTO deleted VALUES (?, ?)", [(id, row["conversation_id"]) for id in ids])
        return ids


def _removed(row: sqlite3.Row) -> RemovedMessages | None:
    try:
        stored = json.loads(row["rows"])
        attachments = tuple(entry | {"data": base64.b64decode(entry["data"])} for entry in stored["attachments"])
        columns = row["conversation_id"], row["leaf_id"], row["title"], tuple(stored["messages"]), attachments
        removed = RemovedMessages(*columns, row["removed_at"], row["title_now"])
        return removed if removed.id == row["id"] and isinstance(removed.text, str) else None
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None


def _retitle_without(db: sqlite3.Connection, removed: RemovedMessages) -> None:
    """Replace the chat's title if it came from a removed question or has a word that only removed messages contain."""
    questions = [as_text(row["content"]) for row in removed.rows if row["role"] == Role.USER.value]
    chat, title = removed.conversation_id, as_text(removed.title)
    shared = shared_words(title, _texts(removed.rows, removed.attachments))
    messages = db.execute("SELECT * FROM messages WHERE conversation_id = ?", (chat,))
    query = "SELECT * FROM attachments WHERE message_id IN (SELECT id FROM messages WHERE conversation_id = ?)"
    left = _texts(messages, db.execute(query, (chat,)))
    first = db.execute(_FIRST_QUESTION, (chat,)).fetchone()
    if first is None or title in map(title_from, questions) or shared_words(" ".join(shared), left) != shared:
        _set_title(db, chat, title_from(as_text(first["content"])) if first else _(NEW_TITLE))


def _texts(messages: Iterable[Any], attachments: Iterable[Any]) -> Iterator[str]:
    """Yield the texts in rows of the tables `messages` and `attachments`."""
    yield from (searchable_text(message_from_row(row)) for row in messages)
    yield from (f"{as_text(row['name'])}\n{as_text(row['text'])}" for row in attachments)


def _set_title(db: sqlite3.Connection, conversation_id: str, title: str) -> None:
    db.execute("UPDATE conversations SET title = ? WHERE id = ? AND NOT title_by_user", (title, conversation_id))


def _newest_leaf(db: sqlite3.Connection, message_id: str) -> str:
    query = f"""
        {_DESCENDANTS} SELECT messages.id FROM down JOIN messages USING (id)
        WHERE NOT EXISTS (SELECT 1 FROM messages AS child WHERE child.parent_id = messages.id)
        ORDER BY place DESC LIMIT 1
    """
    return str(db.execute(query, (message_id,)).fetchone()["id"])
