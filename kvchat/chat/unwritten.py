"""Ends of replies that the disk had no room for: written once it has."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import replace

from kvchat.chat.events import EventBus, MessagesChanged
from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import Message
from kvchat.system.concurrency import Worker

AGAIN_S = 5.0  # between two tries


class Unwritten:
    """Holds replies until they are on disk. Belongs to the event loop's thread."""

    def __init__(self, database: Database, worker: Worker, events: EventBus) -> None:
        self._database, self._worker, self._events = database, worker, events
        self._replies: dict[str, Message] = {}
        self._trying: asyncio.Task[None] | None = None

    def hold(self, reply: Message) -> None:
        """Write this reply as it is, as soon as that is possible."""
        self._replies[reply.id] = reply
        if self._trying is None or self._trying.done():
            self._trying = asyncio.create_task(self._try())

    def holds(self, message_id: str) -> bool:
        """True if this reply is not on disk as it should be."""
        return message_id in self._replies

    def shown(self, messages: Iterable[Message]) -> list[Message]:
        """The messages from the disk, the held ones as they should be there."""
        return [self._whole(message) for message in messages]

    async def write(self) -> None:
        """Write what is held. Raises StorageFailed: it is held on."""
        for id, reply in tuple(self._replies.items()):
            await self._worker.run(self._database.update_reply, reply)
            self._replies.pop(id, None)
            self._events.publish(MessagesChanged(reply.conversation_id))

    async def close(self) -> None:
        """Try for the last time."""
        if self._trying is not None:
            self._trying.cancel()
        with contextlib.suppress(StorageFailed):
            await self.write()

    async def _try(self) -> None:
        while self._replies:
            await asyncio.sleep(AGAIN_S)
            with contextlib.suppress(StorageFailed):
                await self.write()

    def _whole(self, message: Message) -> Message:
        held = self._replies.get(message.id)
        if held is None:
            return message
        return replace(message, content=held.content, thinking=held.thinking, state=held.state, receipt=held.receipt)
