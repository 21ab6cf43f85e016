"""Conversion between database rows and values. A damaged value is dropped; its message and chat are kept."""

from __future__ import annotations

import dataclasses
import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from kvchat.chat.record.messages import AWAITS_MODEL, Attachment, Conversation, Message, MessageState, Receipt, Role
from kvchat.session.proof import Source
from kvchat.words.reasons import reason_of
from kvchat.words.safe_text import calm

_LATEST_S = 253402300799.0  # seconds since 1970: end of the year 9999, the datetime maximum
_NUMBERS = {field.name: str(field.type) for field in dataclasses.fields(Receipt)}


def conversation_of(row: sqlite3.Row) -> Conversation:
    return Conversation(
        id=text_of(row["id"]),
        title=calm(text_of(row["title"])),
        title_by_user=bool(row["title_by_user"]),
        created_at=time_of(row["created_at"]),
        updated_at=time_of(row["updated_at"]),
        leaf_id=_or_none(row["leaf_id"]),
        model=_or_none(row["model"]),
        folder=_or_none(row["folder"]),
        on_top=bool(row["on_top"]),
        archived=bool(row["archived"]),
    )


def message_of(row: sqlite3.Row) -> Message:
    receipt = receipt_of(row["receipt"]) if row["receipt"] else None
    return Message(
        id=text_of(row["id"]),
        conversation_id=text_of(row["conversation_id"]),
        parent_id=_or_none(row["parent_id"]),
        role=role_of(row),
        content=text_of(row["content"]),
        thinking=text_of(row["thinking"]),
        state=state_of(row["state"]),
        created_at=time_of(row["created_at"]),
        receipt=receipt,
        awaits_model=row["writer"] == AWAITS_MODEL,
    )


def attachment_of(row: sqlite3.Row | Mapping[str, Any]) -> Attachment:
    size, data = row["size"], row["data"]
    return Attachment(
        text_of(row["name"]),
        size if isinstance(size, int) else 0,
        text_of(row["hash"]),
        text_of(row["text"]),
        data if isinstance(data, bytes) else b"",
    )


def role_of(row: sqlite3.Row) -> Role:
    try:
        return Role(row["role"])
    except ValueError:
        return Role.ASSISTANT if row["receipt"] or row["thinking"] else Role.USER


def state_of(value: Any) -> MessageState:
    try:
        return MessageState(value)
    except ValueError:
        return MessageState.COMPLETE


def receipt_json(receipt: Receipt) -> str:
    return json.dumps(dataclasses.asdict(receipt) | {"source": receipt.source.value})


def receipt_of(text: Any) -> Receipt | None:
    """Parse a stored receipt, ignoring fields of a newer kvchat; None if it is unreadable."""
    try:
        fields = json.loads(text)
        known = {name: value for name, value in fields.items() if name in _NUMBERS}
        reason = reason_of(known.get("miss_reason"))
        receipt = Receipt(**(known | {"source": Source(fields["source"]), "miss_reason": reason}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return receipt if all(_fits(name, getattr(receipt, name)) for name in _NUMBERS) else None


def text_of(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else "" if value is None else str(value)


def time_of(value: Any) -> datetime:
    fits = isinstance(value, int | float) and 0 <= value <= _LATEST_S
    return datetime.fromtimestamp(value if fits else 0, UTC)


def insert_attachments(db: sqlite3.Connection, message_id: str, attachments: Sequence[Attachment]) -> None:
    db.executemany(
        "INSERT INTO attachments (message_id, position, name, size, hash, text, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(message_id, i, a.name, a.size, a.hash, a.text, a.data) for i, a in enumerate(attachments)],
    )


def with_attachments(db: sqlite3.Connection, messages: list[Message]) -> list[Message]:
    found: dict[str, list[Attachment]] = {}
    ids = json.dumps([message.id for message in messages])
    query = "SELECT * FROM attachments WHERE message_id IN (SELECT value FROM json_each(?)) ORDER BY position"
    for row in db.execute(query, (ids,)):
        found.setdefault(row["message_id"], []).append(attachment_of(row))
    if not found:
        return messages
    return [replace(m, attachments=tuple(found[m.id])) if m.id in found else m for m in messages]


def insert_rows(db: sqlite3.Connection, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    known = [column["name"] for column in db.execute(f"PRAGMA table_info({table})")]
    for row in rows:
        columns = [name for name in known if name in row]
        places = ", ".join("?" * len(columns))
        db.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", [row[name] for name in columns])


def _fits(name: str, value: Any) -> bool:
    kind = _NUMBERS[name]
    if value is None:
        return "None" in kind
    if kind == "bool":
        return isinstance(value, bool)
    if kind.startswith(("int", "float")):
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return kind.startswith(("Source", "Reason")) or isinstance(value, str)


def _or_none(value: Any) -> str | None:
    return None if value is None else text_of(value)
