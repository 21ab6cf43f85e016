"""Titles by the model, made in its spare time as an extension of the chat's own prompt.

Only the chat whose state is in the slot is named, so that nothing is loaded for it, and afterwards the slot holds that
chat's turn boundary again. Whoever asks for the slot meanwhile has it at once. A chat is tried once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from kvchat.chat.background import Background
from kvchat.chat.database import Database
from kvchat.chat.events import ConversationsChanged
from kvchat.chat.messages import Message, MessageState, Role
from kvchat.chat.options import TemplateOptions
from kvchat.chat.presets import manner_of
from kvchat.chat.prompt import ends_with_reply, needs_vision, prompt_messages
from kvchat.chat.room import ReadyEngine
from kvchat.chat.title_words import REQUEST, is_over, title_in
from kvchat.chat.turn_parts import TurnParts
from kvchat.engine.speaking.interface import EngineGone
from kvchat.engine.speaking.wire import ChatMessage, Sampling
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Tokens

IDLE_S = 3.0  # so long nothing has been asked for
_HELD_SHARE = 0.9  # of the chat must be in the slot: it is not read again for a title
_TITLE_TOKENS, _THINKING_TOKENS = 40, 512
_READ_CHARACTERS = 20_000  # of each message, to see whether a title is about it
# What the chat templates of most models that think understand; one that knows neither says the same as without.
_NO_THINKING: TemplateOptions = (("enable_thinking", False), ("thinking", False))


class NoTitle(KvchatError):
    """The model named nothing."""

    def __init__(self, *, asked: bool) -> None:
        if asked:
            super().__init__("The model found no name", "", "The chat keeps the one it has.")
        else:
            what, advice = "The model is busy, or has not read this chat yet.", "Send a message here, then try again."
            super().__init__("The chat cannot be named now", what, advice)


@dataclass
class _Attempt:
    """One chat that is asked for its title."""

    conversation_id: str
    branch: list[Message]
    answer: str | None = None  # None: the model could not be asked now

    @property
    def end(self) -> str | None:
        """The last message that the title may be about."""
        return self.branch[-1].id if self.branch else None

    @property
    def title(self) -> str | None:
        """What the answer comes to."""
        said = " ".join(
            text[:_READ_CHARACTERS] for m in self.branch for text in (m.content, *(a.text for a in m.attachments))
        )
        return title_in(self.answer or "", said)


@dataclass(frozen=True)
class _Question:
    """What the engine is asked, after the turn boundary."""

    engine: ReadyEngine
    messages: list[ChatMessage]
    boundary: Tokens
    prompt: Tokens
    most_tokens: int


class Titles:
    """Names new chats when there is nothing else to do. Belongs to the event loop's thread."""

    def __init__(self, parts: TurnParts) -> None:
        self._parts = parts
        self._wanted: Callable[[], bool] = lambda: False
        self._timer: asyncio.TimerHandle | None = None
        self._background = Background()

    def begin(self, wanted: Callable[[], bool]) -> None:
        """From now on chats may be named, if they are `wanted` to be at that moment."""
        self._wanted = wanted

    def hear(self, busy: bool) -> None:
        """There is something else to do from now on, or no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not busy and self._wanted():
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self.come)

    def come(self) -> None:
        """There is time now: begin to name the chat in the slot, if it waits for that."""
        conversation_id = self._parts.slot.holds()
        if conversation_id is not None and self._wanted():
            self._background.begin(self._name_in_spare_time(conversation_id))

    async def idle(self) -> None:
        """Wait until no title is being made."""
        await self._background.idle()

    def close(self) -> None:
        """Name nothing any more."""
        self._wanted = lambda: False
        self.hear(True)

    async def name(self, conversation_id: str) -> None:
        """The user wants the chat to be named by the model, whatever it is called now. Raises NoTitle, StorageFailed.

        What the user asks for meanwhile goes first, and ends it.
        """
        parts = self._parts
        await self.idle()  # it may be being named already: that one would be in the way, and this one end it
        await parts.worker.run(make_due, parts.database, conversation_id)
        attempt = await self._attempt(conversation_id)
        await parts.worker.run(settle, parts.database, conversation_id, attempt.title, attempt.end)
        if attempt.title is None:
            raise NoTitle(asked=attempt.answer is not None)
        parts.events.publish(ConversationsChanged())

    async def _name_in_spare_time(self, conversation_id: str) -> None:
        """Find the chat a title. Where that fails nobody is told: it has one already."""
        parts = self._parts
        with contextlib.suppress(KvchatError):
            if not await parts.worker.run(is_due, parts.database, conversation_id) or not self._wanted():
                return
            attempt = await self._attempt(conversation_id)
            if attempt.answer is not None and await parts.worker.run(
                settle, parts.database, conversation_id, attempt.title, attempt.end
            ):
                parts.events.publish(ConversationsChanged())

    async def _attempt(self, conversation_id: str) -> _Attempt:
        """Ask the model, if that can be done now."""
        parts = self._parts
        attempt = _Attempt(conversation_id, await parts.worker.run(parts.database.branch, conversation_id))
        if attempt.branch and attempt.branch[-1].state is MessageState.COMPLETE:
            await parts.slot.lock.in_spare_time(self._ask(attempt))
        return attempt

    async def _ask(self, attempt: _Attempt) -> None:
        """Have the model answer, then bring the slot back to the turn boundary. May be cancelled at any point."""
        slot = self._parts.slot
        try:
            question = await self._question(attempt)
            if question is not None:
                await self._answer(attempt, question)
                where = question.engine, attempt.conversation_id, question.boundary
                await slot.load_boundary(*where)
                await slot.settle(*where)
        except EngineGone:
            slot.forget()
            attempt.answer = attempt.answer or ""
        except KvchatError:
            attempt.answer = attempt.answer or ""

    async def _question(self, attempt: _Attempt) -> _Question | None:
        """What to ask; None if the chat cannot be asked now, or not without being read again."""
        parts, slot, conversation_id = self._parts, self._parts.slot, attempt.conversation_id
        manner = await parts.worker.run(manner_of, parts.database, conversation_id)
        history = prompt_messages(attempt.branch)
        sees = needs_vision(history)
        if not ends_with_reply(attempt.branch) or not parts.host.is_ready(manner.model, sees=sees):
            return None
        ready = await parts.host.ready(manner.model, sees=sees)
        engine = ready.rendering(manner.options.template)
        boundary = await slot.boundary(engine, history)
        if slot.holds(engine.generation) != conversation_id:
            return None
        if not await slot.can_return(engine, conversation_id, boundary):
            return None
        messages = [*history, ChatMessage(Role.USER.value, REQUEST)]
        plain = await engine.engine.prompt_tokens(messages)
        quiet = ready.rendering((*manner.options.template, *_NO_THINKING))
        prompt = await quiet.engine.prompt_tokens(messages)
        if prompt[: len(boundary)] != boundary:  # there the switch stands at the beginning: it would be read again
            quiet, prompt = engine, plain
        most_tokens = _TITLE_TOKENS
        if prompt == plain and any(message.thinking for message in attempt.branch):
            most_tokens += _THINKING_TOKENS
        if prompt[: len(boundary)] != boundary or len(prompt) + most_tokens > engine.context_size:
            attempt.answer = ""
            return None
        return _Question(quiet, messages, boundary, prompt, most_tokens)

    async def _answer(self, attempt: _Attempt, question: _Question) -> None:
        """Read what the model answers, greedily and no further than its first line."""
        slot, engine, conversation_id = self._parts.slot, question.engine, attempt.conversation_id
        loaded = await slot.load(engine, conversation_id, question.prompt)
        if loaded.expected_cached < _HELD_SHARE * len(question.boundary):
            return
        slot.note(engine, conversation_id, question.prompt)  # a state that cannot be cut is of no use from here on
        said, timings = "", None
        sampling = Sampling(question.most_tokens, temperature=0.0)
        async with contextlib.aclosing(engine.engine.chat(question.messages, sampling)) as chunks:
            async for chunk in chunks:
                said, timings = said + chunk.text, chunk.timings or timings
                if is_over(said):
                    break
        attempt.answer = said
        if timings is not None:
            await self._parts.prove(conversation_id, loaded, timings.cache_n, timings.prompt_tokens)


def is_due(database: Database, conversation_id: str) -> bool:
    """Whether the model may find this chat a title. Raises StorageFailed."""
    with database.reading() as db:
        query = "SELECT 1 FROM conversations WHERE id = ? AND title_due AND deleted_at IS NULL"
        return db.execute(query, (conversation_id,)).fetchone() is not None


def make_due(database: Database, conversation_id: str) -> None:
    """Have the model find this chat a title, whoever gave it the one it has. Raises StorageFailed."""
    with database.transaction() as db:
        db.execute("UPDATE conversations SET title_due = 1 WHERE id = ?", (conversation_id,))


def settle(database: Database, conversation_id: str, title: str | None, end: str | None) -> bool:
    """Give a chat the model's title, or leave it with the one it has: it is not tried again. Whether it has another.

    What the user called it in the meantime stays. A title that may be about a message deleted since (`end`, the last
    one it was made of) is none. Raises StorageFailed.
    """
    with database.transaction() as db:
        query = (
            "UPDATE conversations SET title_due = 0, title = ifnull(?1, title),"
            " title_by_user = title_by_user AND ?1 IS NULL WHERE id = ?2 AND title_due"
            " AND (?1 IS NULL OR EXISTS (SELECT 1 FROM messages WHERE id = ?3))"
        )
        return db.execute(query, (title, conversation_id, end)).rowcount > 0 and title is not None
