"""What other processes write into the chats, told as the events that the window knows: `ask` beside it, or an import.

SQLite says for next to nothing that somebody else has written (`data_version`). What, is looked for only then.
"""

from __future__ import annotations

import asyncio
import contextlib

from kvchat.chat.events import ConversationsChanged, EventBus, MessagesChanged
from kvchat.chat.record.database import Database, is_alive
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import MessageState
from kvchat.system.concurrency import Worker

LOOK_EVERY_S = 1.0

_LIST = "SELECT id, title, updated_at, folder, on_top, archived, deleted_at, model FROM conversations"
_CHAT = """
    SELECT messages.id, parent_id, state, length(content), length(thinking), leaf_id, writer
    FROM messages JOIN conversations ON conversations.id = conversation_id WHERE conversation_id = ?
"""


class ExternalChanges:
    """Looks at the list, and at the chat on the page. Belongs to the event loop's thread, but for `_look`."""

    def __init__(self, database: Database, worker: Worker, events: EventBus) -> None:
        self._database, self._worker, self._events = database, worker, events
        self._task: asyncio.Task[None] | None = None
        self._version: int | None = None
        self._list: int | None = None
        self._chats: dict[str, int] = {}  # the chat on the page, and how it was
        self._writers: set[str] = set()  # of replies that are being made there
        self._open: str | None = None

    def begin(self) -> None:
        """Look from now on, until `close`."""
        self._task = asyncio.create_task(self._run())

    def open(self, conversation_id: str | None) -> None:
        """This chat is on the page now."""
        self._open = conversation_id

    def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            conversation_id = self._open
            with contextlib.suppress(StorageFailed):  # whoever needs the file will tell
                listed, said = await self._worker.run(self._look, conversation_id)
                if listed:
                    self._events.publish(ConversationsChanged())
                if said and conversation_id is not None:
                    self._events.publish(MessagesChanged(conversation_id))

    def _look(self, conversation_id: str | None) -> tuple[bool, bool]:
        """Whether another process has changed the list, and this chat."""
        if any(not is_alive(writer) for writer in self._writers):
            self._writers.clear()
            self._database.interrupt_abandoned()
            return False, True
        with self._database.reading() as db:
            before, self._version = self._version, db.execute("PRAGMA data_version").fetchone()[0]
            if before == self._version and conversation_id in (None, *self._chats):
                return False, False
            listed = hash(tuple(map(tuple, db.execute(_LIST))))
            said = list(map(tuple, db.execute(_CHAT, (conversation_id,))))
        was, self._list = self._list, listed
        streaming = MessageState.STREAMING.value
        self._writers = {row[6] for row in said if row[2] == streaming and row[6]}
        known = self._chats.get(conversation_id or "")
        self._chats = {conversation_id or "": hash(tuple(said))}
        is_new = before in (None, self._version)
        return listed != was and not is_new, known not in (None, hash(tuple(said)))
