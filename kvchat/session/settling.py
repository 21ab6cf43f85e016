"""Settling at a boundary and saving: after the reply, unless the next request comes first; or at a system prompt.

If another owner needs the slot before that is done, what was processed is saved as it is, if worthwhile.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kvchat.engine.speaking.errors import EngineRefused
from kvchat.engine.speaking.wire import ChatMessage, PromptProgress, Timings
from kvchat.kvstore.savepoint import Tokens
from kvchat.session.events import SaveSkipped, Saving, Tell
from kvchat.session.lease import Lease, why_not_saved
from kvchat.session.restore_cost import LEAST_GAIN, LONG_MS
from kvchat.system.concurrency import Interruption, to_its_end
from kvchat.words.reasons import Reason, ReasonCode

Boundary = Callable[[], Coroutine[Any, Any, Tokens]]
R = TypeVar("R")


class Settling:
    """Settle and save a slot; end early when superseded, but finish a save that has begun."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._steps = Interruption()
        self._superseded = self._goes_on = False
        self.settle_ms, self.save_ms = 0.0, 0.0  # time taken so far

    def supersede(self) -> None:
        self._goes_on = not self._superseded
        self.hurry()

    def hurry(self) -> None:
        """Stop settling because another owner needs the slot; what was read is still saved."""
        self._superseded = True
        self._steps.interrupt()

    async def run(
        self, lease: Lease, boundary: Boundary, label: str | None = None, going_on: Sequence[ChatMessage] = ()
    ) -> None:
        """Settle at the turn boundary from `boundary` and save under `label`. The slot's owner calls it.

        `going_on`: the history with its last reply open, if it can be continued. Raises EngineGone.
        """
        engine = lease.engine
        contents = lease.slot.known(engine)
        keeps = lease.keeps and engine.remembers(len(contents.tokens) if contents else 0)
        try:
            if keeps:
                self._tell(Saving())
                if going_on and not engine.can_cut:  # it may be continued before the turn boundary
                    end = await self._unless_superseded(engine.engine.prompt_tokens(going_on))
                    if end and await self._settled(lease, end):
                        await self._save(lease, end, label, tell=False)
            at = await self._unless_superseded(boundary()) or ()
            settled = bool(at) and await self._settled(lease, at)
            if settled and keeps:
                await self._save(lease, at, label)
            elif keeps and (self._goes_on or not await lease.keep_what_was_read(label)):
                self._tell(SaveSkipped(Reason(ReasonCode.NEXT_MESSAGE)))
        except EngineRefused as refusal:
            self._tell(SaveSkipped(why_not_saved(refusal)))

    async def _settled(self, lease: Lease, tokens: Tokens) -> bool:
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
        if self._superseded:
            step.close()
            return None
        return await self._steps.run(step)


@dataclass(frozen=True)
class SystemPrompt:
    label: str  # id of the owner's item it belongs to
    is_shared: Callable[[], Awaitable[bool]]  # True if others share the prefix; called only if needed


async def save_on_the_way(
    lease: Lease,
    system: SystemPrompt,
    messages: Sequence[ChatMessage],
    prompt: Tokens,
    progress: Callable[[PromptProgress], None],
) -> Timings | None:
    """Read `prompt` up to the end of its system prompt, where first questions begin, and save.

    None if a save point there gains nothing. A long prompt gets one before others share it: retrying the
    first question, or starting the next chat, then need not read it again. May be cancelled, but finishes a save
    that has begun. Raises EngineGone and EngineRefused.
    """
    engine = lease.engine
    if not lease.keeps or engine.can_cut:
        return None
    boundary = await lease.boundary(messages[:1])
    if len(boundary) <= LEAST_GAIN or not engine.remembers(len(boundary)) or prompt[: len(boundary)] != boundary:
        return None
    if not await system.is_shared() and lease.slots.restore_cost.prefill_ms(len(boundary)) < LONG_MS:
        return None
    read = await lease.settle(boundary, progress)
    await to_its_end(lease.save(boundary, label=system.label, tell=False))
    return read
