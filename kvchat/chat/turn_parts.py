"""What every turn works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvchat.chat.database import Database
from kvchat.chat.events import EventBus
from kvchat.chat.messages import Message
from kvchat.chat.options import ChatOptions
from kvchat.chat.room import EngineHost
from kvchat.chat.slot import SlotKeeper
from kvchat.chat.slot_state import Loaded, Verdict
from kvchat.chat.worker import Worker
from kvchat.chat.writers import Writers
from kvchat.engine.speaking.wire import ENGINE_DEFAULTS, Sampling


@dataclass(frozen=True)
class TurnParts:
    """What every turn works with."""

    database: Database
    worker: Worker
    host: EngineHost
    slot: SlotKeeper
    events: EventBus
    writers: Writers
    defaults: Callable[[], Sampling] = lambda: ENGINE_DEFAULTS  # how replies are drawn with the model in use
    wishes: Callable[[], Sampling] = lambda: ENGINE_DEFAULTS  # and what the settings say of it

    def drawn(self, given: Sampling | None, options: ChatOptions) -> Sampling:
        """How a reply is drawn: as given, else as in its conversation, else as in the settings.

        What they leave open is the model's. At temperature 0 nothing is added: that is what the model says itself.
        """
        wished = (given or ENGINE_DEFAULTS).over(options.sampling).over(self.wishes())
        return wished if wished.temperature == 0 else wished.over(self.defaults())

    async def prove(self, conversation_id: str, loaded: Loaded, cached: int, prompt: int) -> Verdict:
        """Judge a load as `SlotKeeper.prove` does, and let the room learn what a restore is worth here."""
        verdict = await self.slot.prove(conversation_id, loaded, cached, prompt)
        if loaded.restore:
            await self.host.note_restore(hollow=verdict.hollow)
        return verdict

    async def path(self, message_id: str) -> list[Message]:
        """The messages from the first to this one; empty if it was deleted."""
        return await self.worker.run(self.database.path, message_id)
