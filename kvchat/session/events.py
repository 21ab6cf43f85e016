"""Events that a session sends to its owner, besides the reply. Plain values."""

from collections.abc import Callable
from dataclasses import dataclass

from kvchat.session.proof import LoadedState
from kvchat.text.reasons import Reason


@dataclass(frozen=True, kw_only=True)
class BaseSessionEvent:
    """A session event; the listener for a chat's session adds the chat id."""

    conversation_id: str = ""


@dataclass(frozen=True)
class WaitingForEngine(BaseSessionEvent):
    """The request waits until the engine is ready."""


@dataclass(frozen=True)
class IncreasingContext(BaseSessionEvent):
    """The engine restarts with a larger context, which the request needs."""

    tokens: int  # tokens needed
    is_finished: bool = False  # finished or failed


@dataclass(frozen=True)
class Restoring(BaseSessionEvent):
    bytes: int
    tokens: int


@dataclass(frozen=True)
class Restored(BaseSessionEvent):
    """The engine accepted the restore, which is unproved until the next request's cache_n."""

    bytes: int
    tokens: int
    ms: float  # verification and restore


@dataclass(frozen=True)
class RestoreFailed(BaseSessionEvent):
    """The save point was unusable; the request continues as an ordinary prefill."""

    reason: Reason
    hollow: bool = False  # restored without effect, as the engine's count showed


@dataclass(frozen=True)
class RequestSent(BaseSessionEvent):
    """The request is sent to the engine, with the slot prepared."""

    loaded: LoadedState


@dataclass(frozen=True)
class Saving(BaseSessionEvent):
    """The turn boundary is being settled and the slot saved."""


@dataclass(frozen=True)
class Saved(BaseSessionEvent):
    bytes: int
    tokens: int
    ms: float


@dataclass(frozen=True)
class SaveSkipped(BaseSessionEvent):
    reason: Reason


SessionEvent = (
    WaitingForEngine
    | IncreasingContext
    | Restoring
    | Restored
    | RestoreFailed
    | RequestSent
    | Saving
    | Saved
    | SaveSkipped
)
EventHandler = Callable[[SessionEvent], None]


def ignore_event(event: SessionEvent) -> None: ...
