"""What enters a slot beside a request.

- Processing ahead: a prompt enters in steps so small that nobody waits long for one.
- Settling at a boundary and saving: after the reply, unless the next request comes first; or at a system prompt. If
  another owner needs the slot before that is done, what was processed is saved as it is, if worthwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kvchat.engine.running.plan import BATCH_SIZE
from kvchat.engine.speaking.errors import EngineRefused
from kvchat.engine.speaking.wire import ChatMessage, PromptProgress, Timings
from kvchat.kvstore.savepoint import Tokens
from kvchat.session.events import SaveSkipped, Saving, Tell
from kvchat.session.lease import NEXT, Lease, why_not_saved
from kvchat.session.proof import Loaded, ReadAhead
from kvchat.session.restore_cost import LEAST_GAIN, LEAST_MEASURED, LEAST_TOLD, LONG_MS
from kvchat.session.slot import TAIL, SlotContents
from kvchat.system.concurrency import Interruption, to_its_end
from kvchat.words.reasons import Reason, ReasonCode

STEP_MS = 250.0  # target time of a step
PART_MS = 20_000.0  # save after this much processing
FIRST_PART, LEAST_PART = 8192, 1024  # tokens: rate unknown; minimum
FIRST_STEP, LEAST_STEP, MOST_STEP = 16, 8, 2048  # tokens: rate unknown; minimum; maximum
WHOLE_STEP = LEAST_MEASURED
_LONGER = 2.0  # factor by which a whole step may exceed the target time
_DEARER = 3.0  # factor for the time per token in small steps
_SLOWER, _QUICKER = 1.4, 2.0  # largest change per step: one busy moment says little

R = TypeVar("R")
Boundary = Callable[[], Coroutine[Any, Any, Tokens]]
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
