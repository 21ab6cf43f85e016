"""Conversion of conversations from and to database rows.

A damaged value in a row is dropped; its message and chat are kept.
"""

import dataclasses
import json
import math
import sqlite3
import typing
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from kvchat.chat.record.messages import AWAITS_MODEL, Attachment, Conversation, Message, MessageState, Receipt, Role
from kvchat.session.proof import Source
from kvchat.text.reasons import reason_of
from kvchat.text.safe_text import safe_prose

_MAX_TIMESTAMP = 253402300799.0  # seconds since 1970: the end of the year 9999, the maximum of datetime

_RECEIPT_TYPES = typing.get_type_hints(Receipt)


def conversation_from_row(row: sqlite3.Row) -> Conversation:
    return Conversation(
        id=as_text(row["id"]),
        title=safe_prose(as_text(row["title"])),
        title_by_user=bool(row["title_by_user"]),
        created_at=as_datetime(row["created_at"]),
        updated_at=as_datetime(row["updated_at"]),
        leaf_id=_optional_text(row["leaf_id"]),
        model=_optional_text(row["model"]),
        folder=_optional_text(row["folder"]),
        on_top=bool(row["on_top"]),
        archived=bool(row["archived"]),
    )


def message_from_row(row: sqlite3.Row) -> Message:
    return Message(
        id=as_text(row["id"]),
        conversation_id=as_text(row["conversation_id"]),
        parent_id=_optional_text(row["parent_id"]),
        role=role_from_row(row),
        content=as_text(row["content"]),
        thinking=as_text(row["thinking"]),
        state=parse_state(row["state"]),
        created_at=as_datetime(row["created_at"]),
        receipt=parse_receipt(row["receipt"]) if row["receipt"] else None,
        awaits_model=row["writer"] == AWAITS_MODEL,
    )


def attachment_from_row(row: sqlite3.Row | Mapping[str, Any]) -> Attachment:
    size, data = row["size"], row["data"]
    return Attachment(
        as_text(row["name"]),
        size if isinstance(size, int) else 0,
        as_text(row["hash"]),
        as_text(row["text"]),
        data if isinstance(data, bytes) else b"",
    )


def role_from_row(row: sqlite3.Row) -> Role:
    try:
        return Role(row["role"])
    except ValueError:
        return Role.ASSISTANT if row["receipt"] or row["thinking"] else Role.USER


def parse_state(value: Any) -> MessageState:
    try:
        return MessageState(value)
    except ValueError:
        return MessageState.COMPLETE


def receipt_to_json(receipt: Receipt) -> str:
    return json.dumps(dataclasses.asdict(receipt) | {"source": receipt.source.value})


def parse_receipt(text: Any) -> Receipt | None:
    """Parse a stored receipt, ignoring fields of a newer kvchat; None if it is unreadable."""
    try:
        fields = json.loads(text)
        known = {name: value for name, value in fields.items() if name in _RECEIPT_TYPES}
        reason = reason_of(known.get("miss_reason"))
        receipt = Receipt(**(known | {"source": Source(fields["source"]), "miss_reason": reason}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return receipt if all(_has_valid_type(name, getattr(receipt, name)) for name in _RECEIPT_TYPES) else None


def _has_valid_type(name: str, value: Any) -> bool:
    kind = _RECEIPT_TYPES[name]
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, int | float):
        return math.isfinite(value) and isinstance(value if isinstance(value, kind) else float(value), kind)
    return isinstance(value, kind)


def as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else "" if value is None else str(value)


def _optional_text(value: Any) -> str | None:
    return None if value is None else as_text(value)


def as_datetime(value: Any) -> datetime:
    fits = isinstance(value, int | float) and 0 <= value <= _MAX_TIMESTAMP
    return datetime.fromtimestamp(value if fits else 0, UTC)


def insert_rows(db: sqlite3.Connection, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    known = [column["name"] for column in db.execute(f"PRAGMA table_info({table})")]
    for row in rows:
        columns = [name for name in known if name in row]
        places = ", ".join("?" * len(columns))
        db.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", [row[name] for name in columns])
