"""Conversations, messages and receipts: as values, from and to database rows, and as prompts.

A damaged value in a row is dropped; its message and chat are kept.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sqlite3
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, get_type_hints

from kvchat.session.proof import Source
from kvchat.text.reasons import Reason, parse_reason
from kvchat.text.safe_text import safe_prose
from kvchat.tools.tool import ToolCall, prompt_tools

if TYPE_CHECKING:
    from kvchat.engine.api.wire import ChatMessage, Picture


class Role(Enum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"  # the result of a call in the reply above it


class MessageState(Enum):
    COMPLETE = "complete"
    EDITED = "edited"  # the user edited the reply
    STREAMING = "streaming"  # in progress; becomes INTERRUPTED after a crash
    STOPPED = "stopped"  # by the user
    LIMITED = "limited"  # reached the token limit or the end of the context
    INTERRUPTED = "interrupted"  # the engine or the app died meanwhile
    FAILED = "failed"  # a tool's result: the call failed, and the text says why


# Values of the column `writer`, empty for imports:
WRITTEN_HERE, AWAITS_MODEL = "", "awaits_model"  # the latter: a question to answer once there is a model
NO_RESULT = "No result."  # for the model, where a call's result is missing
NEW_CHAT_ID = ""  # the conversation not begun yet, with a draft but no id
QUEUED_PREFIX = "queue/"  # prefix of a conversation's id: draft to send after the current reply
UNFINISHED_STATES = (MessageState.STOPPED, MessageState.LIMITED, MessageState.INTERRUPTED)  # replies to continue


@dataclass(frozen=True)
class Receipt:
    """The cost of one reply, the source of its prompt's prefix and, if nothing was reused, the reason. Times in ms.

    `ttft_ms` runs from Send to the first token on screen and includes `restore_ms`, unless `prefetched`: then the
    restore ended before Send, while the user viewed the conversation. It excludes two waits: for another conversation's
    reply (`queue_wait_ms`), and for an engine start (`engine_wait_ms`).
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
    whole: str = ""  # text of a document too long for the context; `text` then says so (kvchat.chat.lookup)
    source: str = ""  # of quoted passages: their document's hash

    @property
    def full_text(self) -> str:
        return self.whole or self.text


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
    calls: tuple[ToolCall, ...] = ()  # of a reply; of a tool's result, the call as it was executed
    tool_ms: float | None = None  # of a tool's result: time to execute the call, without waiting for permission
    tools: str = ""  # of a system prompt: the chat's tools, see kvchat.tools.tool.freeze
    links: tuple[tuple[str, str], ...] = ()  # of a tool result: name and URL, to show
    is_unseen: bool = False  # tool result with images that the model could not read


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
    documents = [part for attachment in message.attachments for part in (attachment.name, attachment.full_text)]
    calls = [part for call in message.calls for part in (call.name, call.arguments)]
    return "\n".join(part for part in (message.content, *calls, *documents) if part)


MAX_TIMESTAMP = 253402300799.0  # seconds since 1970: the end of the year 9999, the maximum of datetime

_RECEIPT_TYPES = get_type_hints(Receipt)


def conversation_from_row(row: sqlite3.Row) -> Conversation:
    return Conversation(
        id=as_text(row["id"]),
        title=safe_prose(as_text(row["title"])),
        title_by_user=bool(row["title_by_user"]),
        created_at=as_datetime(row["created_at"]),
        updated_at=as_datetime(row["updated_at"]),
        leaf_id=_optional_text(row["leaf_id"]),
        model=_optional_text(row["model"]),
        folder=_optional_text(row["folder"]),
        on_top=bool(row["on_top"]),
        archived=bool(row["archived"]),
    )


def message_from_row(row: sqlite3.Row) -> Message:
    return Message(
        id=as_text(row["id"]),
        conversation_id=as_text(row["conversation_id"]),
        parent_id=_optional_text(row["parent_id"]),
        role=role_from_row(row),
        content=as_text(row["content"]),
        thinking=as_text(row["thinking"]),
        state=parse_state(row["state"]),
        created_at=as_datetime(row["created_at"]),
        receipt=parse_receipt(row["receipt"]) if row["receipt"] else None,
        awaits_model=row["writer"] == AWAITS_MODEL,
        **(_tool_fields(row["tool"]) if row["tool"] else {}),
    )


def tool_column(message: Message) -> str | None:
    """Return the column `tools` of a message's row: its calls, their duration and the frozen tools, as JSON text."""
    calls = [[call.id, call.name, call.arguments] for call in message.calls]
    fields: dict[str, Any] = {"calls": calls, "ms": message.tool_ms, "tools": message.tools}
    fields |= {"links": message.links, "unseen": message.is_unseen}
    fields = {name: value for name, value in fields.items() if value}
    return json.dumps(fields, ensure_ascii=False) if fields else None


def _tool_fields(column: Any) -> dict[str, Any]:
    try:
        fields = json.loads(column)
        calls = tuple(
            ToolCall(as_text(id), as_text(name), as_text(given)) for id, name, given in fields.get("calls", ())
        )
        ms = fields.get("ms")
        return {
            "calls": calls,
            "tool_ms": float(ms) if isinstance(ms, int | float) and math.isfinite(ms) else None,
            "tools": as_text(fields.get("tools")),
            "links": tuple((as_text(name), as_text(url)) for name, url in fields.get("links", ())),
            "is_unseen": bool(fields.get("unseen")),
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def attachment_from_row(row: sqlite3.Row | Mapping[str, Any]) -> Attachment:
    size, data = row["size"], row["data"]
    return Attachment(
        as_text(row["name"]),
        size if isinstance(size, int) else 0,
        as_text(row["hash"]),
        as_text(row["text"]),
        data if isinstance(data, bytes) else b"",
        as_text(row["whole"]),
        as_text(row["source"]),
    )


def role_from_row(row: sqlite3.Row) -> Role:
    try:
        return Role(row["role"])
    except ValueError:
        return Role.ASSISTANT if row["receipt"] or row["thinking"] else Role.USER


def parse_state(value: Any) -> MessageState:
    try:
        return MessageState(value)
    except ValueError:
        return MessageState.COMPLETE


def receipt_to_json(receipt: Receipt) -> str:
    return json.dumps(dataclasses.asdict(receipt) | {"source": receipt.source.value})


def parse_receipt(text: Any) -> Receipt | None:
    """Parse a stored receipt, ignoring fields of a newer kvchat; None if it is unreadable."""
    try:
        fields = json.loads(text)
        known = {name: value for name, value in fields.items() if name in _RECEIPT_TYPES}
        reason = parse_reason(known.get("miss_reason"))
        receipt = Receipt(**(known | {"source": Source(fields["source"]), "miss_reason": reason}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return receipt if all(_has_type(getattr(receipt, name), kind) for name, kind in _RECEIPT_TYPES.items()) else None


def _has_type(value: Any, kind: Any) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return math.isfinite(value) and (isinstance(0, kind) or isinstance(0.0, kind))
    return isinstance(value, kind)


def as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else "" if value is None else str(value)


def _optional_text(value: Any) -> str | None:
    return None if value is None else as_text(value)


def as_datetime(value: Any) -> datetime:
    fits = isinstance(value, int | float) and 0 <= value <= MAX_TIMESTAMP
    return datetime.fromtimestamp(value if fits else 0, UTC)


def prompt_messages(branch: Sequence[Message], *, continues_reply: bool = False) -> list[ChatMessage]:
    """Build the chat template's input; `continues_reply`: the last message is a reply to continue.

    Each call gets exactly one result, as templates expect: a missing one is made up, and a result without a call, which
    only a file can have, becomes a user's message.
    """
    from kvchat.engine.api.pictures import without_pictures  # the first frame needs no prompts
    from kvchat.engine.api.wire import ChatMessage

    joined: list[ChatMessage] = []
    calls: tuple[ToolCall, ...] = ()
    results: list[Message] = []

    def add(message: Message, role: Role, calls: tuple[ToolCall, ...] = ()) -> None:
        content, pictures = prompt_content(message), pictures_of(message)
        if joined and (last := joined[-1]).role == role.value and not last.calls:
            text = "\n\n".join(part for part in (last.content, content) if part)
            joined[-1] = replace(last, content=text, pictures=last.pictures + pictures, calls=calls)
        else:
            tools = prompt_tools(message.tools)
            joined.append(ChatMessage(role.value, content, message.thinking, pictures, calls, tools))

    def add_results() -> None:
        paired, others = pair_results(calls, results)
        for call, result in zip(calls, paired, strict=True):
            if result is None:
                joined.append(ChatMessage("tool", NO_RESULT, calls=(call,)))
                continue
            answer = ChatMessage("tool", result.content, pictures=pictures_of(result), calls=(call,))
            joined.append(without_pictures(answer) if result.is_unseen else answer)
        for result in others:
            add(result, Role.USER)

    for number, message in enumerate(branch, start=1):
        if message.role is Role.TOOL:
            results.append(message)
            continue
        continued = continues_reply and number == len(branch)  # the reply may contain only thinking
        says_nothing = not message.content.strip() and not message.attachments and not message.calls
        if says_nothing and message.role is not Role.USER and not continued and not message.tools:
            continue
        add_results()
        calls, results = _valid_calls(message) if message.role is Role.ASSISTANT else (), []
        add(message, message.role, calls)
    if results:
        add_results()
    return joined


def pair_results(calls: Sequence[ToolCall], results: Iterable[Message]) -> tuple[list[Message | None], list[Message]]:
    """Return each call's result, or None, and results without a call. Calls with equal ids are answered in order."""
    places = defaultdict[str, deque[int]](deque)
    for place, call in enumerate(calls):
        places[call.id].append(place)
    paired: list[Message | None] = [None] * len(calls)
    others: list[Message] = []
    for result in results:
        if waiting := places.get(result.calls[0].id if result.calls else ""):
            paired[waiting.popleft()] = result
        else:
            others.append(result)
    return paired, others


def open_calls(branch: Sequence[Message]) -> tuple[Message | None, list[ToolCall]]:
    """Return the reply that ends a branch, apart from results of its calls, and its calls without a result."""
    reply = next((message for message in reversed(branch) if message.role is not Role.TOOL), None)
    if reply is None or reply.role is not Role.ASSISTANT:
        return None, []
    paired, _others = pair_results(reply.calls, branch[branch.index(reply) + 1 :])
    return reply, [call for call, result in zip(reply.calls, paired, strict=True) if result is None]


def _valid_calls(message: Message) -> tuple[ToolCall, ...]:
    """Return the message's calls with arguments that every template accepts: a JSON object."""
    return tuple(
        call if parse_arguments(call.arguments) is not None else replace(call, arguments="{}") for call in message.calls
    )


def parse_arguments(text: str) -> dict[str, Any] | None:
    """Return a call's arguments, or None if they are not a JSON object that every engine can read."""
    try:
        arguments = json.loads(text or "{}")
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()  # no NaN, 1e999 or half of a character
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def prompt_content(message: Message) -> str:
    """Return a message as the model reads it: documents first, so that other questions share the prefix."""
    documents = []
    for attachment in message.attachments:
        if not attachment.data:
            name = attachment.name.replace('"', "'")
            documents.append(f'<document name="{name}">\n{attachment.text.strip()}\n</document>')
    return "\n\n".join(part for part in (*documents, message.content) if part)


def pictures_of(message: Message) -> tuple[Picture, ...]:
    """Return the pictures for a model that supports images, including unseen ones (`Message.is_unseen`)."""
    from kvchat.engine.api.wire import Picture

    return tuple(Picture(attachment.data) for attachment in message.attachments if attachment.data)


def quotable_documents(branch: Iterable[Message]) -> list[Attachment]:
    """Return the documents of which only passages are quoted (kvchat.chat.lookup)."""
    return list({a.hash: a for message in branch for a in message.attachments if a.whole}.values())


def needs_vision(messages: Sequence[ChatMessage]) -> bool:
    return any(message.pictures for message in messages)


def ends_with_reply(branch: Sequence[Message]) -> bool:
    messages = prompt_messages(branch)
    return bool(messages) and messages[-1].role == Role.ASSISTANT.value
