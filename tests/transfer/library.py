"""A small library to export: branches, receipts, thinking, every state and script."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.options import NewChat, store_chat
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Conversation, MessageState, Receipt, Role
from kvchat.session.proof import Source
from kvchat.transfer import memory_file

RECEIPT = Receipt(120.5, 30.0, 80.0, 10.5, 100, 90, 12, 33.3, Source.DISK, saved_ms=900.0, model="abc")


def open_library(folder: Path) -> Database:
    return Database(folder / "conversations.db")


def made_conversation(database: Database, title: str = "Trees 🌳 和 أشجار", *, by_user: bool = True) -> Conversation:
    """Store a conversation with two branches; its leaf is on the second."""
    made = store_chat(database, NewChat("New chat", "Be brief."))
    root = database.branch(made.id)[-1]
    database.rename(made.id, title, by_user=by_user)
    asked = database.append(made.id, root.id, Role.USER, "What is a tree?", MessageState.COMPLETE)
    for text, state in (
        ("A **plant**.\n\n```python\nprint(1)", MessageState.STOPPED),
        ("一种植物", MessageState.COMPLETE),
    ):
        reply = database.append(made.id, asked.id, Role.ASSISTANT, text, state)
        database.update_reply(replace(reply, thinking="Hm.\nTrees.", receipt=RECEIPT))
    found = database.conversation(made.id)
    assert found is not None
    return found


def everything(database: Database) -> list[object]:
    with database.transaction() as db:
        ids = [row["id"] for row in db.execute("SELECT id FROM messages ORDER BY id")]
    return [sorted(database.conversations(), key=lambda c: c.id), [database.path(message_id) for message_id in ids]]


def quick_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make passphrases cheap: the real key derivation deliberately takes a second."""
    monkeypatch.setattr(memory_file, "_SCRYPT_N", 2)
