"""Which model answers in which conversation."""

from __future__ import annotations

from kvchat.chat.record.database import Database


def remember_model(database: Database, conversation_id: str, model: str, *, replace: bool) -> None:
    """Have `model` answer in a conversation; without `replace` only if it has none yet. Raises StorageFailed."""
    with database.transaction() as db:
        db.execute(
            "UPDATE conversations SET model = ? WHERE id = ? AND (? OR model IS NULL)",
            (model, conversation_id, replace),
        )


def relocate_model(database: Database, old: str, new: str) -> None:
    """A model was found elsewhere: every conversation that used it goes on with it there. Raises StorageFailed."""
    with database.transaction() as db:
        db.execute("UPDATE conversations SET model = ? WHERE model = ?", (new, old))
