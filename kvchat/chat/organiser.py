"""Order among the chats: folders, the top of the list, the archive, and deletion that can be undone for a while."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from kvchat.chat.database import Database
from kvchat.chat.database_file import StorageFailed
from kvchat.chat.events import ConversationsChanged, EventBus
from kvchat.chat.worker import Worker

UNDO_S = 30.0  # for how long a deleted chat can be had back
_LEFT_BEHIND_S = 600.0  # after so long nobody who could undo a deletion is waiting any more


class Organiser:
    """Puts chats where the user wants them. Belongs to the event loop's thread; all methods raise StorageFailed."""

    def __init__(
        self,
        database: Database,
        worker: Worker,
        events: EventBus,
        leave: Callable[[str], None],
        purge: Callable[[str], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`leave` ends what goes on in a chat, `purge` deletes it for good, with its save points."""
        self._database, self._worker, self._events = database, worker, events
        self._leave, self._purge, self._spawn = leave, purge, spawn
        self._deleted: dict[str, asyncio.TimerHandle] = {}

    async def move(self, ids: Sequence[str], folder: str | None) -> None:
        """Put chats into a folder; with None into none."""
        await self._set(ids, "folder", (folder or "").strip() or None)

    async def keep_on_top(self, ids: Sequence[str], on_top: bool) -> None:
        """Keep chats at the top of the list, or no longer."""
        await self._set(ids, "on_top", on_top)

    async def archive(self, ids: Sequence[str], archived: bool) -> None:
        """Put chats away into the archive, or back."""
        await self._set(ids, "archived", archived)

    async def delete(self, ids: Sequence[str]) -> None:
        """Delete chats. Until `UNDO_S` have passed, or kvchat is quit, `undo_delete` brings them back whole."""
        for id in ids:
            self._leave(id)
        await self._set(ids, "deleted_at", time.time())
        loop = asyncio.get_running_loop()
        for id in ids:
            self._deleted[id] = loop.call_later(UNDO_S, self._let_go, id)

    async def undo_delete(self, ids: Sequence[str]) -> None:
        """Bring deleted chats back, as far as they are not gone for good."""
        for id in ids:
            if timer := self._deleted.pop(id, None):
                timer.cancel()
        await self._set(ids, "deleted_at", None)

    def close(self) -> None:
        """What was deleted goes now."""
        for id, timer in list(self._deleted.items()):
            timer.cancel()
            self._let_go(id)

    def _let_go(self, conversation_id: str) -> None:
        if self._deleted.pop(conversation_id, None):
            self._spawn(self._purge_one(conversation_id))

    async def _purge_one(self, conversation_id: str) -> None:
        await self._purge(conversation_id)

    async def _set(self, ids: Sequence[str], column: str, value: str | float | None) -> None:
        await self._worker.run(_set, self._database, ids, column, value)
        self._events.publish(ConversationsChanged())


def purge_left_behind(database: Database) -> None:
    """Delete for good what was deleted in a run that had no time to do so. What cannot go now goes at a later start."""
    with contextlib.suppress(StorageFailed):
        with database.reading() as db:
            left = db.execute("SELECT id FROM conversations WHERE deleted_at < ?", (time.time() - _LEFT_BEHIND_S,))
            ids = [row["id"] for row in left]
        for id in ids:
            database.delete(id)


def _set(database: Database, ids: Iterable[str], column: str, value: str | float | None) -> None:
    with database.transaction() as db:
        db.executemany(f"UPDATE conversations SET {column} = ? WHERE id = ?", [(value, id) for id in ids])
