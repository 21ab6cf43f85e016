"""What was deleted and cannot be had back goes for good: its words from the disk, its save points from the store.

What can still be had back is in kvchat.chat.deletion.recently_deleted; its save points stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

from kvchat.chat.events import Notice
from kvchat.chat.record.database import Database
from kvchat.chat.record.tree import removed_messages
from kvchat.chat.recovery.automatic_backups import scrub
from kvchat.chat.search.search import Finder
from kvchat.chat.turn_parts import TurnParts
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import program_of
from kvchat.kvstore.store import SavePointStore
from kvchat.words.language import _

AGAIN_S = 300.0  # after so long what could not be deleted is tried again


class PermanentDeletion:
    """Forgets. Belongs to the event loop's thread.

    What cannot be deleted now is told once, and tried again: in this run, and at the next start.
    """

    def __init__(self, parts: TurnParts, finder: Finder, begin: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """`begin` does something in the background."""
        self._parts, self._finder, self._begin = parts, finder, begin
        self._overwriting = False
        self._gone: set[str] = set()  # the ids of those whose words are to be overwritten
        self._again: asyncio.TimerHandle | None = None
        self._told = False

    async def left_behind(self) -> None:
        """Forget what was deleted and could not go, or in a run that had no time for it."""
        with self._in_words():
            if deleted := await self._parts.worker.run(_deleted, self._parts.database):
                await self.forget(deleted)

    def close(self) -> None:
        """Try nothing again in this run."""
        if self._again is not None:
            self._again.cancel()

    async def forget(self, deleted: Mapping[str, set[str]]) -> None:
        """Forget messages, or a whole conversation where its own id is among them, by conversation.

        What a running turn still saves of them goes when the turn is over.
        """
        with self._in_words():
            slots = self._parts.slots
            await slots.apart(deleted)
            begun = [
                slots.discard(chat) if chat in ids else slots.discard_messages(chat, ids)
                for chat, ids in deleted.items()
            ]
            await asyncio.gather(*begun)  # another process may be writing: whoever asks meanwhile has the slot
            await self._words(set().union(*deleted.values()))

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except KvchatError as error:
            if not self._told:
                words = _("{title}. {detail} It is tried again.", title=error.title.rstrip("."), detail=error.detail)
                self._parts.events.publish(Notice(_("What was deleted is not all gone yet"), words))
            self._told = True
            self.close()
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(AGAIN_S, lambda: self._begin(self.left_behind()))

    async def _words(self, ids: Iterable[str]) -> None:
        """Many chats may go at once, and the index is written anew for all of them together."""
        self._gone.update(ids)
        if self._overwriting:
            return  # whoever does it does it once more
        self._overwriting = True
        try:
            while self._gone:
                ids, self._gone = self._gone, set()
                await self._finder.forget()
                await self._parts.worker.run(self._parts.database.write_through)
                await asyncio.to_thread(scrub, self._parts.database.file, ids)
                await self._parts.worker.run(
                    self._parts.database.write, "DELETE FROM deleted WHERE id = ?", *((id,) for id in ids)
                )
        finally:
            self._overwriting = False


def forget_strangers(store: SavePointStore, database: Database) -> None:
    """Delete what the store keeps of conversations and messages that are gone, in a run that had no time to do so.

    Looks only at what is noted as deleted, and at what was kept since the last look: another process may have saved
    something of a chat just after its deletion. Raises StorageFailed and StoreRefused.
    """
    by = database.file_id()
    new = store.unseen(by)
    # Read after that: what another process began and saved in between is known then.
    gone = _deleted(database)
    for conversation_id, messages in new.messages.items():
        if program_of(conversation_id):
            continue  # what other programs asked for is in no database
        if database.rows("SELECT 1 FROM prepared WHERE 'prepared:' || id = ?", (conversation_id,)):
            continue  # of what was read for it anew only what was finished is used; the rest goes with it
        if not database.rows("SELECT 1 FROM conversations WHERE id = ?", (conversation_id,)):
            gone.setdefault(conversation_id, set()).add(conversation_id)
            continue
        query = "SELECT id FROM messages WHERE id IN (SELECT value FROM json_each(?))"
        missing = messages - {row["id"] for row in database.rows(query, (json.dumps(sorted(messages)),))}
        if missing:
            gone.setdefault(conversation_id, set()).update(missing)
    kept = {row["id"] for removed in removed_messages(database) for row in removed.rows} if gone else set()
    for conversation_id, ids in gone.items():
        if conversation_id in ids:
            store.delete_conversation(conversation_id)
        elif ids - kept:
            store.delete_messages(conversation_id, ids - kept)
    store.seen(by, new)


def _deleted(database: Database) -> dict[str, set[str]]:
    """Of what something may still be kept: the ids of messages, or the chat's own, by conversation."""
    found: dict[str, set[str]] = {}
    for row in database.rows("SELECT conversation_id, id FROM deleted"):
        found.setdefault(row["conversation_id"], set()).add(row["id"])
    return found
