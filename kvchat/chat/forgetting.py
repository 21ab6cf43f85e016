"""What was deleted and can be undone no longer goes for good: its words from the disk, its save points from the store.

The rows of a deleted message leave the conversations' file at once, for whoever undoes that has them in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from kvchat.chat.database import Database
from kvchat.chat.organiser import UNDO_S
from kvchat.chat.search import Finder
from kvchat.chat.slot import SlotKeeper
from kvchat.chat.tree import Removed
from kvchat.chat.worker import Worker
from kvchat.errors import KvchatError
from kvchat.kvstore.store import SavePointStore


class Forgetting:
    """Forgets. Belongs to the event loop's thread."""

    def __init__(
        self,
        database: Database,
        worker: Worker,
        slot: SlotKeeper,
        finder: Finder,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._database, self._worker, self._slot = database, worker, slot
        self._finder, self._spawn = finder, spawn
        self._overwriting = False
        self._gone: set[str] = set()  # the ids of those whose words are to be overwritten
        self._waiting: dict[str, tuple[asyncio.TimerHandle, Removed]] = {}  # by the first message that was removed

    def deleted(self, removed: Removed) -> None:
        """Messages were deleted; until `UNDO_S` have passed they may be put back."""
        timer = asyncio.get_running_loop().call_later(UNDO_S, self._let_go, _name(removed))
        self._waiting[_name(removed)] = timer, removed

    def put_back(self, removed: Removed) -> None:
        """They are back."""
        if waiting := self._waiting.pop(_name(removed), None):
            waiting[0].cancel()

    def close(self) -> None:
        """What was deleted goes now."""
        for name, (timer, _) in list(self._waiting.items()):
            timer.cancel()
            self._let_go(name)

    async def conversation(self, conversation_id: str) -> None:
        """Forget a conversation, and what a running turn still saves of it: that goes when the turn is over."""
        with contextlib.suppress(KvchatError):  # the next start tries again
            async with self._slot.lock:
                await self._slot.discard(conversation_id)
            await self._words([conversation_id])

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

    def _let_go(self, name: str) -> None:
        if waiting := self._waiting.pop(name, None):
            self._spawn(self._messages(waiting[1]))

    async def _messages(self, removed: Removed) -> None:
        ids = {row["id"] for row in removed.rows}
        with contextlib.suppress(KvchatError):
            async with self._slot.lock:
                await self._slot.discard_messages(removed.conversation_id, ids)
            await self._words(ids)

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


def _name(removed: Removed) -> str:
    return str(removed.rows[0]["id"])
