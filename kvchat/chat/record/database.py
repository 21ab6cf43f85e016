"""Database of conversations, messages and drafts. Each write is on disk when the call returns. Single thread."""

import json
import sqlite3
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType

from kvchat.chat.record.database_file import DatabaseFile, mark_damaged
from kvchat.chat.record.messages import (
    QUEUED_PREFIX,
    WRITTEN_HERE,
    Attachment,
    Conversation,
    Message,
    MessageState,
    Role,
    as_text,
    attachment_from_row,
    conversation_from_row,
    message_from_row,
    new_message,
    receipt_to_json,
    tool_column,
)
from kvchat.errors import KvchatError
from kvchat.text.language import _

INTERRUPT_ABANDONED = "UPDATE messages SET state = 'interrupted' WHERE state = 'streaming'"
# A trigger increments the counter `used` whenever `updated_at` changes, so a wrong clock cannot change the order.
# `updated_at` orders imported rows and those from before the counter (see kvchat.transfer.rows).
ORDER_BY_LAST_USED = "ORDER BY used DESC, updated_at DESC, rowid DESC"


class ConversationGone(KvchatError):
    def __init__(self) -> None:
        super().__init__(_("This chat was deleted"), "", _("Start a new chat to continue."))


class Database(DatabaseFile):
    """Conversations and messages; code for other tables uses `reading` and `transaction`. Raises StorageFailed."""

    def conversations(self) -> list[Conversation]:
        rows = self.rows(f"SELECT * FROM conversations WHERE deleted_at IS NULL {ORDER_BY_LAST_USED}")
        return [conversation_from_row(row) for row in rows]

    def newest(self, limit: int) -> list[Conversation]:
        """Return unarchived conversations: pinned ones first, then the most recently used."""
        query = "SELECT * FROM conversations WHERE deleted_at IS NULL AND NOT archived"
        rows = self.rows(f"{query} ORDER BY on_top DESC, used DESC, updated_at DESC, rowid DESC LIMIT ?", (limit,))
        return [conversation_from_row(row) for row in rows]

    def conversation(self, conversation_id: str) -> Conversation | None:
        rows = self.rows("SELECT * FROM conversations WHERE id = ? AND deleted_at IS NULL", (conversation_id,))
        return conversation_from_row(rows[0]) if rows else None

    def create_conversation(self, title: str, *, id: str = "") -> Conversation:
        now, conversation_id = time.time(), id or uuid.uuid4().hex
        with self.transaction() as db:
            db.execute(
                "INSERT INTO conversations (id, title, created_at, updated_at, used)"
                " VALUES (?1, ?2, ?3, ?3, (SELECT ifnull(max(used), 0) + 1 FROM conversations))",
                (conversation_id, title, now),
            )
        conversation = self.conversation(conversation_id)
        assert conversation is not None
        return conversation

    def rename(self, conversation_id: str, title: str, *, by_user: bool) -> None:
        """Set a title. An automatic title never replaces the user's, and the model may replace it later."""
        self.write(
            "UPDATE conversations SET title = ?, title_by_user = ?, title_due = ?"
            " WHERE id = ? AND (? OR NOT title_by_user)",
            (title, by_user, not by_user, conversation_id, by_user),
        )

    def delete(self, conversation_id: str) -> None:
        query = "SELECT id FROM messages WHERE conversation_id = ? ORDER BY rowid DESC"
        with self.transaction() as db:
            # Newest first: SQLite limits a cascade to a depth of 1,000 messages.
            ids = [(row["id"],) for row in db.execute(query, (conversation_id,))]
            db.executemany("DELETE FROM messages WHERE id = ?", ids)
            db.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))
            db.execute("INSERT OR IGNORE INTO deleted VALUES (?1, ?1)", (conversation_id,))

    def branch(self, conversation_id: str) -> list[Message]:
        leaf = self._leaf_of(conversation_id)
        return self.path(leaf) if leaf is not None else []

    def path(self, message_id: str) -> list[Message]:
        """Return the messages from the root to this one; empty if it was deleted. Cycles in a damaged file are cut."""
        query = """
            WITH RECURSIVE up (id) AS (
                SELECT ? UNION SELECT messages.parent_id FROM up JOIN messages USING (id)
            )
            SELECT messages.* FROM up JOIN messages USING (id)
        """
        with self.reading() as db:
            messages = {message.id: message for message in map(message_from_row, db.execute(query, (message_id,)))}
            path: list[Message] = []
            at: str | None = message_id
            while at is not None and at in messages:
                path.append(messages.pop(at))
                at = path[-1].parent_id
            attachments: dict[str, list[Attachment]] = {}
            query = "SELECT * FROM attachments WHERE message_id IN (SELECT value FROM json_each(?)) ORDER BY position"
            for row in db.execute(query, (json.dumps([message.id for message in path]),)):
                attachments.setdefault(row["message_id"], []).append(attachment_from_row(row))
        return [replace(m, attachments=tuple(attachments.get(m.id, ()))) for m in reversed(path)]

    def append(
        self, conversation_id: str, parent_id: str | None, role: Role, content: str, state: MessageState
    ) -> Message:
        """Add a message under `parent_id` and make it the conversation's leaf. Raises ConversationGone."""
        return self.append_message(new_message(conversation_id, role, content, parent_id=parent_id, state=state))

    def append_message(self, new: Message) -> Message:
        with self.transaction() as db:
            self._check_exists(new.conversation_id)
            return insert_message(db, new)

    def append_question(self, conversation_id: str, content: str, attachments: Sequence[Attachment] = ()) -> Message:
        """Add a user message under the conversation's leaf, even if that is a user message. Raises ConversationGone."""
        with self.transaction() as db:
            self._check_exists(conversation_id)
            try:
                leaf = self._leaf_of(conversation_id)
                new = new_message(conversation_id, Role.USER, content, parent_id=leaf, attachments=attachments)
                return insert_message(db, new)
            except sqlite3.IntegrityError as error:  # both existed a moment ago: an index is damaged
                raise mark_damaged(self.file, str(error)) from error

    def set_leaf(self, conversation_id: str, message_id: str | None) -> None:
        self.write("UPDATE conversations SET leaf_id = ? WHERE id = ?", (message_id, conversation_id))

    def update_reply(self, message: Message) -> None:
        receipt = receipt_to_json(message.receipt) if message.receipt else None
        self.write(
            "UPDATE messages SET content = ?, thinking = ?, state = ?, receipt = ?, tool = ? WHERE id = ?",
            (message.content, message.thinking, message.state.value, receipt, tool_column(message), message.id),
        )

    def reopen(self, message: Message) -> None:
        with self.transaction() as db:
            db.execute("UPDATE messages SET state = 'streaming' WHERE id = ?", (message.id,))
            statement = "UPDATE conversations SET leaf_id = ?, updated_at = ? WHERE id = ?"
            db.execute(statement, (message.id, time.time(), message.conversation_id))

    def remove_empty_reply(self, message: Message) -> None:
        """Remove an empty reply. Its parent becomes the leaf and adopts any messages below the reply."""
        with self.transaction() as db:
            db.execute("UPDATE messages SET parent_id = ? WHERE parent_id = ?", (message.parent_id, message.id))
            statement = "UPDATE conversations SET leaf_id = ? WHERE id = ? AND leaf_id = ?"
            db.execute(statement, (message.parent_id, message.conversation_id, message.id))
            db.execute("DELETE FROM messages WHERE id = ?", (message.id,))

    def move_to_end(self, question_id: str, waiting: Collection[str] = ()) -> bool:
        """Move a question to the end of the branch; True if moved. `waiting`: ids of questions to answer after it."""
        with self.transaction() as db:
            path = self.path(question_id)
            if not path:
                return False
            before = [message.id for message in path[:-1] if message.id not in waiting]
            visible_ids = [message.id for message in self.branch(path[-1].conversation_id) if message.id not in waiting]
            if question_id not in visible_ids and before and before[-1] in visible_ids:
                before = visible_ids
            behind = before[-1] if before else None
            if behind == path[-1].parent_id:
                return False
            db.execute("UPDATE messages SET parent_id = ? WHERE id = ?", (behind, question_id))
            db.execute("UPDATE conversations SET leaf_id = ? WHERE id = ?", (question_id, path[-1].conversation_id))
            return True

    def seconds_saved(self) -> dict[str, float]:
        query = """
            SELECT conversation_id, sum(CASE WHEN json_valid(receipt) THEN receipt ->> '$.saved_ms' END) / 1000
            FROM messages WHERE receipt IS NOT NULL GROUP BY conversation_id
        """
        return {row[0]: float(row[1]) for row in self.rows(query) if row[1]}

    def prefill_timings(self, model: str) -> list[tuple[int, float]]:
        """Return (tokens, ms) of this model's recent prefills, oldest first.

        They are replies that processed at least 64 tokens, and prepared sets.
        """
        query = """
            SELECT * FROM (
                SELECT (receipt ->> '$.prompt_tokens') - (receipt ->> '$.cached_tokens'),
                    CAST(receipt ->> '$.prefill_ms' AS REAL), created_at
                FROM messages WHERE CASE WHEN json_valid(receipt) THEN receipt ->> '$.model' END = ?1
                AND CASE WHEN json_valid(receipt)
                    THEN (receipt ->> '$.prompt_tokens') - (receipt ->> '$.cached_tokens') >= 64 END
                ORDER BY created_at DESC LIMIT 50
            ) UNION ALL
            SELECT tokens, read_ms, created_at FROM prepared
            WHERE CASE WHEN json_valid(fingerprint) THEN fingerprint ->> '$.model' END = ?1
            ORDER BY 3
        """
        return [(int(tokens), float(ms)) for tokens, ms, _at in self.rows(query, (model,)) if tokens and ms]

    def restore_ms_per_byte(self) -> float | None:
        query = """
            SELECT CAST(receipt ->> '$.restore_ms' AS REAL) / (receipt ->> '$.restored_bytes') FROM messages
            WHERE rowid > (SELECT max(rowid) FROM messages) - 1000
            AND CASE WHEN json_valid(receipt) THEN receipt ->> '$.restored_bytes' END > 0
            ORDER BY rowid DESC LIMIT 5
        """
        rates = [float(rate) for (rate,) in self.rows(query) if rate]
        from statistics import median  # slow to import, and the first frame does not need it

        return median(rates) if rates else None

    def draft_texts(self) -> dict[str, str]:
        return {as_text(row["conversation_id"]): as_text(row["text"]) for row in self.rows("SELECT * FROM drafts")}

    def draft_attachments(self) -> dict[str, tuple[Attachment, ...]]:
        attachments: dict[str, tuple[Attachment, ...]] = {}
        for row in self.rows("SELECT * FROM draft_attachments ORDER BY position"):
            id = as_text(row["conversation_id"])
            attachments[id] = (*attachments.get(id, ()), attachment_from_row(row))
        return attachments

    def store_drafts(
        self, texts: Mapping[str, str], attachments: Mapping[str, Sequence[Attachment]] = MappingProxyType({})
    ) -> None:
        """Store drafts by conversation id; delete empty ones and those of deleted conversations."""
        chats = f"SELECT 1 FROM conversations WHERE id = replace(?1, '{QUEUED_PREFIX}', '')"
        exists = f"EXISTS ({chats} UNION SELECT 1 WHERE ?1 = '')"
        with self.transaction() as db:
            for id, text in texts.items():
                db.execute("DELETE FROM drafts WHERE conversation_id = ?", (id,))
                if text:
                    db.execute(f"INSERT INTO drafts SELECT ?1, ?2 WHERE {exists}", (id, text))
            for id, files in attachments.items():
                db.execute("DELETE FROM draft_attachments WHERE conversation_id = ?", (id,))
                db.executemany(
                    f"INSERT INTO draft_attachments SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 WHERE {exists}",
                    _attachment_rows(id, files),
                )

    def _leaf_of(self, conversation_id: str) -> str | None:
        current_leaf = (
            "SELECT leaf_id FROM conversations JOIN messages ON messages.id = leaf_id WHERE conversations.id = ?"
        )
        newest = "SELECT id FROM messages WHERE conversation_id = ? ORDER BY place DESC LIMIT 1"
        rows = self.rows(current_leaf, (conversation_id,)) or self.rows(newest, (conversation_id,))
        return rows[0][0] if rows else None

    def _check_exists(self, conversation_id: str) -> None:
        if not self.rows("SELECT 1 FROM conversations WHERE id = ? AND deleted_at IS NULL", (conversation_id,)):
            raise ConversationGone


def insert_message(db: sqlite3.Connection, new: Message, *, is_new: bool = True) -> Message:
    """Store a copy under a new id, without its receipt, and make it the leaf. `is_new` is False for imports."""
    stored = replace(new, id=uuid.uuid4().hex, created_at=datetime.now(UTC), receipt=None)
    created, writer = stored.created_at.timestamp(), WRITTEN_HERE if is_new else None
    values = stored.role.value, stored.content, stored.thinking, stored.state.value, tool_column(stored)
    db.execute(
        "INSERT INTO messages"
        " (id, conversation_id, parent_id, role, content, thinking, state, tool, created_at, writer)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (stored.id, stored.conversation_id, stored.parent_id, *values, created, writer),
    )
    db.executemany(
        "INSERT INTO attachments (message_id, position, name, size, hash, text, data, whole, source)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        _attachment_rows(stored.id, stored.attachments),
    )
    query = "UPDATE conversations SET leaf_id = ?, updated_at = ? WHERE id = ?"
    db.execute(query, (stored.id, created, stored.conversation_id))
    return stored


def _attachment_rows(owner_id: str, attachments: Sequence[Attachment]) -> list[tuple[object, ...]]:
    rows = enumerate(attachments)
    return [(owner_id, i, a.name, a.size, a.hash, a.text, a.data, a.whole, a.source) for i, a in rows]


@dataclass(frozen=True)
class Draft:
    conversation_id: str
    text: str = ""
    attachments: tuple[Attachment, ...] = ()
