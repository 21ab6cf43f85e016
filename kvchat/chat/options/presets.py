"""Presets: a named system prompt with options and a model, from which chats begin. And each chat's own options."""

from __future__ import annotations

import sqlite3
import uuid
from dataclasses import dataclass, replace

from kvchat.chat.options.options import NO_OPTIONS, ChatOptions, Manner, options_from, options_json
from kvchat.chat.record.database import ConversationGone, Database
from kvchat.errors import KvchatError


@dataclass(frozen=True)
class Preset:
    """What a chat can begin with. An empty `id`: not stored yet."""

    name: str
    system: str = ""
    model: str | None = None  # path; None: the model in use
    options: ChatOptions = NO_OPTIONS
    is_default: bool = False  # new chats begin with it
    id: str = ""


class PresetExists(KvchatError):
    """Two presets cannot have one name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is a preset named “{name}” already", "", "Choose another name.")


def presets(database: Database) -> list[Preset]:
    """All presets, by name. Raises StorageFailed."""
    with database.reading() as db:
        rows = db.execute("SELECT * FROM presets ORDER BY name COLLATE NOCASE, name").fetchall()
    return [_preset(row) for row in rows]


def default_preset(database: Database) -> Preset | None:
    """The preset that new chats begin with, if there is one. Raises StorageFailed."""
    with database.reading() as db:
        row = db.execute("SELECT * FROM presets WHERE is_default").fetchone()
    return _preset(row) if row else None


def store_preset(database: Database, preset: Preset) -> Preset:
    """Store a preset, new or changed. A default one takes that place from another.

    Raises PresetExists and StorageFailed.
    """
    kept = replace(preset, id=preset.id or uuid.uuid4().hex, name=preset.name.strip() or "Preset")
    values = (kept.name, kept.system, kept.model, options_json(kept.options), kept.is_default, kept.id)
    with database.transaction() as db:
        if db.execute("SELECT 1 FROM presets WHERE name = ? AND id != ?", (kept.name, kept.id)).fetchone():
            raise PresetExists(kept.name)
        if kept.is_default:
            db.execute("UPDATE presets SET is_default = 0")
        db.execute(
            "INSERT OR REPLACE INTO presets (name, system, model, options, is_default, id) VALUES (?, ?, ?, ?, ?, ?)",
            values,
        )
    return kept


def delete_preset(database: Database, preset_id: str) -> None:
    """Delete a preset; chats that began with it keep what they have of it. Raises StorageFailed."""
    with database.transaction() as db:
        db.execute("DELETE FROM presets WHERE id = ?", (preset_id,))


def copy_name(name: str, taken: set[str]) -> str:
    """A name for a duplicate: “Name copy”, “Name copy 2”, …"""
    base = f"{name} copy"
    return next(found for n in range(1, len(taken) + 2) if (found := base if n == 1 else f"{base} {n}") not in taken)


def manner_of(database: Database, conversation_id: str) -> Manner:
    """How a conversation is answered; as by default if it is gone. Raises StorageFailed."""
    with database.reading() as db:
        row = db.execute("SELECT model, options FROM conversations WHERE id = ?", (conversation_id,)).fetchone()
    return Manner(row["model"], options_from(row["options"])) if row else Manner()


def store_options(database: Database, conversation_id: str, options: ChatOptions) -> None:
    """Answer a conversation so from now on. Raises ConversationGone and StorageFailed."""
    with database.transaction() as db:
        changed = db.execute(
            "UPDATE conversations SET options = ? WHERE id = ?", (options_json(options), conversation_id)
        )
        if changed.rowcount != 1:
            raise ConversationGone


def _preset(row: sqlite3.Row) -> Preset:
    return Preset(
        row["name"], row["system"], row["model"], options_from(row["options"]), bool(row["is_default"]), row["id"]
    )
