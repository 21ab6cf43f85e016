"""Events that a session sends to its owner, besides the reply. Plain values."""

from collections.abc import Callable
from dataclasses import dataclass

from kvchat.session.proof import LoadedState
from kvchat.text.reasons import Reason


@dataclass(frozen=True, kw_only=True)
class SessionEvent:
    """Base of all session events; the listener for a chat's session adds the chat id."""

    conversation_id: str = ""


@dataclass(frozen=True)
class WaitingForEngine(SessionEvent):
    """The request waits until the engine is ready."""


@dataclass(frozen=True)
class IncreasingContext(SessionEvent):
    """The engine restarts with a larger context, which the request needs."""

    tokens: int  # tokens needed
    is_finished: bool = False  # finished or failed


@dataclass(frozen=True)
class Restoring(SessionEvent):
    bytes: int
    tokens: int


@dataclass(frozen=True)
class Restored(SessionEvent):
    """The engine accepted the restore, which is unproved until the next request's cache_n."""

    bytes: int
    tokens: int
    ms: float  # verification and restore


@dataclass(frozen=True)
class RestoreFailed(SessionEvent):
    """The save point was unusable; the request continues as an ordinary prefill."""

    reason: Reason
    hollow: bool = False  # restored without effect, as the engine's count showed


@dataclass(frozen=True)
class RequestSent(SessionEvent):
    """The request is sent to the engine, with the slot prepared."""

    loaded: LoadedState


@dataclass(frozen=True)
class Saving(SessionEvent):
    """The turn boundary is being settled and the slot saved."""


@dataclass(frozen=True)
class Saved(SessionEvent):
    bytes: int
    tokens: int
    ms: float


@dataclass(frozen=True)
class SaveSkipped(SessionEvent):
    reason: Reason


EventHandler = Callable[[SessionEvent], None]


def ignore_event(event: SessionEvent) -> None: ...
