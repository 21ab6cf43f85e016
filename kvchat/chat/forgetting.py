"""What was deleted and cannot be had back goes for good: its words from the disk, its save points from the store.

What can still be had back is in kvchat.chat.recently_deleted; its save points stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from kvchat.chat.database import Database
from kvchat.chat.search import Finder
from kvchat.chat.slot import SlotKeeper
from kvchat.chat.tree import removed_messages
from kvchat.chat.worker import Worker
from kvchat.errors import KvchatError
from kvchat.kvstore.store import SavePointStore


class Forgetting:
    """Forgets. Belongs to the event loop's thread."""

    def __init__(self, database: Database, worker: Worker, slot: SlotKeeper, finder: Finder) -> None:
        self._database, self._worker, self._slot, self._finder = database, worker, slot, finder
        self._overwriting = False
        self._gone: set[str] = set()  # the ids of those whose words are to be overwritten

    async def conversation(self, conversation_id: str) -> None:
        """Forget a conversation, and what a running turn still saves of it: that goes when the turn is over."""
        with contextlib.suppress(KvchatError):  # the next start tries again
            async with self._slot.lock:
                await self._slot.discard(conversation_id)
            await self._words([conversation_id])

    async def messages(self, conversation_id: str, ids: set[str]) -> None:
        """Forget messages of a conversation that stays."""
        with contextlib.suppress(KvchatError):  # the next start tries again
            async with self._slot.lock:
                await self._slot.discard_messages(conversation_id, ids)
            await self._words(ids)

    async def left_behind(self) -> None:
        """Forget what was deleted in a run that had no time for it."""
        with contextlib.suppress(KvchatError):
            if deleted := await self._worker.run(_deleted, self._database):
                async with self._slot.lock:
                    for conversation_id, ids in deleted.items():
                        if conversation_id in ids:
                            continue  # a chat: its save points are gone, see `forget_strangers`
                        await self._slot.discard_messages(conversation_id, ids)
                await self._words(set().union(*deleted.values()))

    async def _words(self, ids: Iterable[str]) -> None:
        """Many chats may go at once, and the index is written anew for all of them together."""
        self._gone.update(ids)
        if self._overwriting:
            return  # whoever does it does it once more
        self._overwriting = True
        try:
            while self._gone:
                gone, self._gone = self._gone, set()
                await self._finder.forget()
                await self._worker.run(self._database.write_through)
                await self._worker.run(_forgotten, self._database, gone)
        finally:
            self._overwriting = False


def forget_strangers(store: SavePointStore, database: Database) -> None:
    """Delete what the store keeps of conversations and messages that are gone, in a run that had no time to do so.

    Raises StorageFailed and StoreRefused.
    """
    kept = store.messages()
    conversations = {usage.conversation_id for usage in store.usage().conversations}
    # Read after that: what another process began and saved in between is known then.
    with database.reading() as db:
        known = {row["id"] for row in db.execute("SELECT id FROM conversations")}
        there = {row["id"] for row in db.execute("SELECT id FROM messages")}
    there |= {row["id"] for removed in removed_messages(database) for row in removed.rows}
    for conversation_id in conversations - known:  # another process may have saved one just after its deletion
        store.delete_conversation(conversation_id)
    for conversation_id, messages in kept.items():
        if conversation_id in known and messages - there:
            store.delete_messages(conversation_id, messages - there)


def _deleted(database: Database) -> dict[str, set[str]]:
    """Of what something may still be kept: the ids of messages, or the chat's own, by conversation."""
    found: dict[str, set[str]] = {}
    with database.reading() as db:
        for row in db.execute("SELECT conversation_id, id FROM deleted"):
            found.setdefault(row["conversation_id"], set()).add(row["id"])
    return found


def _forgotten(database: Database, ids: Iterable[str]) -> None:
    with database.transaction() as db:
        db.executemany("DELETE FROM deleted WHERE id = ?", [(id,) for id in ids])
