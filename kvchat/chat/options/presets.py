"""Presets: a named system prompt with options and a model, from which chats begin. And each chat's own of these."""

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
    return [_preset(row) for row in database.rows("SELECT * FROM presets ORDER BY name COLLATE NOCASE, name")]


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


def copy_name(name: str, taken: set[str]) -> str:
    """A name for a duplicate: “Name copy”, “Name copy 2”, …"""
    base = f"{name} copy"
    return next(found for n in range(1, len(taken) + 2) if (found := base if n == 1 else f"{base} {n}") not in taken)


def manner_of(database: Database, conversation_id: str) -> Manner:
    """How a conversation is answered; as by default if it is gone. Raises StorageFailed."""
    for row in database.rows("SELECT model, options FROM conversations WHERE id = ?", (conversation_id,)):
        return Manner(row["model"], options_from(row["options"]))
    return Manner()


def store_options(database: Database, conversation_id: str, options: ChatOptions) -> None:
    """Answer a conversation so from now on. Raises ConversationGone and StorageFailed."""
    statement = "UPDATE conversations SET options = ? WHERE id = ?"
    if not database.write(statement, (options_json(options), conversation_id)):
        raise ConversationGone


def remember_model(database: Database, conversation_id: str, model: str, *, replace: bool) -> None:
    """Have `model` answer in a conversation; without `replace` only if it has none yet. Raises StorageFailed."""
    statement = "UPDATE conversations SET model = ? WHERE id = ? AND (? OR model IS NULL)"
    database.write(statement, (model, conversation_id, replace))


def _preset(row: sqlite3.Row) -> Preset:
    return Preset(
        row["name"], row["system"], row["model"], options_from(row["options"]), bool(row["is_default"]), row["id"]
    )
