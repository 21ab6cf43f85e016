"""Processing ahead: a prompt enters the slot in steps so small that nobody waits long for one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from kvchat.engine.running.plan import BATCH_SIZE
from kvchat.engine.speaking.wire import Timings
from kvchat.kvstore.savepoint import Tokens
from kvchat.session.lease import NEXT, Lease
from kvchat.session.proof import Loaded, ReadAhead
from kvchat.session.restore_cost import LEAST_MEASURED, LEAST_TOLD
from kvchat.session.slot import TAIL, SlotContents
from kvchat.system.concurrency import to_its_end

STEP_MS = 250.0  # target time of a step
PART_MS = 20_000.0  # save after this much processing
FIRST_PART, LEAST_PART = 8192, 1024  # tokens: rate unknown; minimum
FIRST_STEP, LEAST_STEP, MOST_STEP = 16, 8, 2048  # tokens: rate unknown; minimum; maximum
WHOLE_STEP = LEAST_MEASURED
_LONGER = 2.0  # factor by which a whole step may exceed the target time
_DEARER = 3.0  # factor for the time per token in small steps
_SLOWER, _QUICKER = 1.4, 2.0  # largest change per step: one busy moment says little

Keep = Callable[[Tokens], Coroutine[Any, Any, object]]
Turn = Callable[[], contextlib.AbstractAsyncContextManager[bool]]  # wraps a step; False: stop before it


async def nothing(tokens: Tokens) -> None: ...


@dataclass
class Pace:
    """Step size in tokens, chosen from the time of earlier steps."""

    whole: float | None = None  # ms per token in steps >= WHOLE_STEP
    small: float | None = None  # in smaller ones
    step_ms: float = STEP_MS  # target per step
    _measured: set[bool] = field(default_factory=set)  # step kinds measured so far

    def tokens(self, left: int) -> int:
        if not (self.whole or self.small):
            return min(FIRST_STEP if self.step_ms <= STEP_MS else WHOLE_STEP, left)
        whole = self.whole or (self.small or 0.0) / 2
        small = self.small or 2 * whole
        as_whole = WHOLE_STEP * whole <= _LONGER * self.step_ms or small > _DEARER * whole
        if as_whole and left >= WHOLE_STEP:
            step = min(max(int(self.step_ms / whole), WHOLE_STEP), MOST_STEP, left)
            return max(step - (step - left) % BATCH_SIZE, 0) or step  # leaves a multiple of BATCH_SIZE
        return min(max(int(self.step_ms / small), LEAST_STEP), WHOLE_STEP - 1, left)

    def learn(self, tokens: int, ms: float) -> None:
        """Learn from a step. The first of each size is trusted; later ones change the rate slowly."""
        if tokens < LEAST_TOLD or not ms:
            return
        is_whole, now = tokens >= WHOLE_STEP, ms / tokens
        was = self.whole if is_whole else self.small
        if was and is_whole in self._measured:
            now = min(max(now, was / _QUICKER), was * _SLOWER)
        self._measured.add(is_whole)
        if is_whole:
            self.whole = now
        else:
            self.small = now


def tail_of(missing: int, ms_per_token: float | None, step_ms: float) -> int:
    """Return how many missing tokens to leave to the request itself, at least one.

    As many as the engine's last batch would have, so that the answer is the same to the last digit; fewer if they
    would take longer than a step should.
    """
    within_a_step = ms_per_token is not None and BATCH_SIZE * ms_per_token <= step_ms
    return missing % BATCH_SIZE or BATCH_SIZE if within_a_step else TAIL


async def read_ahead(
    lease: Lease,
    tokens: Tokens,
    loaded: Loaded,
    wanted: Callable[[], bool],
    progress: Callable[[int], None] = lambda done: None,
    step_ms: float = STEP_MS,
    turn: Turn = lambda: contextlib.nullcontext(True),
) -> bool:
    """Read `tokens` into a slot `loaded` for them; False if it stopped being `wanted` before the end.

    A step is never cut short, even if the caller is cancelled: the slot's contents stay known, and a state that
    cannot be cut never ends up in between. The first step proves what was loaded. The time taken updates the
    estimated value of restoring. Raises EngineGone and EngineRefused.
    """
    done, speed = min(loaded.expected_cached, len(tokens)), lease.slots.restore_cost.speed
    pace = Pace(*speed.ms_per_step_token(), step_ms)
    while done < len(tokens):
        if not wanted():
            return False
        async with turn() as mine:
            if not mine:
                return False
            end = done + pace.tokens(len(tokens) - done)
            timings, loaded = await to_its_end(_step(lease, tokens[:end], loaded))
        pace.learn(timings.prompt_n, timings.prompt_ms)
        speed.learn(timings.prompt_n, timings.prompt_ms, timings.cache_n)
        done = end
        progress(done)
    return True


def parts_of(lease: Lease, tokens: Tokens) -> Iterator[Tokens]:
    """Yield the points to save a long prompt at: its end, and some before it to limit the cost of interruption."""
    rate = lease.slots.restore_cost.speed.ms_per_token
    part = max(int(PART_MS / rate), LEAST_PART) if rate else FIRST_PART
    for end in (*range(part, len(tokens) - part // 2, part), len(tokens)):
        yield tokens[:end]


async def read_and_keep(
    lease: Lease,
    stops: Iterable[Tokens],
    loaded: Loaded,
    wanted: Callable[[], bool],
    keep: Keep,
    progress: Callable[[int], None],
    step_ms: float = STEP_MS,
) -> bool:
    """Like `read_ahead`, stop by stop, calling `keep` at each; True if it reached the end."""
    for number, stop in enumerate(stops):
        if number:
            loaded = await lease.load((*stop, NEXT))
        if not await read_ahead(lease, stop, loaded, wanted, progress, step_ms):
            return False
        await to_its_end(keep(stop))
    return True


async def _step(lease: Lease, tokens: Tokens, loaded: Loaded) -> tuple[Timings, Loaded]:
    timings = await lease.read(tokens)
    unproved = loaded.restore is not None and not loaded.ahead.tokens
    if unproved and (await lease.prove(loaded, timings.cache_n, len(tokens))).hollow:
        loaded = replace(loaded, restore=None)
    ahead = ReadAhead(loaded.ahead.tokens + timings.prompt_n, loaded.ahead.ms + timings.prompt_ms)
    loaded = replace(loaded, expected_cached=len(tokens), ahead=ahead)
    generation, owner = lease.engine.generation, lease.owner
    lease.slot.hold(SlotContents(generation, owner, tokens, exact=True, unproved=loaded.restore, ahead=ahead))
    return timings, loaded
