"""Parsed requests, and the dialect of each path."""

import itertools
import json
import json.decoder
import json.scanner
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from kvchat.engine.api.wire import Picture
from kvchat.gateway.dialects.conversion import Json, Unconvertible, from_messages, from_responses, split_pictures

LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict")  # clients' names
THREAD_BYTES = 400_000  # larger bodies are parsed in another thread, which yields
MAX_PARTS = 100_000  # objects and lists in a body; messages, tools and their schemas have thousands
MAX_TOKEN_ID = 2**31  # the engine truncates ids to 32 bits
# Appended to a body: the engine uses the last of equal names. Shifted chunks have other rows than the prompt's.
SLOT_OPTIONS = b',"id_slot":%d,"cache_prompt":%b,"n_cache_reuse":0}'


class Dialect(Enum):
    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"
    MESSAGES = "messages"
    PLAIN = "plain"  # generates nothing


# These endpoints generate and need a slot.
GENERATING_PATHS = {
    "/v1/chat/completions": Dialect.CHAT,
    "/chat/completions": Dialect.CHAT,
    "/v1/completions": Dialect.COMPLETION,
    "/v1/responses": Dialect.RESPONSES,
    "/responses": Dialect.RESPONSES,
    "/v1/messages": Dialect.MESSAGES,
}
# Engine endpoints forwarded without a slot: counting tokens and rendering templates need none.
SLOTLESS_PATHS = (
    "/v1/messages/count_tokens",
    "/v1/chat/completions/input_tokens",
    "/v1/responses/input_tokens",
    "/apply-template",
    "/tokenize",
    "/detokenize",
)
# These use a slot of the engine's choice and leave no reusable state in it.
EMBEDDING_PATHS = ("/v1/embeddings", "/embeddings", "/rerank", "/v1/rerank", "/reranking", "/v1/reranking")


class RequestRefused(Exception):
    """Refusal of a request with an HTTP status; `kind` is the OpenAI error type."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error", retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class ParsedRequest:
    dialect: Dialect
    raw: bytes
    body: Json

    @property
    def stream(self) -> bool:
        return self.body.get("stream") is True

    @property
    def wants_progress(self) -> bool:
        """True if the client wants llama-server's progress events while the prompt is processed."""
        return self.stream and self.dialect is Dialect.CHAT and self.body.get("return_progress") is True

    @property
    def model(self) -> str:
        name = self.body.get("model")
        return name if isinstance(name, str) else ""

    @property
    def is_large(self) -> bool:
        return len(self.raw) > THREAD_BYTES

    @property
    def max_tokens(self) -> int | None:
        limits = (self.body.get(name) for name in LIMITS)
        return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)

    @cached_property
    def needs_several_slots(self) -> bool:
        """True if the request may use several slots.

        This applies to a request that has several prompts or answers, or that generates nothing (such as embeddings).
        """
        prompt, prompts = self.body.get("prompt"), 1
        if self.dialect is Dialect.COMPLETION and isinstance(prompt, list):
            # Token ids and texts in one list form one prompt; a text may have pictures.
            is_list = not any(isinstance(part, int) for part in prompt)
            prompts = len(prompt) if is_list and any(isinstance(part, str | list | dict) for part in prompt) else 1
        return self.dialect is Dialect.PLAIN or prompts > 1 or not self._wants_one_answer

    @property
    def _wants_one_answer(self) -> bool:
        """True if the answer count is missing or the integer 1. Floats do not count: the engine reads 2.0 as 2."""
        counts = (self.body.get(name) for name in ("n", "n_cmpl"))
        return all(count is None or (type(count) is int and count == 1) for count in counts)

    def check(self) -> None:
        """Raise RequestRefused for a body that the engine would misinterpret."""
        if self.dialect is Dialect.MESSAGES and not self._wants_one_answer:
            raise RequestRefused(400, "This API returns one response per request; omit “n”.")
        if self.body.get("lora"):  # LoRA rows in the slot would not match the model's
            raise RequestRefused(400, "Requests cannot select LoRA adapters.")
        prompt = self.body.get("prompt")
        if self.dialect is Dialect.COMPLETION and isinstance(prompt, list):
            lists = (prompt, *(ids for ids in prompt if isinstance(ids, list)))
            if any(type(token) is int and not 0 <= token < MAX_TOKEN_ID for ids in lists for token in ids):
                raise RequestRefused(400, "The prompt contains invalid token ids.")

    def body_for_slot(self, slot: int, *, reuse: bool) -> bytes:
        """Return the body with appended options that pin it to a slot, overriding the client's.

        `reuse`: True if the engine may reuse the slot's contents.
        """
        raw = self.raw.rstrip()
        options = SLOT_OPTIONS % (slot, b"true" if reuse else b"false")
        return raw[:-1] + options if self.body else b"{" + options[1:]

    @cached_property
    def chat(self) -> Json:
        """The request as a chat completion, for `/apply-template`. Raises Unconvertible."""
        try:
            match self.dialect:
                case Dialect.CHAT:
                    return self.body
                case Dialect.MESSAGES:
                    return from_messages(self.body)
                case Dialect.RESPONSES:
                    return from_responses(self.body)
        except (KeyError, TypeError, AttributeError) as error:
            raise Unconvertible(str(error)) from error
        raise Unconvertible("the request has no messages")

    @cached_property
    def chat_and_pictures(self) -> tuple[Json, tuple[Picture, ...]]:
        """`chat` with image placeholders, and the images. Raises Unconvertible."""
        return split_pictures(self.chat)

    def new_conversation(self, text: str) -> Json | None:
        """Return the first request of a new conversation: this system prompt and tools, and `text` from the user.

        None for a text completion, or without system prompt and tools. Raises Unconvertible.
        """
        if self.dialect is Dialect.COMPLETION:
            return None
        messages = _list(self.chat.get("messages"))
        system = [*itertools.takewhile(lambda message: _role(message) in ("system", "developer"), messages)]
        if not (system or self.chat.get("tools")):
            return None
        return self.chat | {"messages": [*system, {"role": "user", "content": text}]}

    @property
    def has_draft(self) -> bool:
        """True if the last message is from the user."""
        messages = _list(self.body.get("messages"))
        return bool(messages) and _role(messages[-1]) == "user"

    def with_longer_draft(self, text: str) -> Json:
        """Return this request with `text` appended to its last user message, or as a new one. Raises Unconvertible."""
        messages = _list(self.chat.get("messages"))
        draft = messages[-1] if messages and _role(messages[-1]) == "user" else None
        if draft is None:
            return self.chat | {"messages": [*messages, {"role": "user", "content": text}]}
        if not isinstance(content := draft.get("content"), str):
            raise Unconvertible("the draft has pictures")
        return self.chat | {"messages": [*messages[:-1], draft | {"content": f"{content}{text}"}]}

    def next_request(self, reply: Json, text: str) -> Json | str | None:
        """Return the likely next request: this request, the reply, then `text` from the user or a tool.

        A chat completion or, for text completions, a prompt; None if unpredictable. Raises Unconvertible.
        """
        if self.dialect is Dialect.COMPLETION:
            prompt = self.body.get("prompt")
            return f"{prompt}{reply.get('text') or ''}{text}" if isinstance(prompt, str) else None
        messages = _list(self.chat.get("messages"))
        if messages and _role(messages[-1]) == "assistant":
            return None  # a continued reply: how the client will send it back is unknown
        match self.dialect:
            case Dialect.MESSAGES:
                more = from_messages({"messages": [{"role": "assistant", "content": reply.get("content")}]})["messages"]
            case Dialect.RESPONSES:
                more = from_responses({"input": reply.get("output")})["messages"]
            case _:
                more = [reply]
                if not any(isinstance(turn, dict) and turn.get("reasoning_content") for turn in messages):
                    # The client has sent no reasoning before.
                    more = [{name: value for name, value in reply.items() if name != "reasoning_content"}]
        following: Json = {"role": "user", "content": text}
        if more and (calls := more[-1].get("tool_calls")):
            following = {"role": "tool", "tool_call_id": calls[0].get("id", ""), "content": text}
        return self.chat | {"messages": [*messages, *more, following]}


def parse_request(dialect: Dialect, raw: bytes) -> ParsedRequest:
    """Parse a request body. Raises RequestRefused if it is not a JSON object."""
    try:
        text = raw.decode("utf-8-sig")
        body = _YieldingDecoder().decode(text) if len(raw) > THREAD_BYTES else json.loads(text)
        if not isinstance(body, dict):
            raise ValueError("it is not an object")
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, f"The request body is not a valid JSON object: {error}") from error
    return ParsedRequest(dialect, raw, body)


def refusal(dialect: Dialect | None, status: int, message: str, kind: str) -> Json:
    """Return an error in the dialect's format. `kind` is OpenAI's type; Anthropic's depends on `status`."""
    if dialect is Dialect.MESSAGES:
        kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
        kinds |= {413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error"}
        named = kinds.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": named, "message": message}}
    return {"error": {"code": status, "message": message, "type": kind, "param": None}}


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class _YieldingDecoder(json.JSONDecoder):
    """JSON decoder that lets other threads run; the default decoder blocks them but is three times as fast."""

    def __init__(self) -> None:
        super().__init__()
        self._parts = 0
        self.parse_object = self._counted(json.decoder.JSONObject)  # type: ignore[attr-defined]
        self.parse_array = self._counted(json.decoder.JSONArray)  # type: ignore[attr-defined]
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def _counted(self, parse: Callable[..., tuple[Any, int]]) -> Callable[..., tuple[Any, int]]:
        def counted(*args: Any) -> tuple[Any, int]:
            self._parts += 1
            if self._parts > MAX_PARTS:
                raise ValueError(f"it has more than {MAX_PARTS:,} elements")
            return parse(*args)

        return counted
