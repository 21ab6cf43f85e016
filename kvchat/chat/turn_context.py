"""Dependencies of every turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Concatenate, ParamSpec, TypeVar

from kvchat.chat.events import Absorbed, ConversationsChanged, EventBus, MessagesChanged, Notice
from kvchat.chat.options import AnswerSettings, ChatOptions, answer_settings, new_chat_settings
from kvchat.chat.record.database import Database
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import Message
from kvchat.engine.api.wire import ENGINE_DEFAULTS, Sampling
from kvchat.kvstore.savepoint import StoreRefused
from kvchat.session.allocator import ABSORB_TIMEOUT_S
from kvchat.session.exchange import Exchange
from kvchat.session.host import EngineHost
from kvchat.session.restore_cost import PrefillSpeed
from kvchat.session.slot import Slot
from kvchat.session.slot_request import Priority
from kvchat.session.slots import Slots
from kvchat.system.concurrency import Background, Worker
from kvchat.text.language import _
from kvchat.text.reasons import Reason

P = ParamSpec("P")
R = TypeVar("R")

RETRY_INTERVAL_S = 5.0  # between attempts


class UnsavedReplies:
    """Holds replies until they are on disk. Event-loop thread only."""

    def __init__(self, database: Database, worker: Worker, events: EventBus) -> None:
        self._database, self._worker, self._events = database, worker, events
        self._replies: dict[str, Message] = {}
        self._retry_task: asyncio.Task[None] | None = None

    def add(self, reply: Message) -> None:
        self._replies[reply.id] = reply
        if self._retry_task is None or self._retry_task.done():
            self._retry_task = asyncio.create_task(self._retry())

    def contains(self, message_id: str) -> bool:
        return message_id in self._replies

    def with_unsaved(self, messages: Iterable[Message]) -> list[Message]:
        shown = []
        for message in messages:
            if held := self._replies.get(message.id):
                message = replace(
                    message, content=held.content, thinking=held.thinking, state=held.state, receipt=held.receipt
                )
            shown.append(message)
        return shown

    async def write(self) -> None:
        """Save the pending replies. On StorageFailed they stay in memory for the next attempt."""
        for id, reply in tuple(self._replies.items()):
            await self._worker.run(self._database.update_reply, reply)
            self._replies.pop(id, None)
            self._events.publish(MessagesChanged(reply.conversation_id))

    async def close(self) -> None:
        if self._retry_task is not None:
            self._retry_task.cancel()
        with contextlib.suppress(StorageFailed):
            await self.write()

    async def _retry(self) -> None:
        while self._replies:
            await asyncio.sleep(RETRY_INTERVAL_S)
            with contextlib.suppress(StorageFailed):
                await self.write()


@dataclass(frozen=True)
class TurnContext:
    database: Database
    worker: Worker
    host: EngineHost
    slots: Slots
    events: EventBus
    unsaved_replies: UnsavedReplies
    background: Background
    model_sampling: Callable[[], Sampling]  # defaults of the model in use
    user_sampling: Callable[[], Sampling]  # from the settings
    default_model: Callable[[], str | None]  # path of the model for chats without one
    read_ahead_off_reason: Callable[[], Reason | None]  # why reading ahead is off; None if it is on

    async def run_in_database(
        self, function: Callable[Concatenate[Database, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return await self.worker.run(function, self.database, *args, **kwargs)

    def publish_changes(self, conversation_id: str) -> None:
        self.events.publish(MessagesChanged(conversation_id))
        self.events.publish(ConversationsChanged())

    def exchange(self, slot: Slot, conversation_id: str) -> Exchange:
        return Exchange(self.slots, slot, self.host, conversation_id, self.events.for_chat(conversation_id))

    def merge_sampling(self, given: Sampling | None, options: ChatOptions) -> Sampling:
        """Merge sampling options: as given, the chat's, the settings', the model's (not at temperature 0)."""
        chosen = (given or ENGINE_DEFAULTS).with_defaults(options.sampling).with_defaults(self.user_sampling())
        return chosen if chosen.temperature == 0 else chosen.with_defaults(self.model_sampling())

    async def path(self, message_id: str) -> list[Message]:
        return await self.worker.run(self.database.path, message_id)

    async def branch(self, conversation_id: str) -> list[Message]:
        return await self.worker.run(self.database.branch, conversation_id)

    async def prefill_speed(self, model: str) -> PrefillSpeed:
        """Return a model's read speed measured in this and earlier runs; `model`: its name in fingerprints."""
        speed = self.slots.restore_cost.speed_of(model)
        if not speed.recalled:
            speed.recall(await self.worker.run(self.database.prefill_timings, model))
        return speed

    async def answer_settings(self, conversation_id: str) -> AnswerSettings:
        return self.with_model(await self.worker.run(answer_settings, self.database, conversation_id))

    async def settings_and_branch(self, conversation_id: str | None) -> tuple[AnswerSettings, list[Message]]:
        """Return a conversation's answer settings and branch; without an id those of a new chat."""
        if conversation_id is None:
            chosen, branch = await self.worker.run(new_chat_settings, self.database)
            return self.with_model(chosen), branch
        return await self.answer_settings(conversation_id), await self.branch(conversation_id)

    def with_model(self, chosen: AnswerSettings) -> AnswerSettings:
        return chosen if chosen.model else replace(chosen, model=self.default_model())

    async def absorb(self, patience_s: float = ABSORB_TIMEOUT_S) -> None:
        """Have the store process saved states when nothing more urgent runs, and publish the result."""
        await self.slots.wait_until_quiet(Priority.ABSORB, patience_s)
        try:
            report = await self.slots.absorb()
        except StoreRefused as refusal:
            self.events.publish(Notice(refusal.title, refusal.explanation))
            return
        if report.save_points:
            self.events.publish(Absorbed())
        for reason in report.refused:
            self.events.publish(Notice(_("The memory of a chat was not saved"), reason.as_sentence))
