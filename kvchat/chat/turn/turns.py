"""The turns that run or wait: as many as there are slots, at most one in a conversation, the words on disk first.

`ask`, `ask_instead`, `answer_again`, `regenerate` and `go_on` put a turn's beginning on disk: the user's words, or
where the branch forks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvchat.chat.context import ContextService, StillAnswering
from kvchat.chat.events import (
    ConversationsChanged,
    EventBus,
    MessagesChanged,
    QuestionNotStored,
    TurnFailed,
    WaitingForChat,
)
from kvchat.chat.options import NewChat, remember_model
from kvchat.chat.record.database import Database, Draft, store_drafts
from kvchat.chat.record.database_file import StorageFailed
from kvchat.chat.record.messages import Attachment, Message, MessageState, Role
from kvchat.chat.record.titles import title_from
from kvchat.chat.turn.turn import Beginning, Turn
from kvchat.chat.turn_parts import TurnParts
from kvchat.errors import KvchatError
from kvchat.system.concurrency import Background
from kvchat.words.language import _


class NothingToAnswer(KvchatError):
    """There is no user message to answer."""

    def __init__(self) -> None:
        super().__init__(_("There is nothing to answer yet"), "", _("Write a message first."))


def ask(
    database: Database,
    conversation_id: str,
    text: str,
    attachments: Sequence[Attachment] = (),
    new: NewChat | None = None,
    drafts: Sequence[Draft] = (),
) -> Beginning:
    """The user's next message. The first one names the conversation.

    `drafts`: what is left of those that the words come from. Killed at any moment, the words are in one place.
    """
    with database.transaction():
        if new is not None and database.conversation(conversation_id) is None:
            new.make(database, conversation_id)
        first = not any(message.role is Role.USER for message in database.branch(conversation_id))
        question = database.append_question(conversation_id, text, attachments)
        if first:
            database.rename(conversation_id, title_from(text or attachments[0].name), by_user=False)
        texts = {draft.conversation_id: draft.text for draft in drafts}
        store_drafts(database, texts, {draft.conversation_id: draft.attachments for draft in drafts})
    return Beginning(question.id)


def ask_instead(database: Database, question: Message, text: str) -> Beginning:
    """Another question in this one's place; the old one and what followed stay on a branch of their own.

    Its documents stay: what the model read of them is still good.
    """
    where, complete = (question.conversation_id, question.parent_id), MessageState.COMPLETE
    made = database.append(*where, Role.USER, text, complete, question.attachments)
    return Beginning(made.id)


def answer_again(database: Database, conversation_id: str) -> Beginning:
    """The branch's last question once more. Raises NothingToAnswer."""
    return _last_question(database, database.branch(conversation_id))


def regenerate(database: Database, reply: Message) -> Beginning:
    """Another reply beside this one. Raises NothingToAnswer if no question leads to it."""
    return _last_question(database, database.path(reply.id))


def go_on(database: Database, reply: Message) -> Beginning:
    """The same reply, from its end on."""
    question = _last_question(database, database.path(reply.id))
    database.set_leaf(reply.conversation_id, reply.id)
    return Beginning(question.question_id, unfinished=reply)


def _last_question(database: Database, path: list[Message]) -> Beginning:
    """The leaf becomes the last question of this path; what followed it stays in the tree."""
    questions = [message for message in path if message.role is Role.USER]
    if not questions:
        raise NothingToAnswer
    database.set_leaf(questions[-1].conversation_id, questions[-1].id)
    return Beginning(questions[-1].id)


@dataclass(eq=False)
class _Waiting:
    """A turn that waits."""

    conversation_id: str
    model: str | None


class TurnQueue:
    """First come, first served, unless somebody is put first: as many at a time as there are slots, one in each chat.

    And all with one model: an engine has no other beside it. Belongs to the event loop's thread.
    """

    def __init__(self, events: EventBus, slots: Callable[[], int]) -> None:
        self._events, self._slots = events, slots
        self._waiting: list[_Waiting] = []
        self._now: dict[str, str | None] = {}  # the chats that are answered, and their models
        self._moved = asyncio.Event()

    def ahead_of(self, conversation_id: str) -> str | None:
        """A conversation that is answered while this one waits for a slot, None if it does not wait for another."""
        me = next((one for one in self._waiting if one.conversation_id == conversation_id), None)
        return next(iter(self._now)) if me and self._full(me) and conversation_id not in self._now else None

    def put_first(self, conversation_id: str) -> None:
        """Of those that wait, this conversation is the next."""
        self._waiting.sort(key=lambda one: one.conversation_id != conversation_id)
        self.move()

    @contextlib.asynccontextmanager
    async def turn(self, conversation_id: str, model: str | None) -> AsyncIterator[None]:
        """Its turn, when it comes: until the end of this context it counts as answered."""
        me = _Waiting(conversation_id, model)
        self._waiting.append(me)
        try:
            while self._full(me) or self._next is not me:
                if (ahead := self.ahead_of(conversation_id)) is not None:
                    self._events.publish(WaitingForChat(conversation_id, ahead))
                await self._moved.wait()
        finally:
            self._waiting.remove(me)
        self._now[conversation_id] = model
        self.move()
        try:
            yield
        finally:
            del self._now[conversation_id]
            self.move()

    def move(self) -> None:
        """Have everybody look where they stand."""
        self._moved.set()
        self._moved = asyncio.Event()

    def _full(self, me: _Waiting) -> bool:
        return len(self._now) >= self._slots() or any(model != me.model for model in self._now.values())

    @property
    def _next(self) -> _Waiting | None:
        """The first whose chat is not answered now."""
        return next((one for one in self._waiting if one.conversation_id not in self._now), None)


class Turns:
    """Begins them, stops them, and knows which are still there."""

    def __init__(
        self,
        parts: TurnParts,
        background: Background,
        context: ContextService,
        model: Callable[[], str | None],
        over: Callable[[], None],
    ) -> None:
        """`model`: the path of the one that answers in a conversation that has none yet. `over`: a turn is over."""
        self._parts, self._background, self._context, self._model = parts, background, context, model
        self._over = over
        self._line = TurnQueue(parts.events, lambda: len(parts.slots.all))
        parts.slots.changed = self._line.move
        self._turns: list[Turn] = []  # running or waiting, until their save is over

    @property
    def any(self) -> bool:
        """Whether there are any, those included that only save."""
        return bool(self._turns)

    @property
    def answering(self) -> tuple[str, ...]:
        """The conversations whose replies are being made right now."""
        return tuple(turn.conversation_id for turn in self._turns if turn.answering)

    def is_answering(self, conversation_id: str) -> bool:
        """Whether a reply in this conversation is being made or waits for its turn."""
        return any(turn.conversation_id == conversation_id and not turn.answered for turn in self._turns)

    def stop(self, conversation_id: str | None = None) -> None:
        """Stop the replies in a conversation, or all, those included that still wait for the slot."""
        for turn in self._turns:
            if conversation_id in (None, turn.conversation_id):
                turn.stop()

    def ahead_of(self, conversation_id: str) -> str | None:
        """The conversation that is answered while this one waits, None if it does not wait for another."""
        return self._line.ahead_of(conversation_id)

    def go_first(self, conversation_id: str) -> None:
        """Answer this conversation next: the reply that is being made is stopped, and can be continued."""
        other = self._line.ahead_of(conversation_id)
        self._line.put_first(conversation_id)
        if other is not None:
            self.stop(other)

    def end_settling(self, conversation_id: str) -> None:
        """The next message makes the pending settle step of this conversation pointless."""
        for turn in self._turns:
            if turn.conversation_id == conversation_id and turn.answered:
                turn.supersede()

    def begin(
        self,
        turn: Turn,
        begin: Callable[[], Beginning],
        words: str | None = None,
        attachments: tuple[Attachment, ...] = (),
        new: bool = False,
    ) -> asyncio.Future[Message | None]:
        """Begin a turn with what `begin` puts on disk, of which `words` and `attachments` are new, or all of the chat.

        The future ends with the reply, or None if there is none.
        """
        turn.behind_another = any(
            other.conversation_id != turn.conversation_id or not other.answered for other in self._turns
        )
        self._turns.append(turn)
        reply: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        if turn.waits is not None:  # another command may be answered in the chat: `stop` would end that one, too
            reply.add_done_callback(lambda reply: turn.stop() if reply.cancelled() else None)
        self._background.begin(self._run(turn, partial(self._stored, turn, begin, words, attachments, new), reply))
        return reply

    async def _run(
        self,
        turn: Turn,
        stored: Callable[[], Awaitable[Beginning | None]],
        reply: asyncio.Future[Message | None],
    ) -> None:
        """Answer a turn. `stored` puts its beginning on disk."""

        def done(message: Message | None) -> None:
            if not reply.done():
                reply.set_result(message)

        try:
            turn.beginning = await stored()
            if turn.beginning is not None:
                with self._parts.slots.wanted_by(turn.conversation_id):
                    async with self._line.turn(turn.conversation_id, await self._chosen_model(turn)):
                        if turn.waits is not None:
                            await self._stand_last(turn)
                            if not turn.stopped:
                                turn.waits()
                        await turn.run(done)
                self._over()
                await self._parts.absorb()
        except StorageFailed as error:  # of the settings it is answered with; the turn tells its own
            self._parts.events.publish(TurnFailed(turn.conversation_id, error))
        finally:
            await self._give_up(turn, reply)
            done(None)
            self._turns.remove(turn)

    def _put_on_disk(self, conversation_id: str, begin: Callable[[], Beginning], model: str | None) -> Beginning:
        """The beginning, and the model that answers, all or nothing. On the database's thread."""
        with self._parts.database.transaction():
            beginning = begin()
            if model:
                remember_model(self._parts.database, conversation_id, model, replace=False)
            return beginning

    async def _stand_last(self, turn: Turn) -> None:
        """Have a question that waited come behind the reply it waited for."""
        assert turn.beginning is not None
        with contextlib.suppress(StorageFailed):  # it is where it was, and answered there
            others = (other for other in self._turns if other.waits and not (other is turn or other.answered))
            waiting = {other.beginning.question_id for other in others if other.beginning}
            where = turn.beginning.question_id, waiting
            if await self._parts.worker.run(self._parts.database.stand_last, *where):
                self._parts.events.publish(MessagesChanged(turn.conversation_id))

    async def _give_up(self, turn: Turn, reply: asyncio.Future[Message | None]) -> None:
        """Nobody waits any more for the answer to a question that has none, unless it is for a model."""
        if turn.beginning is not None and not (reply.done() and reply.result()):
            with contextlib.suppress(StorageFailed):
                model, question = await self._chosen_model(turn), turn.beginning.question_id
                there = model is not None and await asyncio.to_thread(Path(model).exists)
                awaits = not (there or turn.stopped)
                await self._parts.worker.run(self._parts.database.set_awaits_model, question, awaits)

    async def _chosen_model(self, turn: Turn) -> str | None:
        """The path of the model that answers in the turn's conversation; None without one. Raises StorageFailed."""
        return (await self._parts.answer_settings(turn.conversation_id)).model or self._model()

    async def _stored(
        self,
        turn: Turn,
        begin: Callable[[], Beginning],
        words: str | None,
        attachments: tuple[Attachment, ...],
        new: bool,
    ) -> Beginning | None:
        """The turn's beginning, on disk before anything else happens.

        None where it could not be stored: the words go back to the sender.
        """
        conversation_id, parts = turn.conversation_id, self._parts
        try:
            others = [other for other in self._turns if other is not turn and other.conversation_id == conversation_id]
            if turn.waits is None and not all(other.answered for other in others):
                raise StillAnswering
            self.end_settling(conversation_id)
            await parts.unwritten.write()
            if attachments:
                await self._context.check_fits(None if new else conversation_id, words or "", attachments)
            beginning = await parts.worker.run(self._put_on_disk, conversation_id, begin, self._model())
        except KvchatError as error:
            if words is None:
                parts.events.publish(TurnFailed(conversation_id, error))
            else:
                parts.events.publish(QuestionNotStored(conversation_id, words, error, attachments))
            return None
        parts.events.publish(ConversationsChanged())
        parts.events.publish(MessagesChanged(conversation_id))
        return beginning
