"""Documents and pictures that go with a message: their rows, and how the model is given them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from kvchat.chat.record.messages import Attachment, Message
from kvchat.chat.record.rows import attachment_of
from kvchat.engine.speaking.wire import Picture


def insert_attachments(db: sqlite3.Connection, message_id: str, attachments: Sequence[Attachment]) -> None:
    """Store what goes with a message, in the transaction that stores the message."""
    db.executemany(
        "INSERT INTO attachments (message_id, position, name, size, hash, text, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(message_id, i, a.name, a.size, a.hash, a.text, a.data) for i, a in enumerate(attachments)],
    )


def with_attachments(db: sqlite3.Connection, messages: list[Message]) -> list[Message]:
    """The messages with what was attached to them."""
    found: dict[str, list[Attachment]] = {}
    ids = json.dumps([message.id for message in messages])
    query = "SELECT * FROM attachments WHERE message_id IN (SELECT value FROM json_each(?)) ORDER BY position"
    for row in db.execute(query, (ids,)):
        found.setdefault(row["message_id"], []).append(attachment_of(row))
    if not found:
        return messages
    return [replace(m, attachments=tuple(found[m.id])) if m.id in found else m for m in messages]


def prompt_content(message: Message) -> str:
    """What the model reads of a message: the documents first.

    Whoever asks something else about the same documents then asks an extension of what was read already.
    """
    documents = [_document(attachment) for attachment in message.attachments if not attachment.data]
    return "\n\n".join(part for part in (*documents, message.content) if part)


def searched_text(message: Message) -> str:
    """What a search looks through of a message: its words, and the documents' names and texts."""
    documents = [part for attachment in message.attachments for part in (attachment.name, attachment.text)]
    return "\n".join(part for part in (message.content, *documents) if part)


def pictures_of(message: Message) -> tuple[Picture, ...]:
    """What the model is shown with a message."""
    return tuple(Picture(attachment.data) for attachment in message.attachments if attachment.data)


def _document(attachment: Attachment) -> str:
    name = attachment.name.replace('"', "'")
    return f'<document name="{name}">\n{attachment.text.strip()}\n</document>'
