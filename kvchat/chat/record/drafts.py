"""What has been written or attached and not sent, for each conversation and for the one that has not begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import QUEUE, Attachment
from kvchat.chat.record.rows import attachment_of, text_of
from kvchat.system.concurrency import Worker

NOT_BEGUN = ""  # stands for the conversation that has not begun, which has a draft but no id


@dataclass(frozen=True)
class Draft:
    """The text and attachments of a conversation's draft."""

    conversation_id: str
    text: str = ""
    attachments: tuple[Attachment, ...] = ()


class Drafts:
    """The drafts on disk, by conversation id. Raises StorageFailed."""

    def __init__(self, database: Database, worker: Worker) -> None:
        self._database = database
        self._worker = worker

    async def all(self) -> dict[str, str]:
        """Every draft there is."""
        rows = await self._worker.run(self._database.rows, "SELECT * FROM drafts")
        return {text_of(row["conversation_id"]): text_of(row["text"]) for row in rows}

    async def attached(self) -> dict[str, tuple[Attachment, ...]]:
        """What waits with them."""
        found: dict[str, tuple[Attachment, ...]] = {}
        for row in await self._worker.run(self._database.rows, "SELECT * FROM draft_attachments ORDER BY position"):
            id = text_of(row["conversation_id"])
            found[id] = (*found.get(id, ()), attachment_of(row))
        return found

    async def keep(self, drafts: Mapping[str, str], attached: Mapping[str, tuple[Attachment, ...]]) -> None:
        """Put these drafts on disk, and what waits with some of them.

        Empty ones are forgotten, and those of conversations that are gone.
        """
        await self._worker.run(store_drafts, self._database, dict(drafts), dict(attached))


def store_drafts(
    database: Database, drafts: Mapping[str, str], attached: Mapping[str, tuple[Attachment, ...]] = MappingProxyType({})
) -> None:
    """As `Drafts.keep`, for the database's thread."""
    there = f"EXISTS (SELECT 1 FROM conversations WHERE id = replace(?1, '{QUEUE}', '') UNION SELECT 1 WHERE ?1 = '')"
    with database.transaction() as db:
        for id, text in drafts.items():
            db.execute("DELETE FROM drafts WHERE conversation_id = ?", (id,))
            if text:
                db.execute(f"INSERT INTO drafts SELECT ?1, ?2 WHERE {there}", (id, text))
        for id, attachments in attached.items():
            db.execute("DELETE FROM draft_attachments WHERE conversation_id = ?", (id,))
            db.executemany(
                f"INSERT INTO draft_attachments SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 WHERE {there}",
                [(id, i, a.name, a.size, a.hash, a.text, a.data) for i, a in enumerate(attachments)],
            )
