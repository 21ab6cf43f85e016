"""Conversations on disk: SQLite, WAL, every write durable before the call returns. Synchronous, for one thread."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from kvchat.chat.attachments import insert_attachments, with_attachments
from kvchat.chat.messages import Attachment, Conversation, Message, MessageState, Role
from kvchat.chat.migrations import migrate
from kvchat.chat.rows import conversation_of, message_of, receipt_json
from kvchat.errors import KvchatError

LOCK_WAIT_S = 10.0  # how long a write waits for another process (the app and `ask` share the file)


class StorageFailed(KvchatError):
    """The conversations' database could not be read or written."""


class ConversationGone(KvchatError):
    """The conversation was deleted meanwhile."""

    def __init__(self) -> None:
        super().__init__("This conversation was deleted", "", "Begin a new one to go on.")


class Database:
    """The conversations' file. Raises StorageFailed from every method when the disk or the file fails."""

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
                migrate(self._connection, path)
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def conversations(self) -> list[Conversation]:
        """All conversations, the newest first."""
        with _in_words(self.file):
            rows = self._connection.execute(
                "SELECT * FROM conversations WHERE deleted_at IS NULL ORDER BY updated_at DESC, rowid DESC"
            )
            return [conversation_of(row) for row in rows]

    def conversation(self, conversation_id: str) -> Conversation | None:
        """One conversation, or None if there is none of that id."""
        with _in_words(self.file):
            row = self._connection.execute(
                "SELECT * FROM conversations WHERE id = ? AND deleted_at IS NULL", (conversation_id,)
            ).fetchone()
            return conversation_of(row) if row else None

    def create_conversation(self, title: str, system: str | None = None) -> Conversation:
        """A new conversation, with a system message if given."""
        now, conversation_id = _now(), uuid.uuid4().hex
        with self._transaction():
            self._connection.execute(
                "INSERT INTO conversations (id, title, created_at, updated_at) VALUES (?, ?, ?, ?)",
                (conversation_id, title, now, now),
            )
            if system:
                self._insert(conversation_id, None, Role.SYSTEM, system, MessageState.COMPLETE)
        made = self.conversation(conversation_id)
        assert made is not None
        return made

    def rename(self, conversation_id: str, title: str, *, by_user: bool) -> None:
        """Set a title. One that the user gave is never replaced by an automatic one."""
        with self._transaction():
            self._connection.execute(
                "UPDATE conversations SET title = ?, title_by_user = ? WHERE id = ? AND (? OR NOT title_by_user)",
                (title, by_user, conversation_id, by_user),
            )

    def delete(self, conversation_id: str) -> None:
        """Delete a conversation and its messages."""
        query = "SELECT id FROM messages WHERE conversation_id = ? ORDER BY rowid DESC"
        with self._transaction():
            # The last first: SQLite follows a cascade no more than 1,000 messages deep.
            ids = [(row["id"],) for row in self._connection.execute(query, (conversation_id,))]
            self._connection.executemany("DELETE FROM messages WHERE id = ?", ids)
            self._connection.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))

    def branch(self, conversation_id: str) -> list[Message]:
        """The messages from the root to the conversation's leaf, oldest first."""
        query = """
            WITH RECURSIVE up (id, depth) AS (
                SELECT leaf_id, 0 FROM conversations WHERE id = ?
                UNION ALL SELECT messages.parent_id, depth + 1 FROM up JOIN messages USING (id)
            )
            SELECT messages.* FROM up JOIN messages USING (id) ORDER BY depth DESC
        """
        with _in_words(self.file):
            rows = self._connection.execute(query, (conversation_id,))
            return with_attachments(self._connection, [message_of(row) for row in rows])

    def path(self, message_id: str) -> list[Message]:
        """The messages from the root to this one, oldest first; empty if it was deleted."""
        query = """
            WITH RECURSIVE up (id, depth) AS (
                SELECT ?, 0 UNION ALL SELECT messages.parent_id, depth + 1 FROM up JOIN messages USING (id)
            )
            SELECT messages.* FROM up JOIN messages USING (id) ORDER BY depth DESC
        """
        with _in_words(self.file):
            rows = self._connection.execute(query, (message_id,))
            return with_attachments(self._connection, [message_of(row) for row in rows])

    def append(
        self,
        conversation_id: str,
        parent_id: str | None,
        role: Role,
        content: str,
        state: MessageState,
        attachments: Sequence[Attachment] = (),
    ) -> Message:
        """Add a message under `parent_id` and make it the conversation's leaf. Raises ConversationGone."""
        with self._transaction():
            self._check(conversation_id)
            return self._insert(conversation_id, parent_id, role, content, state, attachments)

    def append_question(self, conversation_id: str, content: str, attachments: Sequence[Attachment] = ()) -> Message:
        """Add a user's message under the conversation's leaf, whoever wrote that. Raises ConversationGone."""
        with self._transaction():
            leaf = self._check(conversation_id)
            return self._insert(conversation_id, leaf, Role.USER, content, MessageState.COMPLETE, attachments)

    def set_leaf(self, conversation_id: str, message_id: str) -> None:
        """Make one of the conversation's messages the end of its current branch."""
        with self._transaction():
            self._connection.execute("UPDATE conversations SET leaf_id = ? WHERE id = ?", (message_id, conversation_id))

    def update_reply(self, message: Message) -> None:
        """Write a reply's text, thinking, state and receipt as they are now."""
        receipt = receipt_json(message.receipt) if message.receipt else None
        with self._transaction():
            self._connection.execute(
                "UPDATE messages SET content = ?, thinking = ?, state = ?, receipt = ? WHERE id = ?",
                (message.content, message.thinking, message.state.value, receipt, message.id),
            )

    def remove_leaf(self, message: Message) -> None:
        """Take back a message nobody has seen (an empty reply); its parent is the leaf again."""
        with self._transaction():
            self._connection.execute(
                "UPDATE conversations SET leaf_id = ? WHERE id = ? AND leaf_id = ?",
                (message.parent_id, message.conversation_id, message.id),
            )
            self._connection.execute("DELETE FROM messages WHERE id = ?", (message.id,))

    def mark_interrupted(self) -> int:
        """Replies whose writer died while streaming become interrupted ones; returns how many.

        Replies another living process is writing are left alone: the app and `ask` share the file.
        """
        with self._transaction():
            rows = self._connection.execute(
                "SELECT id, writer FROM messages WHERE state = ?", (MessageState.STREAMING.value,)
            ).fetchall()
            orphans = [(MessageState.INTERRUPTED.value, row["id"]) for row in rows if not _alive(row["writer"])]
            self._connection.executemany("UPDATE messages SET state = ? WHERE id = ?", orphans)
            return len(orphans)

    def shares_system_prompt(self, text: str, reply_id: str) -> bool:
        """Whether another reply than this one came first after the same system prompt, in any conversation."""
        query = """
            SELECT EXISTS (
                SELECT 1 FROM messages AS system INDEXED BY system_prompts
                JOIN messages AS question ON question.parent_id = system.id
                JOIN messages AS reply ON reply.parent_id = question.id
                WHERE system.role = 'system' AND system.content = ? AND reply.id != ?
            )
        """
        with _in_words(self.file):
            return bool(self._connection.execute(query, (text, reply_id)).fetchone()[0])

    def prefill_ms_per_token(self, model: str) -> float | None:
        """This model's measured prefill time, from its newest reply that read 64 tokens or more. None before that."""
        query = """
            SELECT receipt ->> '$.prefill_ms' / (receipt ->> '$.prompt_tokens' - receipt ->> '$.cached_tokens')
            FROM messages WHERE receipt IS NOT NULL AND receipt ->> '$.model' = ?
            AND receipt ->> '$.prompt_tokens' - receipt ->> '$.cached_tokens' >= 64
            ORDER BY created_at DESC LIMIT 1
        """
        with _in_words(self.file):
            row = self._connection.execute(query, (model,)).fetchone()
            return float(row[0]) if row else None

    def _check(self, conversation_id: str) -> str | None:
        """The conversation's leaf. Raises ConversationGone."""
        row = self._connection.execute(
            "SELECT leaf_id FROM conversations WHERE id = ? AND deleted_at IS NULL", (conversation_id,)
        ).fetchone()
        if row is None:
            raise ConversationGone
        return row["leaf_id"]  # type: ignore[no-any-return]

    def _insert(
        self,
        conversation_id: str,
        parent_id: str | None,
        role: Role,
        content: str,
        state: MessageState,
        attachments: Sequence[Attachment] = (),
    ) -> Message:
        message = Message(
            id=uuid.uuid4().hex,
            conversation_id=conversation_id,
            parent_id=parent_id,
            role=role,
            content=content,
            thinking="",
            state=state,
            created_at=datetime.now(UTC),
            attachments=tuple(attachments),
        )
        created = message.created_at.timestamp()
        self._connection.execute(
            "INSERT INTO messages (id, conversation_id, parent_id, role, content, state, created_at, writer)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (message.id, conversation_id, parent_id, role.value, content, state.value, created, _this_process()),
        )
        insert_attachments(self._connection, message.id, attachments)
        self._connection.execute(
            "UPDATE conversations SET leaf_id = ?, updated_at = ? WHERE id = ?", (message.id, created, conversation_id)
        )
        return message

    def reopen(self, message: Message) -> None:
        """A reply that had ended is being written again, by this process, and is the conversation's leaf."""
        with self._transaction():
            self._connection.execute(
                "UPDATE messages SET state = ?, writer = ? WHERE id = ?",
                (MessageState.STREAMING.value, _this_process(), message.id),
            )
            self._connection.execute(
                "UPDATE conversations SET leaf_id = ?, updated_at = ? WHERE id = ?",
                (message.id, _now(), message.conversation_id),
            )

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """For a module that asks what no method here answers. Nothing is changed in it."""
        with _in_words(self.file):
            yield self._connection

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, for a module that has tables of its own in this file."""
        with self._transaction():
            yield self._connection

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, and on disk when the block has ended."""
        with _in_words(self.file):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
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
            "Your conversations could not be read or written",
            f"{path}: {error}.",
            "Check that the disk is not full and that the file may be written, then try again.",
        ) from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.InterfaceError)):
            raise
        raise StorageFailed(
            "The conversations' file is damaged",
            f"{path}: {error}.",
            "Put a copy of the file back from your backup, or move it away to start with an empty one.",
        ) from error


def _this_process() -> str:
    """This process's name for all time: its pid alone is used again after a while."""
    return f"{os.getpid()}:{psutil.Process().create_time():.2f}"


def _alive(writer: str | None) -> bool:
    """Whether the process that wrote this still runs."""
    pid, _, started = (writer or "").partition(":")
    try:
        return f"{psutil.Process(int(pid)).create_time():.2f}" == started
    except (ValueError, psutil.Error):
        return False


def _now() -> float:
    return datetime.now(UTC).timestamp()
