"""A save point at the end of a system prompt that is long or shared, where states cannot be cut.

Elsewhere any save point that begins with the system prompt serves a new conversation. Hybrid, recurrent and
sliding-window models need one exactly there, and it can only be made on the way: before the first question is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvchat.chat.interruption import to_its_end
from kvchat.chat.messages import Message, Role
from kvchat.chat.rates import LEAST_GAIN
from kvchat.chat.reply import ReplyWriter
from kvchat.chat.room import ReadyEngine
from kvchat.chat.slot import SlotKeeper
from kvchat.chat.turn_parts import TurnParts
from kvchat.engine.speaking.wire import ChatMessage, PromptProgress, Timings
from kvchat.kvstore.savepoint import Tokens

LONG_MS = 2000.0  # a system prompt that takes so long to read is saved at once


def system_prompt(messages: Sequence[ChatMessage]) -> str | None:
    """The text the conversation begins with, if that is a system prompt."""
    return messages[0].content if messages and messages[0].role == Role.SYSTEM.value else None


async def save_where_shared(
    parts: TurnParts, engine: ReadyEngine, messages: Sequence[ChatMessage], prompt: Tokens, reply: ReplyWriter
) -> Timings | None:
    """Before all is read: stop at the end of a system prompt that is long or that others have too, and save there.

    What was read to get there; None if nothing was.
    """
    text = system_prompt(messages)
    path = await parts.path(reply.message.id)
    if text is None or not path:
        return None
    parts.slot.recall_prefill(await parts.worker.run(parts.database.prefill_ms_per_token, engine.fingerprint.model))
    return await save_on_the_way(
        parts.slot,
        engine,
        path[0],
        messages,
        prompt,
        lambda progress: reply.tell_progress(progress, len(prompt)),
        shared=await parts.worker.run(parts.database.shares_system_prompt, text, reply.message.id),
    )


async def save_on_the_way(
    slot: SlotKeeper,
    engine: ReadyEngine,
    system: Message,
    messages: Sequence[ChatMessage],
    prompt: Tokens,
    progress: Callable[[PromptProgress], None],
    *,
    shared: bool,
) -> Timings | None:
    """Read `prompt`, which begins with `system`, up to where every first question begins, and save. What that took.

    None if a save point there would gain nothing. A long prompt gets one before others share it: whoever asks the first
    question anew, or begins the next chat, need not read it again. May be cancelled: a save that has begun is finished.
    Call it with `slot.lock` held. Raises EngineGone and EngineRefused.
    """
    boundary = await slot.boundary(engine, messages[:1])
    if len(boundary) <= LEAST_GAIN or prompt[: len(boundary)] != boundary:
        return None
    if not shared and slot.rates.prefill_ms(len(boundary)) < LONG_MS:
        return None
    early = slot.early_boundary(engine, boundary)
    read: list[Timings] = []
    for stop in (early, boundary) if early else (boundary,):
        read.append(await slot.settle(engine, system.conversation_id, stop, progress))
        await to_its_end(slot.save(engine, system.conversation_id, stop, message_id=system.id, tell=False))
    return Timings(
        cache_n=read[0].cache_n,
        prompt_n=sum(timings.prompt_n for timings in read),
        prompt_ms=sum(timings.prompt_ms for timings in read),
        predicted_n=0,
        predicted_ms=0.0,
    )
