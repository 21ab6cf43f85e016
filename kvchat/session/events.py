"""Events that a session sends to its owner, besides the reply. Plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvchat.session.proof import Loaded
from kvchat.words.reasons import Reason


@dataclass(frozen=True, kw_only=True)
class Told:
    """A session event; the listener for a chat's session adds the chat id."""

    conversation_id: str = ""


@dataclass(frozen=True)
class WaitingForEngine(Told):
    """The request waits until the engine is ready."""


@dataclass(frozen=True)
class MakingRoom(Told):
    """The engine restarts with a larger context, which the request needs."""

    tokens: int  # tokens needed
    done: bool = False  # finished or failed


@dataclass(frozen=True)
class Restoring(Told):
    bytes: int
    tokens: int


@dataclass(frozen=True)
class Restored(Told):
    """The engine accepted the restore. Unproved until the next request's cache_n."""

    bytes: int
    tokens: int
    ms: float  # verification and restore


@dataclass(frozen=True)
class RestoreFailed(Told):
    """The save point was unusable; the request continues as an ordinary prefill."""

    reason: Reason
    hollow: bool = False  # restored without effect, as the engine's count showed


@dataclass(frozen=True)
class Asked(Told):
    """The request is sent to the engine, with the slot prepared."""

    loaded: Loaded


@dataclass(frozen=True)
class Saving(Told):
    """The turn boundary is being settled and the slot saved."""


@dataclass(frozen=True)
class Saved(Told):
    bytes: int
    tokens: int
    ms: float


@dataclass(frozen=True)
class SaveSkipped(Told):
    reason: Reason


SessionEvent = (
    WaitingForEngine | MakingRoom | Restoring | Restored | RestoreFailed | Asked | Saving | Saved | SaveSkipped
)
Tell = Callable[[SessionEvent], None]


def nobody(event: SessionEvent) -> None: ...
