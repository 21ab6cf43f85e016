"""Background prefill of a slot, outside any request.

- Processing ahead: a prompt is processed in steps so small that no request waits long for one.
- Settling at a boundary and saving: after the reply, unless the next request comes first; or at a system prompt. If
  another owner needs the slot before that is done, what was processed is saved as it is, if worthwhile.
"""

import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kvchat.engine.api.errors import EngineRefused
from kvchat.engine.api.wire import ChatMessage, PromptProgress, Timings
from kvchat.engine.process.plan import BATCH_SIZE
from kvchat.kvstore.savepoint import Tokens
from kvchat.session.events import EventHandler, SaveSkipped, Saving
from kvchat.session.lease import Lease, reason_for_save_failure
from kvchat.session.proof import LoadedState, PrefilledAhead
from kvchat.session.restore_cost import MIN_GAIN, MIN_LEARNED_TOKENS, MIN_MEASURED_TOKENS
from kvchat.session.slot import TAIL_TOKENS, SlotContents
from kvchat.system.concurrency import InterruptibleTask, shielded
from kvchat.text.reasons import Reason, ReasonCode

TARGET_STEP_MS = 250.0  # target time of a step
PART_MS = 20_000.0  # save after this much processing
DEFAULT_PART, MIN_PART = 8192, 1024  # tokens: rate unknown; minimum
FIRST_STEP, MIN_STEP, MAX_STEP = 16, 8, 2048  # tokens: rate unknown; minimum; maximum
FULL_STEP = MIN_MEASURED_TOKENS
_MAX_OVERRUN = 2.0  # factor by which a whole step may exceed the target time
_MAX_SMALL_STEP_COST = 3.0  # factor for the time per token in small steps
_MAX_SLOWDOWN, _MAX_SPEEDUP = 1.4, 2.0  # largest change per step: one busy moment says little

R = TypeVar("R")
BoundaryGetter = Callable[[], Coroutine[Any, Any, Tokens]]
SaveCallback = Callable[[Tokens], Coroutine[Any, Any, object]]
StepGate = Callable[[], contextlib.AbstractAsyncContextManager[bool]]  # wraps a step; False: stop before it


async def save_nothing(tokens: Tokens) -> None: ...


@dataclass
class StepPacer:
    """Step size in tokens, chosen from the time of earlier steps."""

    rates: dict[bool, float] = field(default_factory=dict)  # ms per token in steps >= FULL_STEP (True) and smaller ones
    step_ms: float = TARGET_STEP_MS  # target per step
    _measured: set[bool] = field(default_factory=set)  # step kinds measured so far

    def tokens(self, remaining: int) -> int:
        if not self.rates:
            return min(FIRST_STEP if self.step_ms <= TARGET_STEP_MS else FULL_STEP, remaining)
        whole = self.rates[True] if True in self.rates else self.rates[False] / 2
        small = self.rates.get(False, 2 * whole)
        as_whole = FULL_STEP * whole <= _MAX_OVERRUN * self.step_ms or small > _MAX_SMALL_STEP_COST * whole
        if as_whole and remaining >= FULL_STEP:
            step = min(max(int(self.step_ms / whole), FULL_STEP), MAX_STEP, remaining)
            return max(step - (step - remaining) % BATCH_SIZE, 0) or step  # leaves a multiple of BATCH_SIZE
        return min(max(int(self.step_ms / small), MIN_STEP), FULL_STEP - 1, remaining)

    def learn(self, tokens: int, ms: float) -> None:
        """Learn from a step. The first full-size and first smaller one set the rates; later ones adjust them slowly."""
        if tokens < MIN_LEARNED_TOKENS or not ms:
            return
        is_whole, rate = tokens >= FULL_STEP, ms / tokens
        if is_whole in self._measured:
            before = self.rates[is_whole]
            rate = min(max(rate, before / _MAX_SPEEDUP), before * _MAX_SLOWDOWN)
        self._measured.add(is_whole)
        self.rates[is_whole] = rate


def tail_size(missing: int, ms_per_token: float | None, step_ms: float) -> int:
    """Return how many of the missing tokens to leave for the request itself, at least one.

    That is the size of the engine's last batch, so that results are bit-identical, or less if that
    many would take longer than a step should.
    """
    within_a_step = ms_per_token is not None and BATCH_SIZE * ms_per_token <= step_ms
    return missing % BATCH_SIZE or BATCH_SIZE if within_a_step else TAIL_TOKENS


async def prefill_ahead(
    lease: Lease,
    tokens: Tokens,
    loaded: LoadedState,
    may_continue: Callable[[], bool],
    progress: Callable[[int], None] = lambda done: None,
    step_ms: float = TARGET_STEP_MS,
    step_gate: StepGate = lambda: contextlib.nullcontext(True),
) -> bool:
    """Process `tokens` step by step; False if stopped before the end. `loaded`: what the slot already holds of them.

    A step is never cut short, even if the caller is cancelled, so the slot's contents stay known and a state that
    cannot be cut always ends at the end of a step. The first step proves what was loaded. Raises EngineGone and
    EngineRefused.
    """
    done, speed = min(loaded.expected_cached, len(tokens)), lease.slots.restore_cost.speed
    pacer = StepPacer(speed.step_rates(), step_ms)
    while done < len(tokens):
        if not may_continue():
            return False
        async with step_gate() as is_allowed:
            if not is_allowed:
                return False
            end = done + pacer.tokens(len(tokens) - done)
            timings, loaded = await shielded(_prefill_step(lease, tokens[:end], loaded))
        pacer.learn(timings.prompt_n, timings.prompt_ms)
        speed.learn(timings.prompt_n, timings.prompt_ms, timings.cache_n)
        done = end
        progress(done)
    return True


def prefixes_to_save(lease: Lease, tokens: Tokens) -> Iterator[Tokens]:
    """Yield the prefixes of a long prompt to save: shorter ones, in case of an interruption, and the whole prompt."""
    rate = lease.slots.restore_cost.speed.ms_per_token
    part = max(int(PART_MS / rate), MIN_PART) if rate else DEFAULT_PART
    for end in (*range(part, len(tokens) - part // 2, part), len(tokens)):
        yield tokens[:end]


async def prefill_and_save(
    lease: Lease,
    stops: Iterable[Tokens],
    loaded: LoadedState,
    may_continue: Callable[[], bool],
    save: SaveCallback,
    progress: Callable[[int], None],
    step_ms: float = TARGET_STEP_MS,
) -> bool:
    """Prefill and `save` each of `stops`, ever longer prefixes of the prompt; return True if the last was reached."""
    for number, stop in enumerate(stops):
        if number:
            loaded = await lease.load_boundary(stop)
        if not await prefill_ahead(lease, stop, loaded, may_continue, progress, step_ms):
            return False
        await shielded(save(stop))
    return True


async def _prefill_step(lease: Lease, tokens: Tokens, loaded: LoadedState) -> tuple[Timings, LoadedState]:
    timings = await lease.prefill(tokens)
    unproved = loaded.restore is not None and not loaded.prefilled_ahead.tokens
    if unproved and (await lease.prove(loaded, timings.cache_n, len(tokens))).hollow:
        loaded = replace(loaded, restore=None)
    ahead = PrefilledAhead(
        loaded.prefilled_ahead.tokens + timings.prompt_n, loaded.prefilled_ahead.ms + timings.prompt_ms
    )
    loaded = replace(loaded, expected_cached=len(tokens), prefilled_ahead=ahead)
    lease.slot.set_contents(SlotContents(lease.owner, tokens, True, loaded.restore, ahead))
    return timings, loaded


class Settling:
    """Settles and saves a slot. Ends early if a newer request makes it useless, but finishes a save that has begun."""

    def __init__(self, notify: EventHandler) -> None:
        self._notify = notify
        self._steps = InterruptibleTask()
        self._superseded = self._is_continuation = False
        self.settle_ms, self.save_ms = 0.0, 0.0  # time taken so far

    def supersede(self) -> None:
        self._is_continuation = not self._superseded
        self.hurry()

    def hurry(self) -> None:
        """Stop settling because another owner needs the slot; what was processed is still saved."""
        self._superseded = True
        self._steps.interrupt()

    async def run(
        self,
        lease: Lease,
        get_boundary: BoundaryGetter,
        label: str | None = None,
        open_history: Sequence[ChatMessage] = (),
    ) -> None:
        """Settle at the turn boundary from `get_boundary`, and save under `label`. Called by the slot's owner.

        `open_history`: the history with its last reply left open, if that reply can be continued. A state that cannot
        be cut is saved there, too, or only there if the turn boundary is a few tokens further. Raises EngineGone.
        """
        engine = lease.engine
        contents = lease.slot.known_contents(engine)
        keeps = lease.saving_enabled and engine.can_save(len(contents.tokens) if contents else 0)
        try:
            if keeps:
                self._notify(Saving())
            end: Tokens | None = None
            if keeps and open_history and not engine.can_cut:
                end = await self._run_unless_superseded(engine.engine.prompt_tokens(open_history))
            at = await self._run_unless_superseded(get_boundary()) or ()
            if end and at[: len(end)] == end and len(at) - len(end) < MIN_GAIN:
                at = end
            elif end and await self._settle(lease, end):
                await self._save(lease, end, label, notify=False)
            settled = bool(at) and await self._settle(lease, at)
            if settled and keeps:
                await self._save(lease, at, label)
            elif keeps and (self._is_continuation or not await lease.save_processed(label)):
                self._notify(SaveSkipped(Reason(ReasonCode.NEXT_MESSAGE)))
        except EngineRefused as refusal:
            self._notify(SaveSkipped(reason_for_save_failure(refusal)))

    async def _settle(self, lease: Lease, tokens: Tokens) -> bool:
        size = int(len(tokens) * lease.engine.kv_bytes_per_token) if lease.saving_enabled else 0
        began_at = time.perf_counter()
        with lease.slots.save_progress.track_prefill(size) as notify:
            settled = await self._run_unless_superseded(lease.settle(tokens, notify)) is not None
        self.settle_ms += 1000 * (time.perf_counter() - began_at)
        return settled

    async def _save(self, lease: Lease, tokens: Tokens, label: str | None, *, notify: bool = True) -> None:
        began_at = time.perf_counter()
        await lease.save(tokens, label=label, notify=notify)
        self.save_ms += 1000 * (time.perf_counter() - began_at)

    async def _run_unless_superseded(self, step: Coroutine[Any, Any, R]) -> R | None:
        if self._superseded:
            step.close()
            return None
        return await self._steps.run(step)


def is_worth_saving(lease: Lease, beginning: Tokens) -> bool:
    """True if other prompts with this beginning need a save point at its end and are faster with it.

    States that can be cut serve them as they are.
    """
    engine, tokens = lease.engine, len(beginning)
    size = int(tokens * engine.kv_bytes_per_token) + engine.kv_fixed_bytes
    is_needed = lease.saving_enabled and not engine.can_cut and engine.can_save(tokens)
    return is_needed and lease.slots.restore_cost.is_worthwhile(tokens, size)


async def save_system_prompt(
    lease: Lease,
    label: str,
    messages: Sequence[ChatMessage],
    prompt: Tokens,
    progress: Callable[[PromptProgress], None],
) -> Timings | None:
    """Process `prompt` up to the end of its system prompt and save it; None if a save point there is not worthwhile.

    `label`: id of the owner's item that the system prompt belongs to. May be cancelled, but finishes a save that has
    begun. Raises EngineGone and EngineRefused.
    """
    if not is_worth_saving(lease, prompt):  # asking for the boundary takes two requests
        return None
    boundary = await lease.turn_boundary(messages[:1])
    if prompt[: len(boundary)] != boundary or not is_worth_saving(lease, boundary):
        return None
    timings = await lease.settle(boundary, progress)
    await shielded(lease.save(boundary, label=label, notify=False))
    return timings
