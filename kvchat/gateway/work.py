"""One request on its way, and what goes out of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from kvchat.gateway.dialects.asked import Asked, refusal
from kvchat.gateway.dialects.prompts import UNKNOWN, Prompt
from kvchat.gateway.outlet import Outlet
from kvchat.gateway.requests import Passage
from kvchat.system.concurrency import Interruption


@dataclass(eq=False)
class Work:
    """One request, from when it was let in until what it left in a slot is saved."""

    path: str
    asked: Asked
    passage: Passage
    outlet: Outlet = field(default_factory=Outlet)
    key: str = ""  # who it is among those that want a slot: those that go on from one another are the same
    prompt: Prompt = UNKNOWN
    reserve: int = 0  # tokens that its answer may come to, as far as room is kept for it
    left: bool = False  # by its client
    task: asyncio.Task[None] | None = None
    answering: Interruption = field(default_factory=Interruption)

    def leave(self) -> None:
        """The client has gone: what is made for it ends. What comes after an answer goes on."""
        if self.outlet.ended:
            return
        self.left = True
        if not self.answering.interrupt() and self.task is not None:
            self.task.cancel()

    def refuse(self, status: int, message: str, kind: str) -> None:
        """Say why there is no answer; once one has begun it can only break off."""
        if not self.outlet.begun:
            self.passage.status = status
        self.outlet.refuse(status, refusal(self.asked.form, status, message, kind))
