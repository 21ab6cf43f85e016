"""After the answer: settle at the turn boundary and save, unless the owner's next request comes first.

Where another owner needs the slot before that is done, what was read is saved as it is, if it is worth that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from kvchat.engine.speaking.errors import EngineRefused
from kvchat.engine.speaking.wire import ChatMessage
from kvchat.kvstore.savepoint import Tokens
from kvchat.session.events import SaveSkipped, Saving, Tell
from kvchat.session.lease import Lease, why_not_saved
from kvchat.system.concurrency import Interruption
from kvchat.words.reasons import Reason, ReasonCode

Boundary = Callable[[], Coroutine[Any, Any, Tokens]]
R = TypeVar("R")


class Settling:
    """Ends early when it is superseded, at any time; a save that has begun goes on."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._steps = Interruption()
        self._superseded = self._goes_on = False
        self.settle_ms, self.save_ms = 0.0, 0.0  # what either took so far

    def supersede(self) -> None:
        """The owner's next request makes settling pointless."""
        self._goes_on = not self._superseded
        self.hurry()

    def hurry(self) -> None:
        """Somebody else needs the slot: what was read is not lost for that, but it is settled no further."""
        self._superseded = True
        self._steps.interrupt()

    async def run(
        self, lease: Lease, boundary: Boundary, label: str | None = None, going_on: Sequence[ChatMessage] = ()
    ) -> None:
        """Settle at the turn boundary that `boundary` finds, and save under `label`. In the slot's owner's hands.

        `going_on`: the history with its last reply open, if that may be continued. Raises EngineGone.
        """
        try:
            await self._run(lease, boundary, label, going_on)
        except EngineRefused as refusal:
            self._tell(SaveSkipped(why_not_saved(refusal)))

    async def _run(self, lease: Lease, find: Boundary, label: str | None, going_on: Sequence[ChatMessage]) -> None:
        engine = lease.engine
        contents = lease.slot.known(engine)
        keeps = lease.keeps and engine.remembers(len(contents.tokens) if contents else 0)
        if keeps:
            self._tell(Saving())
            if going_on and not engine.can_cut:
                await self._save_where_it_goes_on(lease, label, going_on)
        boundary = await self._unless_superseded(find()) or ()
        settled = bool(boundary) and await self._settled(lease, boundary)
        if settled and keeps:
            await self._save(lease, boundary, label)
        elif keeps and (self._goes_on or not await lease.keep_what_was_read(label)):
            self._tell(SaveSkipped(Reason(ReasonCode.NEXT_MESSAGE)))

    async def _save_where_it_goes_on(self, lease: Lease, label: str | None, going_on: Sequence[ChatMessage]) -> None:
        """Also save at the very end of a reply that may be continued: the turn boundary is beyond."""
        end = await self._unless_superseded(lease.engine.engine.prompt_tokens(going_on))
        if end and await self._settled(lease, end):
            await self._save(lease, end, label, tell=False)

    async def _settled(self, lease: Lease, tokens: Tokens) -> bool:
        """Whether the slot now holds exactly these tokens."""
        size = int(len(tokens) * lease.engine.kv_bytes_per_token) if lease.keeps else 0
        began_at = time.perf_counter()
        with lease.slots.finishing.reading(size) as tell:
            settled = await self._unless_superseded(lease.settle(tokens, tell)) is not None
        self.settle_ms += 1000 * (time.perf_counter() - began_at)
        return settled

    async def _save(self, lease: Lease, tokens: Tokens, label: str | None, *, tell: bool = True) -> None:
        began_at = time.perf_counter()
        await lease.save(tokens, label=label, tell=tell)
        self.save_ms += 1000 * (time.perf_counter() - began_at)

    async def _unless_superseded(self, step: Coroutine[Any, Any, R]) -> R | None:
        """Run a step of settling; None when the next request came first."""
        if self._superseded:
            step.close()
            return None
        return await self._steps.run(step)
