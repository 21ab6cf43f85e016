"""A save point at the end of a system prompt that is long or shared, where states cannot be cut.

Elsewhere any save point that begins with the system prompt serves a new conversation. Hybrid, recurrent and
sliding-window models need one exactly there, and it can only be made on the way: before the first question is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kvchat.engine.speaking.wire import ChatMessage, PromptProgress, Timings
from kvchat.kvstore.savepoint import Tokens
from kvchat.session.lease import Lease
from kvchat.session.restore_cost import LEAST_GAIN, LONG_MS
from kvchat.system.concurrency import to_its_end


@dataclass(frozen=True)
class SystemPrompt:
    """What a prompt begins with, if that may be saved by itself."""

    label: str  # what of the owner's it is, as a message
    is_shared: Callable[[], Awaitable[bool]]  # whether others begin so, too; asked only where it matters


async def save_on_the_way(
    lease: Lease,
    system: SystemPrompt,
    messages: Sequence[ChatMessage],
    prompt: Tokens,
    progress: Callable[[PromptProgress], None],
) -> Timings | None:
    """Read `prompt` up to where every first question begins, after its system prompt, and save. What that took.

    None if a save point there would gain nothing. A long prompt gets one before others share it: whoever asks the first
    question anew, or begins the next chat, need not read it again. May be cancelled: a save that has begun is finished.
    Raises EngineGone and EngineRefused.
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
