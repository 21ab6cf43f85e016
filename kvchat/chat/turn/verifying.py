"""Verifying imported memory: the chat is read with the user's own model, and that takes the place of what came with it.

Nobody can see from a state that it is what the model makes of its tokens: rows that are computed anew differ in
rounding from those that were right. So nothing is compared. What came from elsewhere is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvchat.chat.events import ReadingAhead
from kvchat.chat.record.prompt import ends_with_reply, prompt_messages
from kvchat.chat.turn_parts import TurnParts
from kvchat.errors import KvchatError
from kvchat.kvstore.audience import imported
from kvchat.kvstore.savepoint import Tokens
from kvchat.session.proof import NOTHING_LOADED
from kvchat.session.reading import read_and_keep
from kvchat.session.session import PromptTooLong, Request
from kvchat.session.slots.rank import Rank
from kvchat.session.slots.slot import Slot
from kvchat.words.language import _


class CannotVerify(KvchatError):
    """The memory of a chat cannot be verified now; it stays as it is."""

    def __init__(self, why: str) -> None:
        super().__init__(_("The memory of this chat could not be verified"), why, _("It stays marked as imported."))


async def verify(parts: TurnParts, conversation_id: str) -> None:
    """Read the chat whenever nobody needs the engine, then delete what was imported of it.

    May be cancelled at any point. Raises KvchatError.
    """

    async def work(slot: Slot, wanted: Callable[[], bool]) -> bool:
        return await _read(parts, conversation_id, slot, wanted)

    while not await parts.slots.run(Rank.DOCUMENTS, conversation_id, work):
        pass  # somebody else came first
    await parts.absorb()
    for slot in parts.slots.all:
        if slot.audience == imported(conversation_id):
            slot.forget()  # it is erased before it is used again
    await asyncio.to_thread(parts.slots.store.delete_imported, conversation_id)


async def _read(parts: TurnParts, conversation_id: str, slot: Slot, wanted: Callable[[], bool]) -> bool:
    """Read and save the chat in an empty slot; False if it was not `wanted` to the end."""
    chosen, branch = await parts.answer_settings(conversation_id), await parts.branch(conversation_id)
    if not ends_with_reply(branch):
        raise CannotVerify(_("Its last message has no reply yet."))
    request = Request(prompt_messages(branch), model=chosen.model, template=chosen.options.template)
    session, events = parts.session(slot, conversation_id), parts.events
    async with session.losses_explained():
        lease = await session.ready(request)
        boundary = await lease.boundary(request.messages)
        needed = len(boundary) + lease.engine.reserve(None)
        if lease.engine.too_small(needed):
            lease = await session.with_room(request, needed)
        if len(boundary) >= lease.engine.context_size:
            raise PromptTooLong(len(boundary), lease.engine.limit)
        if not lease.keeps:
            raise CannotVerify(_("Nothing can be kept of it with this engine and model."))
        await lease.begin_anew(len(boundary))
        saved = False

        async def keep(stop: Tokens) -> None:
            nonlocal saved
            await lease.settle(stop)
            saved = await lease.save(stop, label=branch[-1].id, tell=False) is not None

        def progress(done: int) -> None:
            events.publish(ReadingAhead(conversation_id, done, len(boundary), draft=False))

        try:
            read = await read_and_keep(lease, (boundary,), NOTHING_LOADED, wanted, keep, progress)
        finally:
            events.publish(ReadingAhead(conversation_id, len(boundary), len(boundary), draft=False))
    if read and not saved:
        raise CannotVerify(_("What was read could not be saved."))
    return read
