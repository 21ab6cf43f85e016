"""One engine slot: its known contents, requests for it, and the plan for loading a prompt into it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from kvchat.engine.api.pictures import FIRST_PICTURE_ID
from kvchat.kvstore.savepoint import RestoreMiss, RestorePlan, SavePoint, Tokens, common_prefix, readable_audiences
from kvchat.kvstore.store import BlockStore
from kvchat.session.host import ReadyEngine
from kvchat.session.proof import NOTHING_AHEAD, NOTHING_LOADED, LoadedState, PrefilledAhead, RestoreRecord
from kvchat.session.restore_cost import MIN_GAIN
from kvchat.text.reasons import Reason, ReasonCode

TAIL_TOKENS = 16  # tokens at a prompt's end, which start the reply; may be left to the request to process
SETTLE_WAIT_S = 1.0  # one owner waits this long for another's settling; most finish and are saved
MAX_SETTLE_WAIT_S = 10.0  # programs wait at most this long
_USE_COUNTER = itertools.count(1)

StopCallback = Callable[[], object]


@dataclass(frozen=True)
class SlotContents:
    """Known contents of a slot: at least `tokens`; exactly those if `is_exact`."""

    owner: str
    tokens: Tokens
    is_exact: bool
    unproved_restore: RestoreRecord | None = None
    prefilled_ahead: PrefilledAhead = NOTHING_AHEAD  # of those tokens

    def reusable_tokens(self, prompt: Tokens, can_cut: bool) -> int:
        """Count the reusable tokens of the prompt: the shared prefix or, if the state cannot be cut, all or none.

        If the tail is unknown (`is_exact` false), only the engine can tell; assume the prompt extends it.
        """
        shared = common_prefix(self.tokens, prompt)
        return shared if can_cut or shared == len(self.tokens) else 0


class Slot:
    """One of the engine's sequences. Its owner holds it from restore to save: two owners never mix."""

    def __init__(self, number: int = 0) -> None:
        self.number = number  # index among kvchat's slots, from 0
        self.used_at = 0  # counts uses of all slots; not a time
        self.is_window_owned = True  # the current or last owner is the window
        self.is_streaming = False  # a reply is streaming
        self.is_leaving = False  # its program is about to release it
        self.claimed_tokens = 0  # tokens its current owner may need; 0: no request in progress
        self.max_tokens = 0  # tokens the engine may hold beyond those known
        self.generation = 0  # of the engine process described here
        self.contents: SlotContents | None = None  # None: unknown
        self.audience: str | None = None  # of rows the engine may hold in it; None: it has none
        self.save_point = ""  # last save point saved from it or restored into it
        self.unproved_point: SavePoint | None = None  # restored into it; no request has finished since

    def mark_acquired(self, *, from_window: bool) -> None:
        self.used_at, self.is_window_owned, self.is_streaming = next(_USE_COUNTER), from_window, False

    def mark_released(self) -> None:
        if self.claimed_tokens:
            is_exact = self.contents is not None and self.contents.is_exact
            self.max_tokens = 0 if is_exact else max(self.max_tokens, self.claimed_tokens)
        self.claimed_tokens, self.is_streaming, self.is_leaving = 0, False, False

    def max_tokens_held(self, generation: int) -> int:
        """Return the maximum number of tokens that this engine process may hold in the slot."""
        if generation != self.generation:
            return 0
        return max(self.max_tokens, len(self.contents.tokens) if self.contents else 0)

    @property
    def holder(self) -> str | None:
        """Owner of the contents, or None if they are unknown."""
        return self.contents.owner if self.contents else None

    def reusable_tokens(self, prompt: Tokens, can_cut: bool) -> int:
        return self.contents.reusable_tokens(prompt, can_cut) if self.contents else 0

    def known_contents(self, engine: ReadyEngine) -> SlotContents | None:
        return self.contents if self.generation == engine.generation else None

    def readable_contents(self, engine: ReadyEngine, owner: str) -> SlotContents | None:
        contents = self.known_contents(engine)
        return contents if contents and self.is_readable_by(owner) else None

    def is_readable_by(self, owner: str) -> bool:
        return self.audience is None or self.audience in readable_audiences(owner)

    def mark_proved(self) -> None:
        self.unproved_point = None
        if self.contents:
            self.contents = replace(self.contents, unproved_restore=None)

    def set_contents(self, contents: SlotContents) -> None:
        self.contents = contents
        if contents.is_exact:
            self.max_tokens = 0

    def mark_empty(self) -> None:
        self.contents, self.max_tokens, self.unproved_point = None, 0, None

    def forget(self) -> None:
        if self.contents:
            self.max_tokens = max(self.max_tokens, len(self.contents.tokens))
        self.contents = None


class Priority(IntEnum):
    """Kinds of background work, most urgent first."""

    ENLARGE_CONTEXT = 1  # restart the engine with more context
    TEST_IMPORT = 2  # test an imported chat's memory while the user waits
    PREPARE = 3  # restore and process what the user views or types
    DOCUMENTS = 4  # process prepared documents
    TITLE = 5  # name a chat
    VERIFY = 6  # reprocess an imported chat to verify it
    # These need no slot:
    ABSORB = 7  # split saved files into blocks


class RequestState(Enum):
    PENDING = "asks"  # someone waits; it has no slot yet
    ACTIVE = "answers"  # in a slot; someone waits
    SETTLING = "settles"  # still in a slot, settling and saving; nobody waits for it
    STANDBY = "stands-by"  # for idle time
    BACKGROUND = "works"  # in a slot, in idle time


@dataclass(eq=False)
class Turn:
    owner: str
    model: str | None
    has_begun: bool = False


@dataclass(eq=False)
class SlotRequest:
    owner: str
    state: RequestState = RequestState.PENDING
    priority: Priority = Priority.ENLARGE_CONTEXT  # of background work
    stop: StopCallback = lambda: None  # ends unawaited work early
    finish_early: StopCallback = lambda: None  # like `stop`, for settling that another owner awaits
    reprocess_s: float = 0.0  # time to reprocess what it settles; other programs wait for up to a tenth of it
    prompt: Tokens = ()
    from_window: bool = True  # requested by the window
    is_concurrent: bool = False  # computes nothing, so it may run beside other requests
    should_continue: bool = True  # False: end at the next good point
    is_idle: bool = False  # waits for all others and leaves its own slot idle
    slot_future: asyncio.Future[Slot] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def slot(self) -> Slot | None:
        granted = self.slot_future
        return granted.result() if granted.done() and not granted.cancelled() else None

    def continues(self, other: SlotRequest) -> bool:
        """True if this request follows `other` in its conversation, so that `other` need not be saved anymore."""
        if self.owner != other.owner or self.from_window or self is other:
            return self.owner == other.owner
        cut = max(len(other.prompt) - TAIL_TOKENS, 1)  # its last tokens begin a reply
        return bool(other.prompt) and self.prompt[:cut] == other.prompt[:cut]

    def stop_now(self) -> None:
        self.should_continue = False
        self.stop()

    def stop_later(self, *, window_waits: bool) -> None:
        """Give settling a short time to finish, then stop it.

        `window_waits`: a request from the window is waiting for the slot.
        """
        self.should_continue, wait_s = False, 0.0 if window_waits else min(self.reprocess_s / 10, MAX_SETTLE_WAIT_S)
        asyncio.get_running_loop().call_later(max(wait_s, SETTLE_WAIT_S), self.finish_early)

    def release_soon(self) -> None:
        """End background work immediately, or settling after a short delay."""
        if self.state is RequestState.SETTLING:
            self.stop_later(window_waits=True)
        elif self.state is RequestState.BACKGROUND:
            self.stop_now()


@dataclass(frozen=True)
class LoadPlan:
    without_restore: LoadedState  # without a restore; holds the miss reason if the slot has no prompt tokens
    restore: RestorePlan | None = None  # used if it leaves fewer tokens to process

    @property
    def reused_tokens(self) -> int:
        return self.restore.tokens_used if self.restore else self.without_restore.expected_cached


async def plan_load(
    store: BlockStore,
    engine: ReadyEngine,
    owner: str,
    contents: SlotContents | None,
    prompt: Tokens,
    is_worthwhile: Callable[[int, int], bool],
) -> LoadPlan:
    """Plan how to load the slot so that the fewest tokens of the prompt remain to be processed."""
    without_restore = state_without_restore(engine, contents, prompt)
    held_tokens = without_restore.expected_cached
    if contents and contents.is_exact and contents.owner == owner and held_tokens == len(contents.tokens):
        return LoadPlan(without_restore)  # at or past its own turn boundary: nothing leaves less
    if held_tokens and held_tokens > len(prompt) - MIN_GAIN:  # no restore can pay off: skip the search
        return LoadPlan(without_restore)
    if not engine.supports_saving:
        miss = Reason(ReasonCode.NO_RESTORING)
    elif not engine.can_save(len(prompt)):
        miss = Reason(ReasonCode.TOO_SHORT)
    else:
        best = await find_save_point(store, engine, owner, prompt)
        if isinstance(best, RestoreMiss):
            miss = best.reason
        elif not is_worthwhile(best.tokens_used - held_tokens, best.bytes):
            miss = Reason(ReasonCode.NOT_WORTH_IT)
        elif not engine.has_vision and min(best.save_point.tokens) <= FIRST_PICTURE_ID:  # the engine would reject it
            miss = Reason(ReasonCode.NEEDS_PROJECTOR)
        else:
            return LoadPlan(without_restore, best)
    return LoadPlan(without_restore if held_tokens else replace(without_restore, miss_reason=miss))


def state_without_restore(engine: ReadyEngine, contents: SlotContents | None, prompt: Tokens) -> LoadedState:
    """Return the state of the slot for a prompt if nothing is restored into it."""
    held_tokens = contents.reusable_tokens(prompt, engine.can_cut) if contents else 0
    if not contents or not held_tokens:
        return NOTHING_LOADED
    return LoadedState(
        held_tokens,
        contents.unproved_restore,
        None,
        contents.prefilled_ahead.limited_to(len(contents.tokens), held_tokens),
    )


async def find_save_point(
    store: BlockStore, engine: ReadyEngine, owner: str, prompt: Tokens
) -> RestorePlan | RestoreMiss:
    """Return the save point that covers most of a prompt, or the reason why there is none."""
    return await asyncio.to_thread(
        store.restorer.find, engine.fingerprint, prompt, can_cut=engine.can_cut, conversation_id=owner
    )
