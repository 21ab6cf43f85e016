"""Titles by the model, generated when idle as a continuation of the chat's prompt.

Only a chat that is in a slot gets a title, and only once. Afterwards the slot is back at its turn boundary.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvchat.chat.events import ConversationsChanged
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import (
    Message,
    MessageState,
    Role,
    ends_with_reply,
    needs_vision,
    new_message,
    prompt_messages,
    searchable_text,
)
from kvchat.chat.record.titles import TITLE_REQUEST, is_title_complete, parse_title
from kvchat.chat.turn_context import TurnContext
from kvchat.engine.api.errors import EngineError
from kvchat.engine.api.wire import ChatChunk, Sampling
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Tokens
from kvchat.session.exchange import Exchange, PromptRequest
from kvchat.session.host import TemplateOptions
from kvchat.session.slot import Priority, Slot
from kvchat.system.concurrency import BackgroundTasks
from kvchat.text.language import _

IDLE_S = 3.0  # time without requests
_MIN_HELD_SHARE = 0.9  # minimum share of the chat in the slot, to avoid reprocessing
_TITLE_TOKENS, _THINKING_TOKENS = 40, 512
_READ_CHARACTERS = 20_000  # per message, to check that a title fits the chat
# Understood by most thinking models' chat templates; a template that knows neither renders the same prompt.
_NO_THINKING: TemplateOptions = (("enable_thinking", False), ("thinking", False))


class NoTitle(KvchatError):
    """The model gave the chat no title."""


@dataclass
class _TitleAttempt:
    conversation_id: str
    branch: list[Message]
    answer: str | None = None  # None: the model was not available
    title: str | None = None  # in the answer


class TitleGenerator:
    """Names new chats while idle. Event-loop thread only."""

    def __init__(self, turn_context: TurnContext) -> None:
        self._turn_context = turn_context
        self._is_enabled: Callable[[], bool] = lambda: False
        self._timer: asyncio.TimerHandle | None = None
        self._background = BackgroundTasks()

    def enable(self, is_enabled: Callable[[], bool]) -> None:
        self._is_enabled = is_enabled

    def on_busy_changed(self, busy: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not busy and self._is_enabled():
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self.generate_due)

    def generate_due(self) -> None:
        async def generate(conversation_ids: list[str]) -> None:
            for id in conversation_ids:
                with contextlib.suppress(KvchatError):
                    if await self._turn_context.run(is_title_due, id) and self._is_enabled():
                        await self._generate(id, give_up=False)

        if self._is_enabled():
            self._background.start(generate(self._turn_context.slots.owners()))

    async def wait_until_idle(self) -> None:
        await self._background.wait_until_idle()

    def close(self) -> None:
        self._is_enabled = lambda: False
        self.on_busy_changed(True)

    async def generate(self, conversation_id: str) -> None:
        """Have the model name the chat, replacing any title. Raises NoTitle and StorageFailed."""
        turn_context = self._turn_context
        await self.wait_until_idle()  # a request in progress would block this one
        await turn_context.run(mark_title_due, conversation_id)
        attempt = await self._generate(conversation_id, give_up=True)
        if attempt.answer is None:
            reason = _("The model is busy or has not processed this chat yet.")
            advice = _("Send a message in this chat, then try again.")
            raise NoTitle(_("The model cannot suggest a title right now"), reason, advice)
        if attempt.title is None:
            raise NoTitle(_("The model did not suggest a title"), "", _("The chat keeps its current title."))

    async def _generate(self, conversation_id: str, *, give_up: bool) -> _TitleAttempt:
        """Ask the model for a title and store the result. `give_up` prevents a retry if the model was unavailable."""
        turn_context = self._turn_context
        branch = await turn_context.branch(conversation_id)
        attempt, end = _TitleAttempt(conversation_id, branch), branch[-1] if branch else None
        if end and end.state in (MessageState.COMPLETE, MessageState.EDITED):
            await turn_context.slots.run_background(
                Priority.TITLE, conversation_id, lambda slot, _: self._request_title(attempt, slot), wait=False
            )
        texts = (searchable_text(message)[:_READ_CHARACTERS] for message in branch)
        attempt.title = parse_title(attempt.answer or "", " ".join(texts))
        is_due = attempt.answer is not None or give_up
        if is_due and await turn_context.run(store_title, conversation_id, attempt.title, end.id if end else None):
            turn_context.publish(ConversationsChanged())
        return attempt

    async def _request_title(self, attempt: _TitleAttempt, slot: Slot) -> None:
        exchange = self._turn_context.exchange(slot, attempt.conversation_id)
        exchange.saves = False
        try:
            async with exchange.explaining_losses():
                if (prepared := await self._title_request(attempt, exchange)) is None:
                    return
                request, boundary = prepared
                lease = await exchange.prepare(request)
                if exchange.loaded.expected_cached < _MIN_HELD_SHARE * len(boundary):
                    return
                chunks: list[str] = []

                def on_chunk(chunk: ChatChunk) -> bool:
                    chunks.append(chunk.text)
                    return is_title_complete("".join(chunks))

                await exchange.ask(request, on_chunk)
                attempt.answer = "".join(chunks)
                if lease.engine.keeps_memory:
                    return
                await lease.load_boundary(boundary)
                await lease.settle(boundary)
        except KvchatError as error:
            loss = error.__cause__ or error
            if not (isinstance(loss, EngineError) and loss.restore_fault):  # the cause is set aside: retry
                attempt.answer = attempt.answer or ""

    async def _title_request(self, attempt: _TitleAttempt, exchange: Exchange) -> tuple[PromptRequest, Tokens] | None:
        """Return the request and the turn boundary before it; None if the chat would have to be processed again."""
        turn_context, conversation_id = self._turn_context, attempt.conversation_id
        chosen = await turn_context.answer_settings(conversation_id)
        history = prompt_messages(attempt.branch)
        if not ends_with_reply(attempt.branch) or not turn_context.host.is_ready(
            chosen.model, needs_vision=needs_vision(history)
        ):
            return None
        messages = prompt_messages([*attempt.branch, new_message(conversation_id, Role.USER, TITLE_REQUEST)])
        request = PromptRequest(messages, model=chosen.model, template=chosen.options.template)
        lease = await exchange.lease_slot(request)
        quiet = replace(request, template=(*request.template, *_NO_THINKING))
        if lease.engine.keeps_memory:
            return replace(quiet, sampling=lambda: Sampling(_TITLE_TOKENS, temperature=0.0)), ()
        boundary = await lease.turn_boundary(history)
        if lease.slot.holder != conversation_id:
            return None
        if not (lease.engine.can_cut or await lease.is_saved(boundary)):
            return None
        plain = await lease.engine.engine.prompt_tokens(messages)
        prompt = await (await exchange.lease_slot(quiet)).engine.engine.prompt_tokens(messages)
        if prompt[: len(boundary)] != boundary:  # the option changes the prompt's start, which would be reprocessed
            quiet, prompt = request, plain
        most_tokens = _TITLE_TOKENS
        if prompt == plain and any(message.thinking for message in attempt.branch):
            most_tokens += _THINKING_TOKENS
        if prompt[: len(boundary)] != boundary or len(prompt) + most_tokens > lease.engine.context_size:
            attempt.answer = ""
            return None
        return replace(quiet, sampling=lambda: Sampling(most_tokens, temperature=0.0)), boundary


def is_title_due(database: Database, conversation_id: str) -> bool:
    query = "SELECT 1 FROM conversations WHERE id = ? AND title_due AND deleted_at IS NULL"
    return bool(database.rows(query, (conversation_id,)))


def mark_title_due(database: Database, conversation_id: str) -> None:
    """Have the model title this chat, even if the user set the current title. Raises StorageFailed."""
    database.write("UPDATE conversations SET title_due = 1 WHERE id = ?", (conversation_id,))


def store_title(database: Database, conversation_id: str, title: str | None, last_message_id: str | None) -> bool:
    """Store the model's title, if any; return True if it changed. Do nothing if the last message is gone."""
    statement = (
        "UPDATE conversations SET title_due = 0, title = ifnull(?1, title),"
        " title_by_user = title_by_user AND ?1 IS NULL WHERE id = ?2 AND title_due"
        " AND (?1 IS NULL OR EXISTS (SELECT 1 FROM messages WHERE id = ?3))"
    )
    return database.write(statement, (title, conversation_id, last_message_id)) > 0 and title is not None
