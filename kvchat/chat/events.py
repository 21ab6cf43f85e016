"""What the chat tells whoever listens: the window, the tray, `kvchat ask`. Plain values, on the loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from kvchat.chat.record.messages import Attachment, Receipt
from kvchat.engine.speaking.status import EngineStatus
from kvchat.errors import KvchatError
from kvchat.session import events as session
from kvchat.session.proof import Verdict


@dataclass(frozen=True)
class EngineChanged:
    """The engine moved to another state."""

    status: EngineStatus


@dataclass(frozen=True)
class SettingsChanged:
    """The user's settings are others now."""


@dataclass(frozen=True)
class ConversationsChanged:
    """A conversation was made, renamed, deleted or moved to the top."""


@dataclass(frozen=True)
class MessagesChanged:
    """The messages on a conversation's current branch changed other than by a ReplyDelta."""

    conversation_id: str


@dataclass(frozen=True)
class _OfAChat:
    """What a session tells of its owner, told of a chat: `conversation_id` comes first, then what the session says."""

    conversation_id: str


@dataclass(frozen=True)
class WaitingForEngine(session.WaitingForEngine, _OfAChat):
    """A turn waits until the engine is ready."""


@dataclass(frozen=True)
class MakingRoom(session.MakingRoom, _OfAChat):
    """The engine is started again with a larger context, which this conversation needs."""


@dataclass(frozen=True)
class Restoring(session.Restoring, _OfAChat):
    """A save point is being verified and loaded into the slot."""


@dataclass(frozen=True)
class Restored(session.Restored, _OfAChat):
    """The engine answered the restore. Not yet proved: that takes the next request's cache_n."""


@dataclass(frozen=True)
class RestoreFailed(session.RestoreFailed, _OfAChat):
    """The save point could not be used; the turn goes on as an ordinary prefill."""


@dataclass(frozen=True)
class Saving(session.Saving, _OfAChat):
    """The turn boundary is being settled and the slot saved."""


@dataclass(frozen=True)
class Saved(session.Saved, _OfAChat):
    """A save point was kept."""


@dataclass(frozen=True)
class SaveSkipped(session.SaveSkipped, _OfAChat):
    """No save point was kept, and why."""


@dataclass(frozen=True)
class WaitingForWriter:
    """Another kvchat answers in this chat: the turn waits until that is over."""

    conversation_id: str


@dataclass(frozen=True)
class WaitingForChat:
    """Another conversation is answered: the turn waits until that is over."""

    conversation_id: str
    other: str


@dataclass(frozen=True)
class Prefilling:
    """The engine reads the prompt."""

    conversation_id: str
    done: int  # tokens, cached ones included
    total: int
    cached: int


@dataclass(frozen=True)
class FirstToken:
    """The reply has begun; the token counts are the engine's own, so a high `cached_tokens` proves a restore."""

    conversation_id: str
    ttft_ms: float
    cached_tokens: int
    prompt_tokens: int
    verdict: Verdict | None = None  # as the receipt will have it; None: the engine has told no counts yet


@dataclass(frozen=True)
class ReplyDelta:
    """More of the reply's text."""

    conversation_id: str
    message_id: str
    text: str
    thinking: str
    thinking_ms: float | None = None  # how long the thinking took, once it is over


@dataclass(frozen=True)
class Speed:
    """How fast the reply is coming, and how full the context is."""

    conversation_id: str
    tokens_per_second: float
    context_used: int  # tokens


@dataclass(frozen=True)
class Silent:
    """The engine has said nothing for so long; 0 when it goes on."""

    conversation_id: str
    seconds: float


@dataclass(frozen=True)
class ReplyFinished:
    """The reply is whole (or was stopped) and on disk."""

    conversation_id: str
    message_id: str
    receipt: Receipt | None


@dataclass(frozen=True)
class TurnFailed:
    """The turn ended without a whole reply. The user's message, and whatever came of the reply, are on disk."""

    conversation_id: str
    error: KvchatError


@dataclass(frozen=True)
class QuestionNotStored:
    """The user's words could not be put on disk, so nothing was sent: whoever took them must give them back."""

    conversation_id: str
    text: str
    error: KvchatError
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True)
class Absorbed:
    """The store has taken saved states apart; only rows nobody had yet were written."""

    save_points: int
    bytes_written: int


@dataclass(frozen=True)
class Notice:
    """Something the user should know, not tied to a turn; `conversation_id` is the chat it is about, if any."""

    title: str
    detail: str = ""
    conversation_id: str = ""


TurnEvent = (
    WaitingForEngine
    | WaitingForWriter
    | WaitingForChat
    | MakingRoom
    | Restoring
    | Restored
    | RestoreFailed
    | Prefilling
    | FirstToken
    | ReplyDelta
    | Speed
    | Silent
    | ReplyFinished
    | Saving
    | Saved
    | SaveSkipped
    | TurnFailed
)
Event = (
    EngineChanged
    | SettingsChanged
    | ConversationsChanged
    | MessagesChanged
    | QuestionNotStored
    | Absorbed
    | Notice
    | TurnEvent
)
Listener = Callable[[Event], None]

_TOLD = WaitingForEngine, MakingRoom, Restoring, Restored, RestoreFailed, Saving, Saved, SaveSkipped
_OF_A_CHAT: dict[type, Callable[..., TurnEvent]] = {kind.__mro__[1]: kind for kind in _TOLD}


class EventBus:
    """Hands each event to every listener, in order of subscription, at once and on the caller's thread."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Listen from now on; call what is returned to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def publish(self, event: Event) -> None:
        """Tell every listener. What one raises goes to the loop's exception handler: no turn ends for a bad listener.

        Where no loop runs there is no handler, and it is raised.
        """
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:
                _report(error, event)

    def of_chat(self, conversation_id: str) -> session.Tell:
        """What hears a session whose owner is this conversation."""

        def tell(event: session.SessionEvent) -> None:
            if kind := _OF_A_CHAT.get(type(event)):
                self.publish(kind(conversation_id, **vars(event)))

        return tell


def _report(error: Exception, event: Event) -> None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise error from None
    loop.call_exception_handler({"message": f"A listener broke over {type(event).__name__}", "exception": error})
