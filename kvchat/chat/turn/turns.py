"""Turns: store the question, then answer it when the chat and a slot are free.

One turn per slot, and at most one per conversation. Shared by the window, `ask` and `bench`.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kvchat.chat.context import ContextService
from kvchat.chat.events import (
    ConversationsChanged,
    MessagesChanged,
    QuestionNotStored,
    TurnFailed,
    WaitingForChat,
)
from kvchat.chat.lookup import Lookup
from kvchat.chat.options import NewChat, store_chat
from kvchat.chat.record.database import Database, Draft
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import (
    AWAITS_MODEL,
    WRITTEN_HERE,
    Attachment,
    Message,
    Role,
    open_calls,
)
from kvchat.chat.record.titles import title_from
from kvchat.chat.turn.tool_calls import ToolCalls
from kvchat.chat.turn.turn import Turn, TurnStart
from kvchat.chat.turn_context import ReplyInProgress, TurnContext
from kvchat.errors import KvchatError
from kvchat.text.language import _


def store_question(
    database: Database,
    conversation_id: str,
    text: str,
    attachments: Sequence[Attachment] = (),
    new: NewChat | None = None,
    drafts: Sequence[Draft] = (),
) -> TurnStart:
    """Store the user's message; the first one names the chat. `drafts`: the drafts to keep afterwards."""
    with database.transaction():
        if new is not None and database.conversation(conversation_id) is None:
            store_chat(database, new)
        first = not any(message.role is Role.USER for message in database.branch(conversation_id))
        question = database.append_question(conversation_id, text, attachments)
        if first:
            database.rename(conversation_id, title_from(text or attachments[0].name), by_user=False)
        texts = {draft.conversation_id: draft.text for draft in drafts}
        database.store_drafts(texts, {draft.conversation_id: draft.attachments for draft in drafts})
    return TurnStart(question.id)


def select_question(
    database: Database, conversation_id: str, reply: Message | None = None, *, continues: bool = False
) -> TurnStart:
    """Make a reply's question (default: the branch's last) the leaf, to answer it; or the reply, if it `continues`."""
    path = database.path(reply.id) if reply else database.branch(conversation_id)
    last, calls = open_calls(path)
    if reply is None and calls:
        return TurnStart(path[-1].id, calls_of=last)  # kvchat ended before their results
    question = next((message for message in reversed(path) if message.role in (Role.USER, Role.TOOL)), None)
    if question is None:
        raise KvchatError(_("There is no message to reply to"), "", _("Write a message first."))
    unfinished = reply if continues else None
    database.set_leaf(conversation_id, (unfinished or question).id)
    return TurnStart(question.id, unfinished)


class Turns:
    """Starts, stops and tracks turns. Event-loop thread only."""

    def __init__(self, turn_context: TurnContext, context: ContextService, lookup: Lookup) -> None:
        self._turn_context, self._context, self._lookup = turn_context, context, lookup
        self._turns: list[Turn] = []  # until their saves end
        self.tool_calls = ToolCalls(turn_context)

    @property
    def has_turns(self) -> bool:
        return bool(self._turns)

    @property
    def answering_chats(self) -> tuple[str, ...]:
        return tuple(turn.conversation_id for turn in self._turns if turn.is_answering)

    def is_answering(self, conversation_id: str) -> bool:
        return any(turn.conversation_id == conversation_id and not turn.is_answered for turn in self._turns)

    def stop(self, conversation_id: str | None = None) -> None:
        for turn in self._turns:
            if conversation_id in (None, turn.conversation_id):
                turn.stop()

    def prioritize(self, conversation_id: str) -> None:
        """Answer this conversation next; the current reply is stopped and can be continued."""
        slots = self._turn_context.slots
        other = slots.blocking_chat(conversation_id)
        slots.move_to_front(conversation_id)
        if other is not None:
            self.stop(other)

    def end_settling(self, conversation_id: str) -> None:
        for turn in self._turns:
            if turn.conversation_id == conversation_id and turn.is_answered:
                turn.settling.supersede()

    def start(self, turn: Turn) -> asyncio.Future[Message | None]:
        self._turns.append(turn)
        turn.is_queued = self._is_queued(turn)
        reply: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        if turn.on_start is not None:  # `stop` would also end another command's reply in this chat
            reply.add_done_callback(lambda reply: turn.stop() if reply.cancelled() else None)
        self._turn_context.background.start(self._run(turn, reply))
        return reply

    def _is_queued(self, turn: Turn) -> bool:
        others = [other for other in self._turns if other is not turn]
        return any(other.conversation_id != turn.conversation_id or not other.is_answered for other in others)

    async def _run(self, turn: Turn, reply: asyncio.Future[Message | None]) -> None:
        def done(message: Message | None) -> None:
            if not reply.done():
                reply.set_result(message)

        turn_context, chat = self._turn_context, turn.conversation_id
        try:
            turn.start = await self._store_question(turn)
            if turn.start is not None:
                chosen = await turn_context.answer_settings(chat)
                waiting, begins, model = WaitingForChat(chat), turn.on_start is not None, chosen.model
                if chosen.options.tools and not turn.is_stopped:  # a slow server may take long to list its tools
                    await turn.run_until_stopped(self.tool_calls.freeze_selected(chat, chosen.options.tools))
                if turn.start.calls_of is not None and not turn.is_stopped:
                    turn.execute_calls(turn.start.calls_of, partial(self.tool_calls.run, is_stored=True))
                while not turn.has_calls or await turn.finish_calls():
                    turn.is_queued = turn.is_queued or self._is_queued(turn)
                    place = turn_context.slots.turn(chat, chosen.model, lambda _ahead: turn_context.publish(waiting))
                    async with contextlib.AsyncExitStack() as stack:
                        if begins:  # even if stopped, its question moves behind the reply that it waits for
                            await stack.enter_async_context(place)
                            await self._begin(turn)
                            begins = False
                        elif not turn.is_stopped:
                            await turn.run_until_stopped(stack.enter_async_context(place))
                        await turn.run(done, self.tool_calls.run)
                    turn_context.on_slot_changed()
                    if turn.is_answered:
                        break
                await turn_context.absorb()
        except KvchatError as error:  # from the answer settings or tool calls; turns report their own
            turn_context.publish(TurnFailed(chat, error))
        finally:
            turn.is_answered = True
            if turn.start is not None and not (reply.done() and reply.result()):
                with contextlib.suppress(StorageFailed):
                    model = (await turn_context.answer_settings(chat)).model
                    is_there = model is not None and await asyncio.to_thread(Path(model).exists)
                    writer = WRITTEN_HERE if is_there or turn.is_stopped else AWAITS_MODEL
                    statement = "UPDATE messages SET writer = ? WHERE id = ?"
                    await turn_context.run(Database.write, statement, (writer, turn.start.question_id))
            done(None)
            self._turns.remove(turn)

    async def _begin(self, turn: Turn) -> None:
        """Move the question of a waiting turn to the end of the branch, and notify the sender of the start."""
        turn_context, chat = self._turn_context, turn.conversation_id
        assert turn.start is not None
        assert turn.on_start is not None
        others = [other for other in self._turns if other is not turn and not other.is_answered]
        later = {other.start.question_id for other in others if other.on_start and other.start}
        with contextlib.suppress(StorageFailed):  # the question is answered in its present place
            if await turn_context.run(Database.move_to_end, turn.start.question_id, later):
                turn_context.publish(MessagesChanged(chat))
        if not turn.is_stopped:
            turn.on_start()

    async def _store_question(self, turn: Turn) -> TurnStart | None:
        """Store the question. If that fails, give the text back to the sender and return None."""
        conversation_id, turn_context = turn.conversation_id, self._turn_context
        try:
            earlier = self._turns[: self._turns.index(turn)]
            if turn.on_start is None and any(
                other.conversation_id == conversation_id and not other.is_answered for other in earlier
            ):
                raise ReplyInProgress
            self.end_settling(conversation_id)
            await turn_context.write_replies()
            chat = None if turn.creates_chat else conversation_id
            if turn.attachments:
                await self._context.check_fits(chat, turn.text or "", turn.attachments)
            if turn.text is not None:
                turn.quotes = await self._lookup.quote(chat, turn.text, turn.attachments, turn.edits)
            model = turn_context.default_model()

            def store(database: Database) -> TurnStart:
                with database.transaction():
                    start = turn.store_question(database)
                    if model:
                        statement = "UPDATE conversations SET model = ? WHERE id = ? AND model IS NULL"
                        database.write(statement, (model, conversation_id))
                    return start

            start = await turn_context.run(store)
        except KvchatError as error:
            if turn.text is None:
                turn_context.publish(TurnFailed(conversation_id, error))
            else:
                turn_context.publish(QuestionNotStored(conversation_id, turn.text, error, turn.attachments))
            return None
        turn_context.publish(ConversationsChanged(), MessagesChanged(conversation_id))
        if not turn.is_stopped:  # as when kvchat quits
            self._lookup.start_embedding()
        return start
