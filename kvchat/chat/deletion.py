"""Archiving, folders and deletion: first reversible, then permanent.

**Recently deleted.** A deleted chat is hidden; a deleted message and those after it move to the table `removed`. Both
keep their save points and can be restored during the retention time set by the user (if it is 0: for `UNDO_PERIOD_S`,
or until kvchat quits).

**A wrong clock deletes nothing early.** `deleted_s` sums the time between checks (hourly), each interval counted as
at most `_max_interval_s`. An entry expires only when both the clock and this sum exceed the retention time.

**Permanent deletion** also deletes the save points whose last message is in the entry, its words in the search index
(SQLite and FTS5 overwrite them) and titles made from it. An interrupted deletion is completed at the next start. A
paired computer is told to forget the chat; while it is away or not in use, the deletion stays in the table `deleted`.
"""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta

from kvchat.chat.events import ConversationsChanged, EngineChanged, Event, Notice
from kvchat.chat.record import tree
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import as_datetime, as_text
from kvchat.chat.record.recovery import scrub_backups
from kvchat.chat.search import ChatSearch, leading_excerpt
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.connection import EngineState
from kvchat.engine.api.errors import EngineError
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import StoreRefused, program_of
from kvchat.kvstore.store import BlockStore
from kvchat.text.language import _
from kvchat.text.safe_text import safe_prose

RETRY_DELAY_S = 300.0  # retry delay after a failed deletion
UNDO_PERIOD_S = 30.0  # undo period if the settings keep nothing
_ABANDONED_AFTER_S = 600.0  # by now, nobody waits to undo a deletion
_EARLIEST_TIMESTAMP = 1_700_000_000  # seconds since 1970: older than kvchat
_CHECK_INTERVAL_S = 3600.0  # interval for final deletions
_ELAPSED_SQL = "(SELECT deleted_s + max(0, min(?1 - ifnull(deleted_seen, {}), ?2)))"  # ?1: now, ?2: `_max_interval_s`


@dataclass(frozen=True)
class DeletedEntry:
    id: str  # of the chat or first message
    conversation_id: str
    title: str  # of the chat
    messages: int  # restored by undo: the whole chat, or a message and its replies
    text: str  # start of the first message; empty for a whole chat
    deleted_at: datetime
    expires_at: datetime  # final deletion time

    @property
    def is_chat(self) -> bool:
        return self.id == self.conversation_id


class RecentlyDeleted:
    """Deleted chats and messages that can be restored, and their permanent deletion.

    Event-loop thread only. Methods raise StorageFailed; a failed permanent deletion is reported once and retried, in
    this run and at the next start.
    """

    def __init__(self, turn_context: TurnContext, finder: ChatSearch, stop_work: Callable[[str], None]) -> None:
        """`stop_work` stops the work in progress for a chat."""
        self._turn_context, self._finder, self._stop_work = turn_context, finder, stop_work
        self._timer: asyncio.TimerHandle | None = None
        self._next_purge_at = 0.0  # loop time; timers of Qt's loop do not report theirs
        self._deleted_here: set[str] = set()  # in this run; deleted at exit if no retention is set
        self._overwriting = asyncio.Lock()
        self._pending_ids: set[str] = set()  # ids whose text is to be overwritten
        self._awaits_computer = False  # the paired computer, which is not in use, does not know of all deletions
        turn_context.events.subscribe(self._event_published)
        self._retry_timer: asyncio.TimerHandle | None = None
        self._reported = False

    @property
    def _keep_s(self) -> float:
        return self._turn_context.keep_deleted_s() or UNDO_PERIOD_S

    async def entries(self) -> list[DeletedEntry]:
        return await self._turn_context.run(entries, self._keep_s)

    async def restore(self, entry: DeletedEntry) -> None:
        """Restore the entry. Raises ConversationGone, ReplyInProgress and KvchatError."""
        if entry.is_chat:
            await self.restore_chats([entry.id])
        else:
            await self.restore_messages(entry.conversation_id, entry.id)

    async def restore_chats(self, ids: Sequence[str]) -> None:
        await self._hide(ids, None)
        self._deleted_here.difference_update(ids)

    async def restore_messages(self, conversation_id: str, first_id: str) -> None:
        self._turn_context.require_no_reply(conversation_id)
        await self._turn_context.run(tree.restore_messages, first_id)
        self._deleted_here.discard(first_id)
        self._turn_context.publish_changes(conversation_id)

    async def delete(self, ids: Sequence[str]) -> None:
        for id in ids:
            self._stop_work(id)
        await self._hide(ids, time.time())
        self.add(ids)

    async def _hide(self, ids: Sequence[str], deleted_at: float | None) -> None:
        statement = "UPDATE conversations SET deleted_at = ?, deleted_s = 0, deleted_seen = NULL WHERE id = ?"
        await self._turn_context.run(Database.write, statement, *((deleted_at, id) for id in ids))
        self._turn_context.publish(ConversationsChanged())

    def add(self, ids: Sequence[str]) -> None:
        self._deleted_here.update(ids)
        self.schedule_purge(self._keep_s)

    async def delete_now(self, entries: Sequence[DeletedEntry]) -> None:
        for entry in entries:
            if entry.is_chat:
                if await self._turn_context.run(_delete_unless_restored, entry.id):
                    await self.purge_chat(entry.id)
            else:
                ids = await self._turn_context.run(tree.delete_removed, entry.id)
                await self.purge({entry.conversation_id: ids})
            self._deleted_here.discard(entry.id)
        self._turn_context.publish(ConversationsChanged())

    async def purge_chat(self, conversation_id: str) -> None:
        self._stop_work(conversation_id)
        await self._turn_context.run(Database.delete, conversation_id)
        self._turn_context.publish(ConversationsChanged())
        self._turn_context.background.start(self.purge({conversation_id: {conversation_id}}))
        with contextlib.suppress(StoreRefused):  # `purge` also meets it, reports it and retries
            await asyncio.to_thread(self._turn_context.store.inventory.delete_conversation, conversation_id)

    async def purge(self, deleted: Mapping[str, set[str]]) -> None:
        """Permanently delete messages; `deleted` maps conversation ids to message ids.

        A conversation's own id among them deletes the whole conversation.
        """
        turn_context, slots = self._turn_context, self._turn_context.slots
        with self._retry_on_error():
            await slots.wait_until_released(deleted)
            discarding = [
                slots.discard(chat) if chat in ids else slots.discard_messages(chat, ids)
                for chat, ids in deleted.items()
            ]
            await asyncio.gather(*discarding)  # may wait for another process: keep slots free meanwhile
            own_ids = set[str]().union(*deleted.values())
            self._pending_ids |= own_ids
            async with self._overwriting:
                if own_ids & self._pending_ids:  # else another call has overwritten them
                    ids = set(self._pending_ids)
                    await self._finder.purge_deleted()
                    await turn_context.run(Database.checkpoint)
                    await asyncio.to_thread(scrub_backups, turn_context.database.file, ids)
                    self._pending_ids -= ids
            # Another kvchat does not know our messages. Until it has forgotten the chats, this is repeated.
            if (server := await turn_context.host.memory_server()) is not None:
                for chat in deleted:
                    await server.forget_chat(chat)
            elif await turn_context.host.has_pairing():
                self._awaits_computer = True
                return
            await turn_context.run(Database.write, "DELETE FROM deleted WHERE id = ?", *((id,) for id in own_ids))

    @contextlib.contextmanager
    def _retry_on_error(self) -> Iterator[None]:
        try:
            yield
        except KvchatError as error:
            if not self._reported:
                detail = _(
                    "{title}. {detail} kvchat will try again.", title=error.title.rstrip("."), detail=error.detail
                )
                self._turn_context.publish(Notice(_("Some deleted data has not been erased yet"), detail))
            self._reported = True
            if self._retry_timer is not None:
                self._retry_timer.cancel()
            loop, start = asyncio.get_running_loop(), self._turn_context.background.start
            self._retry_timer = loop.call_later(RETRY_DELAY_S, lambda: start(self._resume()))

    async def _resume(self) -> None:
        with self._retry_on_error():
            if deleted := await self._turn_context.run(_deleted_ids):
                await self.purge(deleted)

    def _event_published(self, event: Event) -> None:
        if self._awaits_computer and isinstance(event, EngineChanged) and event.status.state is EngineState.READY:
            self._turn_context.background.start(self._inform_computer())

    async def _inform_computer(self) -> None:
        """Complete deletions on the paired computer if it is the one now in use."""
        with contextlib.suppress(EngineError):
            if self._awaits_computer and await self._turn_context.host.memory_server() is not None:
                self._awaits_computer = False
                await self._resume()

    def start(self) -> None:
        """Complete the deletions an earlier run left unfinished, and delete expired entries."""
        self._turn_context.background.start(self._resume())
        self.schedule_purge()

    def schedule_purge(self, seconds: float = 0.0) -> None:
        """Delete expired entries after `seconds`, then regularly."""

        def check() -> None:
            self._timer = None
            self._turn_context.background.start(self._purge_expired())

        loop = asyncio.get_running_loop()
        at = loop.time() + min(seconds, _CHECK_INTERVAL_S)
        if self._timer is not None:
            if self._next_purge_at <= at:
                return
            self._timer.cancel()
        self._timer, self._next_purge_at = loop.call_at(at, check), at

    async def _purge_expired(self, ids: set[str] | None = None) -> None:
        """Delete expired entries or, if `ids` is given, exactly those entries, expired or not."""
        with contextlib.suppress(KvchatError):
            entries = await self._turn_context.run(_check_entries, self._keep_s)
            now = as_datetime(time.time())
            expired = [entry for entry in entries if (entry.expires_at <= now if ids is None else entry.id in ids)]
            if expired:
                await self.delete_now(expired)
            later = [entry.expires_at for entry in entries if entry.expires_at > now]
            if later and ids is None:
                self.schedule_purge((min(later) - now).total_seconds())

    def close(self) -> None:
        for timer in (self._timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._timer = None
        if not self._turn_context.keep_deleted_s() and self._deleted_here:
            self._turn_context.background.start(self._purge_expired(set(self._deleted_here)))


def entries(database: Database, keep_s: float) -> list[DeletedEntry]:
    now = time.time()
    check_time = now, _max_interval_s(keep_s)
    chats = f"""
        SELECT id, title, deleted_at, {_ELAPSED_SQL.format("deleted_at")}, (
            SELECT count(*) FROM messages WHERE conversation_id = conversations.id AND role <> 'system'
        ) FROM conversations WHERE deleted_at IS NOT NULL
    """
    deleted = []
    for id, title, deleted_at, seen_s, messages in database.rows(chats, check_time):
        times = _times(deleted_at, seen_s, keep_s, now)
        deleted.append(DeletedEntry(as_text(id), as_text(id), safe_prose(as_text(title)), messages, "", *times))
    elapsed = dict(
        map(tuple, database.rows(f"SELECT id, {_ELAPSED_SQL.format('removed_at')} FROM removed", check_time))
    )
    for removed in tree.removed_messages(database):
        times = _times(removed.removed_at, elapsed.get(removed.id), keep_s, now)
        text, count = leading_excerpt(removed.text).text or "…", len(removed.rows)
        deleted.append(
            DeletedEntry(removed.id, removed.conversation_id, safe_prose(removed.current_title), count, text, *times)
        )
    return sorted(deleted, key=lambda entry: entry.deleted_at, reverse=True)


def _delete_unless_restored(database: Database, conversation_id: str) -> bool:
    """Delete a chat if it is still among the deleted ones, and return True if so."""
    with database.transaction():
        query = "SELECT 1 FROM conversations WHERE id = ? AND deleted_at IS NOT NULL"
        if is_deleted := bool(database.rows(query, (conversation_id,))):
            database.delete(conversation_id)
    return is_deleted


def purge_abandoned(database: Database, keep_s: float) -> None:
    with contextlib.suppress(KvchatError):
        for entry in _check_entries(database, max(keep_s, _ABANDONED_AFTER_S)):
            if entry.expires_at.timestamp() <= time.time():
                database.delete(entry.id) if entry.is_chat else tree.delete_removed(database, entry.id)


def purge_orphans(store: BlockStore, database: Database) -> None:
    """Delete save points of deleted chats, left by a killed run. Raises StorageFailed and StoreRefused."""
    by = database.file_id()
    new = store.inventory.find_unchecked(by)
    # Read afterwards, to include what another process has just saved.
    deleted = _deleted_ids(database)
    for conversation_id, messages in new.message_ids.items():
        if program_of(conversation_id):
            continue  # programs' requests are not in the database
        if database.rows("SELECT 1 FROM prepared WHERE 'prepared:' || id = ?", (conversation_id,)):
            continue  # the prepared set still exists
        missing: Set[str] = {conversation_id}
        if database.rows("SELECT 1 FROM conversations WHERE id = ?", (conversation_id,)):
            query = "SELECT id FROM messages WHERE id IN (SELECT value FROM json_each(?))"
            missing = messages - {row["id"] for row in database.rows(query, (json.dumps(sorted(messages)),))}
        if missing:
            deleted.setdefault(conversation_id, set()).update(missing)
    kept_ids = {row["id"] for removed in tree.removed_messages(database) for row in removed.rows} if deleted else set()
    for conversation_id, ids in deleted.items():
        if conversation_id in ids:
            store.inventory.delete_conversation(conversation_id)
        elif ids - kept_ids:
            store.inventory.delete_messages(conversation_id, ids - kept_ids)
    store.inventory.mark_checked(by, new)


def _deleted_ids(database: Database) -> dict[str, set[str]]:
    ids: dict[str, set[str]] = {}
    for row in database.rows("SELECT conversation_id, id FROM deleted"):
        ids.setdefault(row["conversation_id"], set()).add(row["id"])
    return ids


def _check_entries(database: Database, keep_s: float) -> list[DeletedEntry]:
    if deleted := entries(database, keep_s):
        for table, at in (("conversations", "deleted_at"), ("removed", "removed_at")):
            statement = (
                f"UPDATE {table} SET deleted_s = {_ELAPSED_SQL.format(at)}, deleted_seen = ?1 WHERE {at} IS NOT NULL"
            )
            database.write(statement, (time.time(), _max_interval_s(keep_s)))
    return deleted


def _max_interval_s(keep_s: float) -> float:
    """Return the maximum seconds that one check adds to an entry's counted time, however far the clock has moved."""
    return max(keep_s / 7, 2 * _CHECK_INTERVAL_S)


def _times(deleted_at: object, first_seen_s: object, keep_s: float, now: float) -> tuple[datetime, datetime]:
    """Return an entry's deletion and expiry times. An invalid or future time counts as now."""
    sane = isinstance(deleted_at, int | float) and _EARLIEST_TIMESTAMP <= deleted_at <= now + _ABANDONED_AFTER_S
    at = deleted_at if sane and isinstance(deleted_at, int | float) else now
    seen_s = first_seen_s if isinstance(first_seen_s, int | float) and 0 <= first_seen_s < math.inf else 0.0
    unseen = now - at - seen_s
    return as_datetime(at), as_datetime(at) + timedelta(seconds=keep_s + (max(unseen, 0.0) if sane else unseen))
