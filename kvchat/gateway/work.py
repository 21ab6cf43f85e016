"""One request on its way, and what goes out of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from kvchat.gateway.dialects.asked import Asked, refusal, refusal_event
from kvchat.gateway.dialects.prompts import UNKNOWN, Prompt, prompt_of
from kvchat.gateway.outlet import Outlet
from kvchat.gateway.requests import Passage
from kvchat.session.host import ReadyEngine
from kvchat.system.concurrency import Interruption


class GaveWay(Exception):
    """The window needs the slot, or the room that it takes: it begins again when it is its turn.

    So does one that was passed on before its prompt was known, and does not go on from what its slot holds.
    """


@dataclass(eq=False)
class Work:
    """One request, from when it was let in until what it left in a slot is saved."""

    path: str
    asked: Asked
    passage: Passage
    outlet: Outlet = field(default_factory=Outlet)
    key: str = ""  # who it is among those that want a slot: those that go on from one another are the same
    prompt: Prompt = UNKNOWN
    rendered_by: int = 0  # generation of the engine that made the prompt
    answered: bool = False  # to the last word, though the answer's end may not be out yet
    left: bool = False  # nobody waits for it any more
    task: asyncio.Task[None] | None = None
    answering: Interruption = field(default_factory=Interruption)

    async def render(self, engine: ReadyEngine) -> None:
        """Have the engine make the prompt. Raises EngineGone."""
        self.prompt, self.rendered_by = await prompt_of(engine, self.asked), engine.generation

    def leave(self) -> None:
        """The client has gone: what is made for it ends. What comes after an answer goes on: many wait for no more."""
        if self.outlet.ended or self.answered:
            return
        self.left = True
        self._end()

    def break_off(self) -> None:
        """It ends although its client is there, which is told so."""
        if not self.outlet.ended:
            self.left = True
            self.refuse(503, "The engine was stopped.", "unavailable_error")
            self._end()

    def refuse(self, status: int, message: str, kind: str, again_s: int = 0) -> None:
        """Say why there is no answer, or why it breaks off. `again_s`: after so long it may be tried again."""
        if not self.outlet.begun:
            self.passage.status = status
        elif self.asked.stream and not self.outlet.ended:
            self.outlet.write(refusal_event(self.asked.form, status, message, kind))
        headers = {"retry-after": str(again_s)} if again_s else None
        self.outlet.refuse(status, refusal(self.asked.form, status, message, kind), headers)

    def _end(self) -> None:
        if not self.answering.interrupt() and self.task is not None:
            self.task.cancel()
