"""From the conversations' tables to values, and a receipt to what stands in its column."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from datetime import UTC, datetime

from kvchat.chat.messages import Conversation, Message, MessageState, Receipt, Role, Source


def conversation_of(row: sqlite3.Row) -> Conversation:
    """A row of `conversations`."""
    return Conversation(
        id=row["id"],
        title=row["title"],
        title_by_user=bool(row["title_by_user"]),
        created_at=_time(row["created_at"]),
        updated_at=_time(row["updated_at"]),
        leaf_id=row["leaf_id"],
        model=row["model"],
        folder=row["folder"],
        on_top=bool(row["on_top"]),
        archived=bool(row["archived"]),
    )


def message_of(row: sqlite3.Row) -> Message:
    """A row of `messages`."""
    return Message(
        id=row["id"],
        conversation_id=row["conversation_id"],
        parent_id=row["parent_id"],
        role=Role(row["role"]),
        content=row["content"],
        thinking=row["thinking"],
        state=MessageState(row["state"]),
        created_at=_time(row["created_at"]),
        receipt=_receipt(row["receipt"]) if row["receipt"] else None,
    )


def receipt_json(receipt: Receipt) -> str:
    """A receipt as it is stored."""
    return json.dumps(dataclasses.asdict(receipt) | {"source": receipt.source.value})


def _receipt(text: str) -> Receipt:
    fields = json.loads(text)
    return Receipt(**(fields | {"source": Source(fields["source"])}))


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
