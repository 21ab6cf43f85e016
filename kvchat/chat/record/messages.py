"""Conversations, messages and receipts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from kvchat.session.proof import Source
from kvchat.text.reasons import Reason


class Role(Enum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class MessageState(Enum):
    COMPLETE = "complete"
    EDITED = "edited"  # the user edited the reply
    STREAMING = "streaming"  # in progress; becomes INTERRUPTED after a crash
    STOPPED = "stopped"  # by the user
    LIMITED = "limited"  # reached the token limit or the end of the context
    INTERRUPTED = "interrupted"  # the engine or the app died meanwhile


# Values of the column `writer`, empty for imports:
WRITTEN_HERE, AWAITS_MODEL = "", "awaits_model"  # the latter: a question to answer once there is a model
NEW_CHAT_ID = ""  # the conversation not begun yet, with a draft but no id
QUEUED_PREFIX = "queue/"  # prefix of a conversation's id: draft to send after the current reply
UNFINISHED_STATES = frozenset(
    {MessageState.STOPPED, MessageState.LIMITED, MessageState.INTERRUPTED}
)  # replies to continue


@dataclass(frozen=True)
class Receipt:
    """The cost of one reply, where its prefix came from and, if it missed, why. Times in milliseconds.

    `ttft_ms` runs from Send to the first token on screen and includes `restore_ms`, unless `prefetched`: then the
    restore ended before Send, while the user viewed the conversation. It excludes two waits: for another
    conversation's reply (`queue_wait_ms`), and for an engine start (`engine_wait_ms`).
    """

    ttft_ms: float
    restore_ms: float  # part of the restore after Send, or all of it if `prefetched`; 0: no restore
    prefill_ms: float  # the engine's prompt_ms
    first_token_ms: float  # rest of ttft_ms: templates, network, saving a shared system prompt, first decode
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    tokens_per_second: float
    source: Source
    miss_reason: Reason | None = None
    hollow: bool = False  # a restore answered 200 but reused nothing
    prefetched: bool = False
    restored_bytes: int = 0
    engine_wait_ms: float = 0.0
    queue_wait_ms: float = 0.0
    model: str = ""  # identity of the weights: rates are only valid for one model
    model_name: str = ""  # display name at the time; empty: unknown
    thinking_ms: float | None = None  # from first thinking token to first reply token; None: no thinking
    read_ahead_tokens: int = 0  # prompt tokens processed before Send
    read_ahead_ms: float = 0.0  # time for that; not part of ttft_ms
    settle_ms: float | None = None  # bringing the slot to the turn boundary after the reply; None: unknown
    save_ms: float | None = None  # and saving it there
    saved_ms: float | None = None  # estimate: prefill time saved, at this machine's measured rate
    earlier_tokens: int = 0  # prompt tokens that were already in the previous prompt; 0: unknown
    imported: bool = False  # it continued from unverified memory imported with the chat

    @property
    def total_s(self) -> float:
        writing = self.predicted_tokens / self.tokens_per_second if self.tokens_per_second else 0.0
        return (self.engine_wait_ms + self.queue_wait_ms + self.ttft_ms) / 1000 + writing


@dataclass(frozen=True)
class Attachment:
    name: str
    size: int  # of the original
    hash: str  # BLAKE3 of the original, as hex
    text: str  # document text for the model
    data: bytes = b""  # the file, for pictures


@dataclass(frozen=True)
class Message:
    id: str
    conversation_id: str
    parent_id: str | None
    role: Role
    content: str
    thinking: str
    state: MessageState
    created_at: datetime
    receipt: Receipt | None = None
    siblings: tuple[str, ...] = ()  # ids of all branches at this point, oldest first; empty without others
    attachments: tuple[Attachment, ...] = ()
    awaits_model: bool = False  # a question left unanswered for lack of a model


def new_message(
    conversation_id: str,
    role: Role,
    content: str,
    *,
    parent_id: str | None = None,
    state: MessageState = MessageState.COMPLETE,
    attachments: Sequence[Attachment] = (),
) -> Message:
    now = datetime.now(UTC)
    return Message("", conversation_id, parent_id, role, content, "", state, now, attachments=tuple(attachments))


@dataclass(frozen=True)
class Conversation:
    id: str
    title: str
    title_by_user: bool
    created_at: datetime
    updated_at: datetime
    leaf_id: str | None
    model: str | None = None  # path; None until the first message
    folder: str | None = None
    on_top: bool = False
    archived: bool = False


def searchable_text(message: Message) -> str:
    documents = [part for attachment in message.attachments for part in (attachment.name, attachment.text)]
    return "\n".join(part for part in (message.content, *documents) if part)
