"""A context that grows: how much the chats are going to need, and an engine that has it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kvchat.chat.context import RESERVE_MOST, tokens_guessed
from kvchat.chat.database import Database
from kvchat.chat.events import MakingRoom
from kvchat.chat.messages import Message
from kvchat.chat.reply import Draft
from kvchat.chat.room import ReadyEngine
from kvchat.chat.turn_parts import TurnParts
from kvchat.engine.speaking.wire import ChatMessage
from kvchat.errors import KvchatError

_NOT_SAVED = 64  # tokens at the end of a full context: settling needs room
USED_LAST = 3  # chats that are likely to be answered next: there is room for each of them from the start


async def tokens_needed(parts: TurnParts, model: str | None) -> int:
    """How many tokens the chats used last have with a model, a reply included. Guessed: there is no engine yet."""
    try:
        branches = await parts.worker.run(_used_last, parts.database, model)
    except KvchatError:
        return 0
    return max(map(tokens_guessed, branches), default=0) + RESERVE_MOST


def too_small(engine: ReadyEngine, tokens: int) -> bool:
    """Whether an engine has no room for so many tokens, and may have more."""
    return engine.context_size < min(tokens, engine.limit)


async def grown(
    parts: TurnParts, engine: ReadyEngine, conversation_id: str | None, model: str | None, tokens: int
) -> ReadyEngine:
    """The engine, started again with room for so many tokens where it is too small. Raises KvchatError.

    What was in the slot of a smaller one is gone: a save point brings it back.
    """
    if not too_small(engine, tokens):
        return engine
    with making_room(parts, conversation_id, tokens):
        return await parts.host.ready(model, sees=engine.sees, tokens=tokens)


async def grow_ahead(
    parts: TurnParts, engine: ReadyEngine, conversation_id: str | None, model: str | None, tokens: int
) -> None:
    """As `grown`, for what is not sent yet, if nobody needs the engine now."""
    with contextlib.suppress(KvchatError):  # whoever asks for the engine next is told
        await parts.slot.lock.in_spare_time(grown(parts, engine, conversation_id, model, tokens))


@contextmanager
def making_room(parts: TurnParts, conversation_id: str | None, tokens: int) -> Iterator[None]:
    """Tell that the engine is started again, and when that is over."""
    parts.events.publish(MakingRoom(conversation_id or "", tokens))
    try:
        yield
    finally:
        parts.events.publish(MakingRoom(conversation_id or "", tokens, done=True))


def outgrown(engine: ReadyEngine, draft: Draft) -> bool:
    """Whether a reply ended because the context is full, and may go on in a larger one."""
    if draft.finish_reason != "length" or draft.context_used < engine.context_size - 1:  # the engine keeps one back
        return False
    return too_small(engine, engine.context_size + 1)


async def save_what_fits(
    parts: TurnParts, engine: ReadyEngine, reply: Message, messages: Sequence[ChatMessage]
) -> None:
    """Save what a full context holds of the messages, of which the reply is the last, so that it is not read again."""
    if engine.saves and engine.can_cut:
        known = (await engine.engine.prompt_tokens(messages))[: engine.context_size - _NOT_SAVED]
        await parts.slot.settle(engine, reply.conversation_id, known)
        await parts.slot.save(engine, reply.conversation_id, known, message_id=reply.id, tell=False)


def _used_last(database: Database, model: str | None) -> list[list[Message]]:
    """The branches of the chats used last, of those that this model answers."""
    query = (
        "SELECT id FROM conversations WHERE deleted_at IS NULL AND ifnull(model, ?1) IS ?1"
        " ORDER BY updated_at DESC LIMIT ?2"
    )
    with database.reading() as db:
        ids = [row["id"] for row in db.execute(query, (model, USED_LAST))]
    return [database.branch(one) for one in ids]
