"""What loading does for a prompt: leave the slot as it is, or restore a save point in its place. It only asks.

The same for whoever loads (`lease.py`) and for whoever only wants to know what that would come to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvchat.engine.speaking.vision import FIRST_ID
from kvchat.kvstore.savepoint import Miss, RestorePlan, Tokens
from kvchat.session.host import ReadyEngine
from kvchat.session.proof import NOTHING_LOADED, Loaded
from kvchat.session.restore_cost import LEAST_GAIN
from kvchat.session.slots.pool import Slots
from kvchat.session.slots.slot import SlotContents
from kvchat.words.reasons import Reason, ReasonCode


@dataclass(frozen=True)
class Plan:
    """How a prompt is made ready."""

    as_it_is: Loaded  # by the slot alone; says why nothing is restored where it has nothing of the prompt
    restore: RestorePlan | None = None  # in its place, where that leaves less to read

    @property
    def had(self) -> int:
        """How many of the prompt's tokens need not be read."""
        return self.restore.tokens_used if self.restore else self.as_it_is.expected_cached


async def plan(
    slots: Slots,
    engine: ReadyEngine,
    owner: str,
    contents: SlotContents | None,
    prompt: Tokens,
    worth: Callable[[int, int], bool],
) -> Plan:
    """What leaves the least of the prompt to read, for a slot with these contents.

    `worth`: whether so many tokens are worth a restore of so many bytes (see RestoreCost).
    """
    as_it_is = unchanged(engine, contents, prompt)
    held = as_it_is.expected_cached
    if contents and contents.exact and contents.owner == owner and held == len(contents.tokens):
        return Plan(as_it_is)  # its own turn boundary, or beyond it: nothing can leave less
    if held and held > len(prompt) - LEAST_GAIN:  # nothing is worth a restore: it need not be looked for
        return Plan(as_it_is)
    best = await _best(slots, engine, owner, prompt, lambda gain, size: worth(gain - held, size))
    if isinstance(best, Miss):
        return Plan(as_it_is if held else replace(as_it_is, miss_reason=best.reason))
    return Plan(as_it_is, best)


def unchanged(engine: ReadyEngine, contents: SlotContents | None, prompt: Tokens) -> Loaded:
    """What a slot with these contents is to a prompt if nothing is loaded."""
    held = contents.serves(prompt, engine.can_cut) if contents else 0
    if not contents or not held:
        return NOTHING_LOADED
    return Loaded(held, contents.unproved, None, contents.ahead.within(len(contents.tokens), held))


async def found(slots: Slots, engine: ReadyEngine, owner: str, prompt: Tokens) -> RestorePlan | Miss:
    """The save point that has the most of a prompt, or why there is none."""
    return await asyncio.to_thread(
        slots.store.find, engine.fingerprint, prompt, can_cut=engine.can_cut, conversation_id=owner
    )


async def _best(
    slots: Slots, engine: ReadyEngine, owner: str, prompt: Tokens, worth: Callable[[int, int], bool]
) -> RestorePlan | Miss:
    if not engine.saves:
        return Miss(Reason(ReasonCode.NO_RESTORING))
    if not engine.remembers(len(prompt)):
        return Miss(Reason(ReasonCode.TOO_SHORT))
    best = await found(slots, engine, owner, prompt)
    if isinstance(best, Miss):
        return best
    if not worth(best.tokens_used, best.bytes):
        return Miss(Reason(ReasonCode.NOT_WORTH_IT))
    if not engine.sees and min(best.save_point.tokens) <= FIRST_ID:  # the engine would refuse a good state
        return Miss(Reason(ReasonCode.NEEDS_PROJECTOR))
    return best
