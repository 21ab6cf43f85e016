"""A complete kvchat without its window on a fake engine; its events are recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from kvchat.chat.events import Event, ReplyDelta, TurnFailed
from kvchat.chat.record.messages import Message, Receipt
from kvchat.engine.api.wire import Sampling
from kvchat.kvstore.savepoint import SavePoint
from kvchat.runtime import Runtime, open_runtime
from kvchat.settings import Settings
from kvchat.system.paths import resolve_paths
from tests.engine_fixtures import FakeEngine
from tests.store_contents import StoreContents

E = TypeVar("E")

# Long enough that a save point is worth restoring, short enough to read in a failing test.
QUESTION = "Tell me about the river and the garden, please, and leave nothing out."


class Stage:
    """One process's kvchat. Open another one on the same home to simulate a restart."""

    def __init__(self, home: Path, fake: FakeEngine, model: Path, slots: int = 1) -> None:
        self.home, self.fake = home, fake
        self.settings = Settings(
            model_path=str(model), engine_path=str(fake.path), context_size=4096, free_floor_bytes=0, slots=slots
        )
        self.events: list[Event] = []
        self.runtime: Runtime

    async def __aenter__(self) -> Stage:
        paths = resolve_paths({"KVCHAT_HOME": str(self.home)})
        self.runtime = await open_runtime(paths, self.settings)
        self.runtime.events.subscribe(self.events.append)
        self.service, self.slots, self.engine = self.runtime.chat, self.runtime.chat.slots, self.runtime.engine
        self.database, self.store = self.runtime._database, self.runtime._store
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.runtime.close()

    async def idle(self) -> None:
        await self.service.wait_until_idle()

    async def messages(self, chat: str) -> list[Message]:
        return await self.service.messages(chat)

    async def restart(self, slots: int = 1) -> None:
        """Close kvchat and open it again, with no events yet."""
        await self.runtime.close()
        self.settings = replace(self.settings, slots=slots)
        self.events.clear()
        await self.__aenter__()

    async def writing(self, chat: str, text: str = "word " * 100) -> asyncio.Future[Message | None]:
        """Send, wait for the first word of the reply, and hold the engine there."""
        self.fake.set(FAKE_HOLD_DURING="stream")
        future = self.service.send(chat, text)
        await self.until(lambda: [event for event in self.of(ReplyDelta) if event.conversation_id == chat])
        return future

    async def ask(self, chat: str, text: str = QUESTION, *, keep: bool = True) -> Message | None:
        """Send, wait for the reply, and for the save after it."""
        return await self.finish(self.service.send(chat, text, Sampling(temperature=0.0), save=keep))

    async def answered_chat(self, text: str = QUESTION, system: str | None = None) -> str:
        """Return a chat with this question and its reply."""
        chat = await self.chat(system)
        await self.answered(chat, text)
        return chat

    async def finish(self, reply: asyncio.Future[Message | None]) -> Message | None:
        """Wait for the reply, and for the save after it."""
        message = await reply
        await self.idle()
        return message

    async def resume(self, reply: asyncio.Future[Message | None]) -> Message | None:
        """Let the engine go on, and wait for the reply."""
        self.fake.set(FAKE_HOLD_DURING=None)
        return await reply

    async def answered(self, chat: str, text: str = QUESTION) -> Receipt:
        """Like `ask`, for a required reply; return its receipt."""
        reply = await self.ask(chat, text)
        assert reply is not None, self.errors()
        assert reply.receipt is not None
        return reply.receipt

    async def chat(self, system: str | None = None) -> str:
        return (await self.service.new_conversation(system)).id

    async def show(self, chat: str | None) -> None:
        """Select a chat and wait for the resulting work."""
        self.service.select(chat)
        await self.service.wait_until_idle()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds; the test's timeout limits it."""
        while not condition():  # noqa: ASYNC110 - the condition may be anything
            await asyncio.sleep(0.005)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def errors(self) -> list[str]:
        return [str(event.error) for event in self.of(TurnFailed)]

    def kept(self) -> StoreContents:
        return StoreContents(self.home)

    def save_points(self) -> list[SavePoint]:
        return self.kept().save_points()

    def requests(self, path: str) -> list[dict[str, object]]:
        return [request["body"] for request in self.fake.requests() if request["path"].startswith(path)]
