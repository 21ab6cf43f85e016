"""What has been written and not sent, for each conversation and for the one that has not begun."""

from __future__ import annotations

from kvchat.chat.database import Database
from kvchat.chat.worker import Worker

NOT_BEGUN = ""  # stands for the conversation that has not begun, which has a draft but no id


class Drafts:
    """The drafts on disk, by conversation id. Raises StorageFailed."""

    def __init__(self, database: Database, worker: Worker) -> None:
        self._database = database
        self._worker = worker

    async def all(self) -> dict[str, str]:
        """Every draft there is."""
        return await self._worker.run(_load, self._database)

    async def keep(self, drafts: dict[str, str]) -> None:
        """Put these drafts on disk; empty ones are forgotten, and those of conversations that are gone."""
        await self._worker.run(_store, self._database, dict(drafts))


def _load(database: Database) -> dict[str, str]:
    with database.reading() as db:
        return {row["conversation_id"]: row["text"] for row in db.execute("SELECT * FROM drafts")}


def _store(database: Database, drafts: dict[str, str]) -> None:
    there = "SELECT 1 FROM conversations WHERE id = ?1 UNION SELECT 1 WHERE ?1 = ''"
    with database.transaction() as db:
        for conversation_id, text in drafts.items():
            db.execute("DELETE FROM drafts WHERE conversation_id = ?", (conversation_id,))
            if text:
                db.execute(f"INSERT INTO drafts SELECT ?1, ?2 WHERE EXISTS ({there})", (conversation_id, text))
