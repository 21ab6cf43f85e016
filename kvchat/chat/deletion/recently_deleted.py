"""What was deleted and can still be had back, and when it goes for good: chats, and messages with all that followed.

A deleted chat is hidden; a deleted message leaves the tree for the table `removed`. Both stay for as long as the
settings say (`keep_s`), or until the user wants them gone now.

**A wrong clock ends nothing.** Gone for good is what has been deleted for `keep_s` by the clock *and* by what kvchat
has seen pass of it: `deleted_s` of each row adds up the time between two looks (one an hour while kvchat runs, one at
each start), of which no single one counts more than `_most_s`, a seventh of `keep_s`. A clock that is years ahead for
one look, or for a day, so costs a seventh and the day, and one that goes back costs nothing. Whoever rarely opens
kvchat can have things back for longer than the settings say, never for less.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from kvchat.chat.context.context_service import StillAnswering
from kvchat.chat.events import ConversationsChanged, MessagesChanged
from kvchat.chat.record import tree
from kvchat.chat.record.database import Database
from kvchat.chat.record.rows import text_of, time_of
from kvchat.chat.search.excerpts import beginning
from kvchat.chat.turn_parts import TurnParts
from kvchat.errors import KvchatError
from kvchat.words.safe_text import calm

UNDO_S = 30.0  # a deletion can be undone for so long, where the settings keep nothing
_LEFT_BEHIND_S = 600.0  # after so long nobody who could undo a deletion is waiting any more
_EARLIEST_S = 1_700_000_000  # seconds since 1970: before that there was no kvchat
_LOOK_EVERY_S = 3600.0  # for what has been kept long enough
_SEEN = "(SELECT deleted_s + max(0, min(?1 - ifnull(deleted_seen, {}), ?2)))"  # ?1: now, ?2: `_most_s`


@dataclass(frozen=True)
class Deleted:
    """One chat or one message that can be had back."""

    id: str  # the chat's, or the first message's
    conversation_id: str
    title: str  # of the chat
    messages: int  # that come back: the chat's, or the message and all that followed it
    words: str  # the first message's beginning; empty: the whole chat was deleted
    deleted_at: datetime
    gone_at: datetime  # when it goes for good

    @property
    def is_chat(self) -> bool:
        """Whether it is a chat; else it is a message of one."""
        return self.id == self.conversation_id


class RecentlyDeleted:
    """Lists, gives back, and lets go. Belongs to the event loop's thread; all methods raise StorageFailed."""

    def __init__(
        self,
        parts: TurnParts,
        is_answering: Callable[[str], bool],
        purge_chat: Callable[[str], Awaitable[None]],
        purge_messages: Callable[[Mapping[str, set[str]]], Awaitable[None]],
        begin: Callable[[Coroutine[Any, Any, None]], None],
        keep_s: Callable[[], float],
    ) -> None:
        """The two that purge delete for good what the tables no longer have; `keep_s` is 0 where nothing is kept.

        `begin` does something in the background.
        """
        self._parts, self._is_answering, self._begin, self._keep_s = parts, is_answering, begin, keep_s
        self._purge_chat, self._purge_messages = purge_chat, purge_messages
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = 0.0  # of the loop's clock; Qt's loop gives timers that do not tell
        self._deleted_here: set[str] = set()  # in this run: without a time to keep it, it goes at the end of it

    async def entries(self) -> list[Deleted]:
        """All that can be had back, the newest first."""
        return await self._parts.worker.run(entries, self._parts.database, self._kept_s)

    async def restore(self, entry: Deleted) -> None:
        """Have it back as it was. Raises ConversationGone, StillAnswering and BelongsToDeleted."""
        if entry.is_chat:
            await self.restore_chats([entry.id])
        else:
            await self.restore_messages(entry.conversation_id, entry.id)

    async def restore_chats(self, ids: Sequence[str]) -> None:
        """Have chats back, as far as they are not gone for good."""
        await self._hide(ids, None)
        self._deleted_here.difference_update(ids)
        self._parts.events.publish(ConversationsChanged())

    async def restore_messages(self, conversation_id: str, first_id: str) -> None:
        """Have the message back, and what followed it. Raises as `restore` does."""
        if self._is_answering(conversation_id):
            raise StillAnswering
        await self._parts.worker.run(tree.put_back, self._parts.database, first_id)
        self._deleted_here.discard(first_id)
        self._parts.events.publish(MessagesChanged(conversation_id))
        self._parts.events.publish(ConversationsChanged())

    async def delete_now(self, wanted: Sequence[Deleted]) -> None:
        """Have these gone for good: from the chats' file, the search, the save points and the automatic backups."""
        for entry in wanted:
            if entry.is_chat:
                await self._purge_chat(entry.id)
            else:
                ids = await self._parts.worker.run(tree.let_go, self._parts.database, entry.id)
                await self._purge_messages({entry.conversation_id: ids})
            self._deleted_here.discard(entry.id)
        self._parts.events.publish(ConversationsChanged())

    async def hide_chats(self, ids: Sequence[str]) -> None:
        """These chats are deleted now."""
        await self._hide(ids, time.time())
        self.added(ids)
        self._parts.events.publish(ConversationsChanged())

    def added(self, ids: Sequence[str]) -> None:
        """These were deleted just now: chats, or the first of messages."""
        self._deleted_here.update(ids)
        self.look_after(self._kept_s)

    def look_after(self, seconds: float = 0.0) -> None:
        """Look then, and every now and then from there on, for what has been kept long enough."""
        loop = asyncio.get_running_loop()
        at = loop.time() + min(seconds, _LOOK_EVERY_S)
        if self._timer is not None:
            if self._looks_at <= at:
                return
            self._timer.cancel()
        self._timer, self._looks_at = loop.call_at(at, self._look_now), at

    def close(self) -> None:
        """The run is over: where nothing is kept, what was deleted in it goes now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._keep_s() and self._deleted_here:
            self._begin(self._let_go(set(self._deleted_here)))

    def _look_now(self) -> None:
        self._timer = None
        self._begin(self._let_go())

    async def _hide(self, ids: Sequence[str], at: float | None) -> None:
        statement = "UPDATE conversations SET deleted_at = ?, deleted_s = 0, deleted_seen = NULL WHERE id = ?"
        await self._parts.worker.run(self._parts.database.write, statement, *((at, id) for id in ids))

    @property
    def _kept_s(self) -> float:
        return self._keep_s() or UNDO_S

    async def _let_go(self, these: set[str] | None = None) -> None:
        """What has been kept long enough goes, or `these`. What cannot go now goes another time."""
        with contextlib.suppress(KvchatError):
            kept = await self._parts.worker.run(_look, self._parts.database, self._kept_s)
            now = time_of(time.time())
            due = [entry for entry in kept if (entry.gone_at <= now if these is None else entry.id in these)]
            if due:
                await self.delete_now(due)
            left = [entry.gone_at for entry in kept if entry.gone_at > now]
            if left and these is None:
                self.look_after((min(left) - now).total_seconds())


def entries(database: Database, keep_s: float) -> list[Deleted]:
    """What was deleted and can be had back, the newest first. Raises StorageFailed."""
    now = time.time()
    seen = now, _most_s(keep_s)
    chats = f"""
        SELECT id, title, deleted_at, {_SEEN.format("deleted_at")} AS seen_s, (
            SELECT count(*) FROM messages WHERE conversation_id = conversations.id AND role <> 'system'
        ) AS messages FROM conversations WHERE deleted_at IS NOT NULL
    """
    found = []
    for row in database.rows(chats, seen):
        id, times = text_of(row["id"]), _times(row["deleted_at"], row["seen_s"], keep_s, now)
        found.append(Deleted(id, id, calm(text_of(row["title"])), row["messages"], "", *times))
    of_messages = dict(map(tuple, database.rows(f"SELECT id, {_SEEN.format('removed_at')} FROM removed", seen)))
    for removed in tree.removed_messages(database):
        words = beginning(removed.words).text
        times = _times(removed.removed_at, of_messages.get(removed.id), keep_s, now)
        count = len(removed.rows)
        found.append(Deleted(removed.id, removed.conversation_id, calm(removed.title_now), count, words or "…", *times))
    return sorted(found, key=lambda entry: entry.deleted_at, reverse=True)


def purge_left_behind(database: Database, keep_s: float) -> None:
    """Delete for good what has been kept long enough. What cannot go now goes at a later start."""
    with contextlib.suppress(KvchatError):
        for entry in _look(database, max(keep_s, _LEFT_BEHIND_S)):
            if entry.gone_at.timestamp() <= time.time():
                database.delete(entry.id) if entry.is_chat else tree.let_go(database, entry.id)


def _look(database: Database, keep_s: float) -> list[Deleted]:
    """The entries, with the time counted that has passed since the last look. Raises StorageFailed."""
    if found := entries(database, keep_s):
        for table, at in (("conversations", "deleted_at"), ("removed", "removed_at")):
            statement = f"UPDATE {table} SET deleted_s = {_SEEN.format(at)}, deleted_seen = ?1 WHERE {at} IS NOT NULL"
            database.write(statement, (time.time(), _most_s(keep_s)))
    return found


def _most_s(keep_s: float) -> float:
    """The most that one stretch between two looks counts; more than lies between two of a run."""
    return max(keep_s / 7, 2 * _LOOK_EVERY_S)


def _times(deleted_at: object, seen_s: object, keep_s: float, now: float) -> tuple[datetime, datetime]:
    """When it was deleted and when it goes. A time that cannot be, or is in the future, is taken for now."""
    sane = isinstance(deleted_at, int | float) and _EARLIEST_S <= deleted_at <= now + _LEFT_BEHIND_S
    at = deleted_at if sane and isinstance(deleted_at, int | float) else now
    seen = seen_s if isinstance(seen_s, int | float) and 0 <= seen_s < math.inf else 0.0
    unseen = now - at - seen
    return time_of(at), time_of(at) + timedelta(seconds=keep_s + (max(unseen, 0.0) if sane else unseen))
