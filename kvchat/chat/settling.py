"""After the reply: settle at the turn boundary and save, unless the conversation's next message comes first."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from kvchat.chat.events import SaveSkipped, Saving
from kvchat.chat.interruption import Interruption
from kvchat.chat.messages import UNFINISHED, Message
from kvchat.chat.prompt import ends_with_reply, prompt_messages
from kvchat.chat.room import ReadyEngine
from kvchat.chat.turn_parts import TurnParts
from kvchat.engine.speaking.interface import EngineGone, EngineRefused
from kvchat.errors import KvchatError
from kvchat.kvstore.savepoint import Tokens

R = TypeVar("R")


class Settling:
    """The second half of a turn. It runs under the slot's lock."""

    def __init__(self, parts: TurnParts, conversation_id: str) -> None:
        self._parts, self._conversation_id = parts, conversation_id
        self._steps = Interruption()
        self._superseded = False

    def supersede(self) -> None:
        """The conversation's next message makes settling pointless; a save that has begun goes on."""
        self._superseded = True
        self._steps.interrupt()

    async def run(self, engine: ReadyEngine, reply: Message) -> None:
        """Settle at the turn boundary and save; a new message in this conversation may end the settling."""
        parts = self._parts
        try:
            path = await parts.path(reply.id)
            if ends_with_reply(path):
                await self._settle_and_save(engine, path)
            if not await parts.path(reply.id):  # deleted meanwhile, perhaps by another process
                await parts.slot.discard_messages(self._conversation_id, [reply.id])
        except EngineGone as loss:
            parts.slot.forget()
            parts.events.publish(SaveSkipped(self._conversation_id, str(await parts.host.explain_loss(loss))))
        except EngineRefused as refusal:
            parts.events.publish(SaveSkipped(self._conversation_id, refusal.message))
        except KvchatError as error:
            parts.events.publish(SaveSkipped(self._conversation_id, str(error)))

    async def _settle_and_save(self, engine: ReadyEngine, path: list[Message]) -> None:
        slot = self._parts.slot
        end: Tokens = ()
        if engine.saves:
            self._parts.events.publish(Saving(self._conversation_id))
            if path[-1].state in UNFINISHED and not engine.can_cut:
                end = await self._save_where_it_goes_on(engine, path)
        boundary = await self._unless_superseded(slot.boundary(engine, prompt_messages(path)))
        early = slot.early_boundary(engine, boundary) if boundary else None
        if early and len(early) <= len(end) < len(boundary or ()):
            early = None  # the save at the reply's end serves: the slot need not go back
        if early and await self._settled(engine, early):
            await slot.save(engine, self._conversation_id, early, message_id=path[-1].id, tell=False)
        settled = await self._settled(engine, boundary) if boundary else False
        if boundary and settled and engine.saves:
            await slot.save(engine, self._conversation_id, boundary, message_id=path[-1].id)
        elif engine.saves:
            self._parts.events.publish(SaveSkipped(self._conversation_id, "the next message came first"))

    async def _save_where_it_goes_on(self, engine: ReadyEngine, path: list[Message]) -> Tokens:
        """Also save at the very end of a reply that may be continued, which it returns: the turn boundary is beyond."""
        slot = self._parts.slot
        end = await self._unless_superseded(engine.engine.prompt_tokens(prompt_messages(path, going_on=True)))
        early = slot.early_boundary(engine, end) if end else None
        for tokens in (early, end):
            if tokens and await self._settled(engine, tokens):
                await slot.save(engine, self._conversation_id, tokens, message_id=path[-1].id, tell=False)
        return end or ()

    async def _settled(self, engine: ReadyEngine, tokens: Tokens) -> bool:
        """Whether the slot now holds exactly these tokens."""
        settling = self._parts.slot.settle(engine, self._conversation_id, tokens)
        return await self._unless_superseded(settling) is not None

    async def _unless_superseded(self, step: Coroutine[Any, Any, R]) -> R | None:
        """Run a step of settling; None when the next message came first."""
        if self._superseded:
            step.close()
            return None
        return await self._steps.run(step)
