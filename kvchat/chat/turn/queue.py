"""Who is answered now, and who waits, in which order. One answer at a time: there is one slot."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from kvchat.chat.events import EventBus, WaitingForChat


@dataclass(eq=False)
class _Waiting:
    """A turn that waits."""

    conversation_id: str


class TurnQueue:
    """First come, first served, unless somebody is put first. Belongs to the event loop's thread."""

    def __init__(self, events: EventBus) -> None:
        self._events = events
        self._waiting: list[_Waiting] = []
        self._now: str | None = None
        self._moved = asyncio.Event()

    def ahead_of(self, conversation_id: str) -> str | None:
        """The conversation that is answered while this one waits, None if it does not wait for another."""
        waits = any(one.conversation_id == conversation_id for one in self._waiting)
        return self._now if waits and self._now != conversation_id else None

    def put_first(self, conversation_id: str) -> None:
        """Of those that wait, this conversation is the next."""
        self._waiting.sort(key=lambda one: one.conversation_id != conversation_id)
        self._move()

    @contextlib.asynccontextmanager
    async def turn(self, conversation_id: str) -> AsyncIterator[None]:
        """Its turn, when it comes: until the end of this context nobody else is answered."""
        me = _Waiting(conversation_id)
        self._waiting.append(me)
        try:
            while self._now is not None or self._waiting[0] is not me:
                if self._now not in (None, conversation_id):
                    self._events.publish(WaitingForChat(conversation_id, self._now or ""))
                await self._moved.wait()
        finally:
            self._waiting.remove(me)
        self._now = conversation_id
        self._move()
        try:
            yield
        finally:
            self._now = None
            self._move()

    def _move(self) -> None:
        """Have everybody look where they stand."""
        self._moved.set()
        self._moved = asyncio.Event()
