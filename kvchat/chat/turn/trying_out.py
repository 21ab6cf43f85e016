"""Is a chat remembered here? What came with it from elsewhere is tried out before its next message relies on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from kvchat.chat.record.prompt import needs_vision, prompt_messages
from kvchat.chat.turn_parts import TurnParts
from kvchat.engine.speaking.errors import EngineError
from kvchat.engine.speaking.wire import ChatMessage
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.session.allocator import Rank
from kvchat.session.exchange import Request
from kvchat.session.lease import Lease
from kvchat.session.slot import Slot
from kvchat.words.language import sentences
from kvchat.words.reasons import Reason, ReasonCode

BEYOND = 4  # tokens by which what was restored is extended, as in the self-test


@dataclass(frozen=True)
class TriedOut:
    """What came of it."""

    tokens: int = 0  # that came back of the history
    of: int = 0  # tokens of the history
    reason: Reason | None = None  # why nothing did, or why nothing was tried
    waits: bool = False  # nothing was tried: no engine is ready for it now


async def try_out(parts: TurnParts, conversation_id: str, fingerprint: Fingerprint, start: bool) -> TriedOut:
    """Restore the chat's memory as its next message would, and let the engine prove that it uses it.

    The slot is empty afterwards. `start`: an engine is started for it; else it waits where none is ready, or is in use.
    """
    chosen, branch = await parts.answer_settings(conversation_id), await parts.branch(conversation_id)
    messages = prompt_messages(branch)
    request = Request(messages, model=chosen.model, template=chosen.options.template)
    if not start and not parts.host.is_ready(chosen.model, sees=needs_vision(messages)):
        return TriedOut(waits=True)

    async def work(slot: Slot, _wanted: Callable[[], bool]) -> TriedOut:
        lease: Lease | None = None
        try:
            lease = await parts.exchange(slot, conversation_id).ready(request)
            return await _tried(lease, messages, fingerprint)
        except KvchatError as error:
            if isinstance(error, EngineError) and error.over_restore:
                return TriedOut(reason=error.over_restore)
            message = sentences(error.title, error.detail).rstrip(".。")
            return TriedOut(reason=Reason(ReasonCode.ERROR, {"message": message}), waits=True)
        finally:
            if lease is not None:
                await _empty(lease)

    tried = await parts.slots.run(Rank.TRY_OUT, conversation_id, work, wait=start)
    return tried or TriedOut(waits=True)


async def _tried(lease: Lease, messages: list[ChatMessage], fingerprint: Fingerprint) -> TriedOut:
    """Raises KvchatError where the engine fails."""
    differences = fingerprint.differences(lease.engine.fingerprint)
    if differences:
        return TriedOut(reason=Reason(ReasonCode.OTHER_ENGINE, {"differences": differences}))
    await _empty(lease)
    boundary = await lease.boundary(messages)
    if len(boundary) + BEYOND >= lease.engine.context_size:
        places = {"tokens": len(boundary), "context_size": lease.engine.context_size}
        return TriedOut(reason=Reason(ReasonCode.LONGER_THAN_CONTEXT, places))
    loaded = await lease.load_boundary(boundary)
    if loaded.restore is None:
        return TriedOut(reason=loaded.miss_reason or Reason(ReasonCode.NOT_WORTH_IT))
    more = (await lease.engine.engine.prompt_tokens([ChatMessage("user", "A")]))[:BEYOND]
    read = await lease.read((*boundary, *more))
    verdict = await lease.prove(loaded, read.cache_n, read.prompt_tokens)
    if verdict.hollow:
        return TriedOut(reason=verdict.miss_reason)
    return TriedOut(read.cache_n, len(boundary))


async def _empty(lease: Lease) -> None:
    """Nothing is in the slot any more."""
    lease.slot.forget()
    with contextlib.suppress(EngineError):  # one that is gone has nothing in it
        await lease.engine.engine.erase_slot()
    lease.slot.emptied()
