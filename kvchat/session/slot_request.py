"""Requests for slots: their owner and urgency, and ways to end them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from kvchat.kvstore.savepoint import Tokens
from kvchat.session.slot import TAIL_TOKENS, Slot

SETTLE_WAIT_S = 1.0  # one owner waits this long for another's settling; most finish and are saved
MAX_SETTLE_WAIT_S = 10.0  # programs wait at most this long

StopCallback = Callable[[], object]


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
