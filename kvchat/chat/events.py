"""Chat events for the window, the tray and `kvchat ask`: plain values, on the event loop's thread."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvchat.chat.record.messages import Attachment, Receipt
from kvchat.engine.api.connection import EngineStatus
from kvchat.errors import KvchatError
from kvchat.session.events import EventHandler, RequestSent, SessionEvent
from kvchat.session.proof import Verdict
from kvchat.text.reasons import Reason
from kvchat.tools.tool import ToolCall


@dataclass(frozen=True)
class ChatEvent:
    conversation_id: str


@dataclass(frozen=True)
class EngineChanged:
    status: EngineStatus


@dataclass(frozen=True)
class SettingsChanged:
    pass


@dataclass(frozen=True)
class ConversationsChanged:
    """A conversation was created, renamed, deleted or moved to the top of the list."""


@dataclass(frozen=True)
class LibraryChanged:
    progress_only: bool = False  # only the progress of processing changed


@dataclass(frozen=True)
class MessagesChanged(ChatEvent):
    """The messages on a conversation's current branch changed other than by a ReplyDelta."""


@dataclass(frozen=True)
class WaitingForChat(ChatEvent):
    """The turn waits for a reply in another chat."""


@dataclass(frozen=True)
class Prefilling(ChatEvent):
    done_tokens: int  # including cached tokens
    total: int


@dataclass(frozen=True)
class ReadAheadProgress(ChatEvent):
    done_tokens: int  # processed tokens
    total: int  # tokens to process; equal to `done_tokens`: finished, perhaps early
    draft: bool  # True: the draft; False: the chat


@dataclass(frozen=True)
class ReadAheadSkipped(ChatEvent):
    reason: Reason


@dataclass(frozen=True)
class FirstToken(ChatEvent):
    """The reply has begun. Token counts are the engine's own: a high `cached_tokens` proves a restore."""

    ttft_ms: float
    cached_tokens: int
    prompt_tokens: int
    verdict: Verdict | None = None  # as in the receipt; None: no counts from the engine yet
    restore_ms: float = 0.0  # part of `ttft_ms` spent restoring, as in the receipt
    earlier_tokens: int = 0  # as in the receipt


@dataclass(frozen=True)
class ReplyDelta(ChatEvent):
    message_id: str
    text: str
    thinking: str
    thinking_ms: float | None = None  # set when thinking ends


@dataclass(frozen=True)
class CallsWritten(ChatEvent):
    """The reply's tool calls so far; the arguments of the last may be incomplete."""

    message_id: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True)
class CallsChanged(ChatEvent):
    """A tool call has started or stopped waiting for permission or running (kvchat.chat.turn.tool_calls)."""


@dataclass(frozen=True)
class Speed(ChatEvent):
    tokens_per_second: float
    context_used: int  # tokens


@dataclass(frozen=True)
class EngineSilent(ChatEvent):
    """The engine has sent nothing for `seconds`; 0 when it resumes."""

    seconds: float


@dataclass(frozen=True)
class ReplyFinished(ChatEvent):
    """The reply is complete (or stopped) and on disk."""

    message_id: str
    receipt: Receipt | None


@dataclass(frozen=True)
class TurnFailed(ChatEvent):
    """The turn ended without a complete reply. The user's message and any partial reply are on disk."""

    error: KvchatError


@dataclass(frozen=True)
class QuestionNotStored(ChatEvent):
    """The message could not be stored, so nothing was sent: the sender must get its text back."""

    text: str
    error: KvchatError
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True)
class Absorbed:
    """The store has split saved slot files into blocks."""


@dataclass(frozen=True)
class Notice:
    """A message for the user, not tied to a turn; `conversation_id` is the chat it is about, if any."""

    title: str
    detail: str = ""
    conversation_id: str = ""


TurnEvent = SessionEvent | ChatEvent
Event = EngineChanged | SettingsChanged | ConversationsChanged | LibraryChanged | Absorbed | Notice | TurnEvent
Listener = Callable[[Event], None]


class EventBus:
    """Calls all listeners with each event synchronously, in subscription order, on the caller's thread."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def publish(self, event: Event) -> None:
        """Call every listener. Exceptions go to the loop's exception handler or, if no loop runs, to the caller."""
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:
                try:
                    loop = asyncio.get_running_loop()
                except RuntimeError:
                    raise error from None
                message = f"An event listener failed on {type(event).__name__}"
                loop.call_exception_handler({"message": message, "exception": error})

    def for_chat(self, conversation_id: str) -> EventHandler:
        def notify(event: SessionEvent) -> None:
            if not isinstance(event, RequestSent):  # internal to session and reply
                self.publish(replace(event, conversation_id=conversation_id))

        return notify
