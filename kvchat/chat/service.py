"""The chat API for front ends: the window and `kvchat ask`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Literal, ParamSpec, TypeVar

from kvchat.chat.context import ContextService, ReplyInProgress
from kvchat.chat.deletion import PermanentDeletion, RecentlyDeleted
from kvchat.chat.events import ConversationsChanged, EventBus, MessagesChanged
from kvchat.chat.options import NewChat, Preset, chat_from_preset, store_chat
from kvchat.chat.options_service import OptionsService
from kvchat.chat.prepared.library import Library
from kvchat.chat.record import tree
from kvchat.chat.record.database import Database, Draft
from kvchat.chat.record.messages import NEW_CHAT_ID, Attachment, Conversation, Message, MessageState, Role
from kvchat.chat.record.tree import RemovedMessages
from kvchat.chat.search import Finder
from kvchat.chat.turn import turns
from kvchat.chat.turn.forecasts import Forecasts
from kvchat.chat.turn.imported_memory import MemoryVerifier, try_imported_memory
from kvchat.chat.turn.read_ahead import ReadAhead
from kvchat.chat.turn.titles import TitleGenerator
from kvchat.chat.turn.turn import Turn, TurnStart
from kvchat.chat.turn.turns import Turns
from kvchat.chat.turn_context import TurnContext, UnsavedReplies
from kvchat.engine.api.wire import ENGINE_DEFAULTS, Sampling
from kvchat.kvstore.savepoint import StoreRefused
from kvchat.kvstore.store import BlockStore
from kvchat.session.host import EngineHost
from kvchat.session.slots import Slots
from kvchat.system.concurrency import Background, Worker
from kvchat.text.reasons import Reason

P = ParamSpec("P")
R = TypeVar("R")


class ChatService:
    """Conversations and turns. Event-loop thread only; changes are published to `events`."""

    def __init__(
        self,
        *,
        database: Database,
        worker: Worker,
        store: BlockStore,
        host: EngineHost,
        events: EventBus,
        user_sampling: Callable[[], Sampling] = lambda: ENGINE_DEFAULTS,
        model: Callable[[], str | None] = lambda: None,
        model_sampling: Callable[[], Sampling] = lambda: ENGINE_DEFAULTS,
        keep_deleted_s: Callable[[], float] = lambda: 0.0,
        read_ahead_off_reason: Callable[[], Reason | None] = lambda: None,
    ) -> None:
        """`keep_deleted_s`: seconds to keep deleted chats. `read_ahead_off_reason`: why not to read ahead, or None."""
        self.events, self.slots = events, Slots(store)
        self._database, self._worker, self._store = database, worker, store
        self.unsaved_replies = UnsavedReplies(database, worker, events)
        self._background = Background(lambda busy: self.title_generator.on_busy_changed(busy))
        self.turn_context = turn_context = TurnContext(
            database=database,
            worker=worker,
            host=host,
            slots=self.slots,
            events=events,
            unsaved_replies=self.unsaved_replies,
            background=self._background,
            model_sampling=model_sampling,
            user_sampling=user_sampling,
            default_model=model,
            read_ahead_off_reason=read_ahead_off_reason,
        )
        self.title_generator, self.forecasts = TitleGenerator(turn_context), Forecasts(turn_context)
        self.finder = Finder(database, worker)
        self.read_ahead = ReadAhead(turn_context)
        self.context = ContextService(turn_context, self.is_answering)
        self.options = OptionsService(turn_context, self.is_answering)
        self.turns = Turns(turn_context, self.context, on_slot_changed=self.read_ahead.start)
        self._permanent_deletion = PermanentDeletion(turn_context, self.finder)
        self.recently_deleted = RecentlyDeleted(
            turn_context,
            self.is_answering,
            self.stop_work,
            self.delete,
            self._permanent_deletion.purge,
            keep_deleted_s,
        )
        self.library = Library(turn_context, self._permanent_deletion.purge, on_slot_changed=self.read_ahead.start)
        self.memory_verifier = MemoryVerifier(turn_context, on_slot_changed=self.read_ahead.start)
        self.try_imported_memory = partial(try_imported_memory, turn_context)

    @property
    def answering_chats(self) -> tuple[str, ...]:
        return self.turns.answering_chats

    @property
    def answering_chat(self) -> str | None:
        return next(iter(self.answering_chats), None)

    @property
    def idle_s(self) -> float:
        return self._background.idle_s

    def is_answering(self, conversation_id: str) -> bool:
        return self.turns.is_answering(conversation_id)

    async def conversations(self) -> list[Conversation]:
        return await self._worker.run(self._database.conversations)

    async def conversation(self, conversation_id: str) -> Conversation | None:
        return await self._worker.run(self._database.conversation, conversation_id)

    async def seconds_saved(self) -> dict[str, float]:
        return await self._worker.run(self._database.seconds_saved)

    async def messages(self, conversation_id: str) -> list[Message]:
        return self.unsaved_replies.with_unsaved(
            await self._worker.run(tree.current_branch, self._database, conversation_id)
        )

    async def new_conversation(self, system: str | None = None) -> Conversation:
        return await self.create(await self.new_chat(system))

    async def new_chat(self, system: str | None = None) -> NewChat:
        """Return a chat with this system prompt or, without one, with the default preset."""
        preset = await self.options.default_preset() if system is None else None
        return chat_from_preset(preset or Preset("", system or ""))

    async def create(self, new: NewChat) -> Conversation:
        made = await self.turn_context.run_in_database(store_chat, new)
        self.events.publish(ConversationsChanged())
        return made

    async def rename(self, conversation_id: str, title: str) -> None:
        if title.strip():
            await self._worker.run(self._database.rename, conversation_id, title.strip(), by_user=True)
        self.events.publish(ConversationsChanged())

    async def use_model(self, conversation_id: str, model: str) -> None:
        statement = "UPDATE conversations SET model = ? WHERE id = ?"
        await self._worker.run(self._database.write, statement, (model, conversation_id))
        self.events.publish(ConversationsChanged())

    async def relocate_model(self, old: str, new: str) -> None:
        await self._worker.run(self._database.write, "UPDATE conversations SET model = ? WHERE model = ?", (new, old))
        self.events.publish(ConversationsChanged())

    async def arrange(
        self, ids: Sequence[str], column: Literal["folder", "on_top", "archived"], value: str | bool | None
    ) -> None:
        statement = f"UPDATE conversations SET {column} = ? WHERE id = ?"
        await self._worker.run(self._database.write, statement, *((value, id) for id in ids))
        self.events.publish(ConversationsChanged())

    async def delete(self, conversation_id: str) -> None:
        """Delete a chat for good."""
        self.stop_work(conversation_id)
        await self._worker.run(self._database.delete, conversation_id)
        self.events.publish(ConversationsChanged())
        self._background.begin(self._permanent_deletion.purge({conversation_id: {conversation_id}}))
        with contextlib.suppress(StoreRefused):  # forgetting also meets it, reports it and retries
            await asyncio.to_thread(self._store.inventory.delete_conversation, conversation_id)

    def stop_work(self, conversation_id: str) -> None:
        self.stop(conversation_id)
        self.turns.end_settling(conversation_id)
        self.read_ahead.deselect(conversation_id)
        self.memory_verifier.cancel(conversation_id)

    def select(self, conversation_id: str) -> None:
        self.read_ahead.select(conversation_id)

    def prepare(self, conversation_id: str | None, draft: str, attachments: tuple[Attachment, ...] = ()) -> None:
        self.read_ahead.set_draft(conversation_id or NEW_CHAT_ID, draft, attachments)

    def on_engine_ready(self) -> None:
        self._background.used()
        if not self.turns.has_turns:
            self.read_ahead.start()

    def send(
        self,
        conversation_id: str,
        text: str,
        sampling: Sampling | None = None,
        *,
        attachments: tuple[Attachment, ...] = (),
        save: bool = True,
        new: NewChat | None = None,
        drafts: Sequence[Draft] = (),
        on_start: Callable[[], None] | None = None,
    ) -> asyncio.Future[Message | None]:
        """Store the user's message, then run a turn. The future's result is the reply, or None.

        Documents that cannot fit are refused before anything is stored. `new`: the chat, if it is created with the
        message; `drafts`: what remains of the source drafts. All of that is stored, or nothing.
        `save` False: the turn is neither settled nor saved, for measuring. `on_start`: called when it begins; only
        with it may the turn wait for a reply in the same chat.
        """
        turn = Turn(
            self.turn_context,
            conversation_id,
            lambda: turns.store_question(self._database, conversation_id, text, attachments, new, drafts),
            sampling,
            save=save,
            text=text,
            attachments=attachments,
            creates_chat=new is not None,
            on_start=on_start,
        )
        return self.turns.start(turn)

    def retry(
        self, conversation_id: str, sampling: Sampling | None = None, *, save: bool = True
    ) -> asyncio.Future[Message | None]:
        def begin() -> TurnStart:
            return turns.select_last_question(self._database, self._database.branch(conversation_id))

        return self.turns.start(Turn(self.turn_context, conversation_id, begin, sampling, save=save))

    def regenerate(self, reply: Message, sampling: Sampling | None = None) -> asyncio.Future[Message | None]:
        def begin() -> TurnStart:
            return turns.select_last_question(self._database, self._database.path(reply.id))

        return self.turns.start(Turn(self.turn_context, reply.conversation_id, begin, sampling))

    def continue_reply(self, reply: Message, sampling: Sampling | None = None) -> asyncio.Future[Message | None]:
        begin = partial(turns.resume_reply, self._database, reply)
        return self.turns.start(Turn(self.turn_context, reply.conversation_id, begin, sampling))

    def edit(
        self, question: Message, text: str, sampling: Sampling | None = None, *, save: bool = True
    ) -> asyncio.Future[Message | None]:
        begin = partial(turns.store_edited_question, self._database, question, text)
        return self.turns.start(
            Turn(self.turn_context, question.conversation_id, begin, sampling, save=save, text=text)
        )

    async def edit_reply(self, reply: Message, text: str) -> Message:
        """Replace a reply with the user's text without asking the model; the old one stays on its branch."""
        id, append = reply.conversation_id, self._database.append
        return await self._change_tree(id, append, id, reply.parent_id, Role.ASSISTANT, text, MessageState.EDITED)

    async def fork(self, reply: Message) -> str:
        made = await self._worker.run(tree.fork, self._database, reply)
        self.events.publish(ConversationsChanged())
        return made

    async def switch(self, conversation_id: str, message_id: str) -> None:
        await self._change_tree(conversation_id, tree.switch, self._database, conversation_id, message_id)

    async def delete_message(self, message: Message) -> RemovedMessages:
        removed = await self._change_tree(message.conversation_id, tree.remove, self._database, message)
        self.recently_deleted.add([removed.id])
        return removed

    async def restore_messages(self, removed: RemovedMessages) -> None:
        await self.recently_deleted.restore_messages(removed.conversation_id, removed.id)
        self.read_ahead.on_branch_changed(removed.conversation_id)

    def resume_deletions(self) -> None:
        """Delete what an earlier run had no time for, and what has expired."""
        self._background.begin(self._permanent_deletion.resume())
        self.recently_deleted.schedule_purge()

    def stop(self, conversation_id: str) -> None:
        self.turns.stop(conversation_id)

    def stop_all(self) -> None:
        self.turns.stop()
        self.library.stop()
        self.slots.stop_background()

    async def idle(self) -> None:
        await self._background.idle()
        await self.title_generator.idle()

    async def save_and_stop(self, stop: Callable[[], Awaitable[bool]]) -> None:
        """Save everything and stop the engine between turns. `stop` returns True if it did."""
        async with self.slots.exclusive():
            await self.turn_context.absorb(patience_s=0.0)
            if await stop():
                self.slots.forget()

    def close(self) -> None:
        """Stop replies and reading ahead; `idle` then waits for saving to finish."""
        self.read_ahead.select(None)
        self.title_generator.close()
        self.stop_all()
        self.recently_deleted.close()
        self.finder.close()
        self._permanent_deletion.close()

    async def _change_tree(self, conversation_id: str, write: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Change the tree between replies, then prepare the branch shown. Raises ReplyInProgress."""
        if self.is_answering(conversation_id):
            raise ReplyInProgress
        result = await self._worker.run(write, *args, **kwargs)
        self.events.publish(MessagesChanged(conversation_id))
        self.read_ahead.on_branch_changed(conversation_id)
        return result
