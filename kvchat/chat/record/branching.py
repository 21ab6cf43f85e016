"""Branches made of copies: other messages than the ones that were said before the same last ones."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from kvchat.chat.record.attachments import insert_attachments
from kvchat.chat.record.database import ConversationGone, Database
from kvchat.chat.record.messages import Message, MessageState, Role
from kvchat.errors import KvchatError


class WentOn(KvchatError):
    """The conversation has another end than the one a branch was made for."""

    def __init__(self) -> None:
        super().__init__(
            "The chat has gone on meanwhile", "Nothing was left out of it.", "Try again if it is still full."
        )


def branch_of_copies(database: Database, parent_id: str | None, messages: Sequence[Message], leaf_id: str) -> None:
    """Put copies of the messages, one after the other, under `parent_id` and make the last one the leaf.

    The originals stay where they are. A copy has no receipt: it cost nothing. `leaf_id` is the end of the branch they
    were taken from: what was said after it must not vanish from the page. Raises WentOn, ConversationGone and
    StorageFailed.
    """
    conversation_id = messages[0].conversation_id
    with database.transaction() as db:
        row = db.execute("SELECT leaf_id FROM conversations WHERE id = ?", (conversation_id,)).fetchone()
        if row is None:
            raise ConversationGone
        if row["leaf_id"] != leaf_id:
            raise WentOn
        for message in messages:
            copy_id, now = uuid.uuid4().hex, time.time()
            db.execute(
                "INSERT INTO messages (id, conversation_id, parent_id, role, content, thinking, state, created_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    copy_id,
                    conversation_id,
                    parent_id,
                    message.role.value,
                    message.content,
                    message.thinking,
                    message.state.value,
                    now,
                ),
            )
            insert_attachments(db, copy_id, message.attachments)
            parent_id = copy_id
        db.execute(
            "UPDATE conversations SET leaf_id = ?, updated_at = ? WHERE id = ?", (parent_id, now, conversation_id)
        )


def words_of_nobody_yet(like: Message, role: Role, content: str) -> Message:
    """A message to be put into a branch of copies beside `like`."""
    return Message("", like.conversation_id, None, role, content, "", MessageState.COMPLETE, like.created_at)
