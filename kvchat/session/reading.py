"""Reading ahead: a prompt's tokens are read into the slot in steps so small that nobody waits long for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvchat.engine.speaking.wire import Timings
from kvchat.kvstore.savepoint import Tokens
from kvchat.session.lease import Lease
from kvchat.session.proof import Loaded, ReadAhead
from kvchat.session.slots.slot import SlotContents
from kvchat.system.concurrency import to_its_end

STEP_MS = 250.0  # a step takes about so long
FIRST_STEP, LEAST_STEP, MOST_STEP = 64, 32, 2048  # tokens: where no rate is known, and at all
_CHANGE = 1.4  # from one step to the next: what a step takes beside its tokens must not have it shrink and shrink


async def read_ahead(
    lease: Lease,
    tokens: Tokens,
    loaded: Loaded,
    wanted: Callable[[], bool],
    progress: Callable[[int], None] = lambda done: None,
) -> bool:
    """Read `tokens` into a slot that was `loaded` for them; whether it holds them all: not if it was not `wanted`.

    A step is never cut short, even where whoever waits is cancelled: what the slot holds is always known, and a state
    that cannot be cut is never left somewhere in between. The first step proves what was loaded. Raises EngineGone and
    EngineRefused.
    """
    done, rate = min(loaded.expected_cached, len(tokens)), lease.slots.restore_cost.prefill_ms_per_token
    step = STEP_MS / rate if rate else FIRST_STEP
    while done < len(tokens):
        if not wanted():
            return False
        step = min(max(step, LEAST_STEP), MOST_STEP)
        end = min(done + int(step), len(tokens))
        timings, loaded = await to_its_end(_step(lease, tokens[:end], loaded))
        if timings.prompt_ms:
            step *= min(max(STEP_MS / timings.prompt_ms, 1 / _CHANGE), _CHANGE)
        done = end
        progress(done)
    return True


async def _step(lease: Lease, tokens: Tokens, loaded: Loaded) -> tuple[Timings, Loaded]:
    """Read on up to the end of these tokens; what that took, and what the slot is loaded with now."""
    timings = await lease.engine.engine.prefill(tokens)
    unproved = loaded.restore is not None and not loaded.ahead.tokens
    if unproved and (await lease.prove(loaded, timings.cache_n, len(tokens))).hollow:
        loaded = replace(loaded, restore=None)
    ahead = ReadAhead(loaded.ahead.tokens + timings.prompt_n, loaded.ahead.ms + timings.prompt_ms)
    loaded = replace(loaded, expected_cached=len(tokens), ahead=ahead)
    generation, owner = lease.engine.generation, lease.owner
    lease.slot.contents = SlotContents(generation, owner, tokens, exact=True, unproved=loaded.restore, ahead=ahead)
    return timings, loaded
