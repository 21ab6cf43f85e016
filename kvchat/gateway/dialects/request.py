"""The dialect of each path, and what the gateway must know of a request. Requests are forwarded unchanged."""

from __future__ import annotations

import json
import json.decoder
import json.scanner
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from kvchat.gateway.dialects.conversion import Json, Unconvertible, from_messages, from_responses

SHARED = ("system", "instructions", "tools")  # shared starts of a program's conversations, beside first messages
LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict")  # clients' names
ANSWERED = (*LIMITS, "stream", "stream_options")  # not part of the prompt
LITTLE = 4000  # bytes of a body
MUCH = 400_000  # bytes; larger bodies are parsed in another thread, which yields
MOST_PARTS = 100_000  # objects and lists in a body; messages, tools and their schemas have thousands
MOST_TOKENS = 2**31  # the engine truncates ids to 32 bits
# Appended to a body: the engine uses the last of equal names. Shifted chunks have other rows than the prompt's.
MINE = b',"id_slot":%d,"cache_prompt":%b,"n_cache_reuse":0}'


class Form(Enum):
    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"
    MESSAGES = "messages"
    PLAIN = "plain"  # generates nothing


# These endpoints generate and need a slot.
GENERATING = {
    "/v1/chat/completions": Form.CHAT,
    "/chat/completions": Form.CHAT,
    "/v1/completions": Form.COMPLETION,
    "/v1/responses": Form.RESPONSES,
    "/responses": Form.RESPONSES,
    "/v1/messages": Form.MESSAGES,
}
# Engine endpoints forwarded without a slot: counting tokens and rendering templates need none.
ASIDE = (
    "/v1/messages/count_tokens",
    "/v1/chat/completions/input_tokens",
    "/v1/responses/input_tokens",
    "/apply-template",
    "/tokenize",
    "/detokenize",
)
# These use a slot of the engine's choice and leave no reusable state in it.
READING = ("/v1/embeddings", "/embeddings", "/rerank", "/v1/rerank", "/reranking", "/v1/reranking")


class RequestRefused(Exception):
    """The request is rejected. `kind` is the OpenAI error type."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error", again_s: int = 0) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.again_s = again_s  # seconds until the client may retry


@dataclass(frozen=True)
class ParsedRequest:
    form: Form
    raw: bytes
    body: Json

    @property
    def stream(self) -> bool:
        return self.body.get("stream") is True

    @property
    def model(self) -> str:
        name = self.body.get("model")
        return name if isinstance(name, str) else ""

    @property
    def is_large(self) -> bool:
        return len(self.raw) > MUCH

    @cached_property
    def several(self) -> bool:
        """True if the request needs several slots: one per answer, or any number for embeddings."""
        prompt, prompts = self.body.get("prompt"), 1
        if self.form is Form.COMPLETION and isinstance(prompt, list):
            # Token ids and texts in one list form one prompt; a text may have pictures.
            is_list = not any(isinstance(part, int) for part in prompt)
            prompts = len(prompt) if is_list and any(isinstance(part, str | list | dict) for part in prompt) else 1
        return self.form is Form.PLAIN or prompts > 1 or not self._wants_one

    @property
    def _wants_one(self) -> bool:
        """True if the answer count is missing or the integer 1: the engine also reads 2.0 as 2."""
        counts = (self.body.get(name) for name in ("n", "n_cmpl"))
        return all(count is None or (type(count) is int and count == 1) for count in counts)

    def check(self) -> None:
        """Raise Refused for a body that the engine would misinterpret."""
        if self.form is Form.MESSAGES and not self._wants_one:
            raise RequestRefused(400, "This API gives one answer to a request: leave out “n”.")
        if self.body.get("lora"):  # LoRA rows in the slot would not match the model's
            raise RequestRefused(400, "LoRA adapters cannot be chosen in a request.")
        prompt = self.body.get("prompt")
        if self.form is Form.COMPLETION and isinstance(prompt, list):
            lists = (prompt, *(ids for ids in prompt if isinstance(ids, list)))
            if any(type(token) is int and not 0 <= token < MOST_TOKENS for ids in lists for token in ids):
                raise RequestRefused(400, "The prompt has token ids that no vocabulary has.")

    def goes_on_from(self, before: ParsedRequest) -> bool:
        """True if its prompt most likely extends the other's by only a little."""
        listed = {Form.COMPLETION: "prompt", Form.RESPONSES: "input"}.get(self.form, "messages")
        said, then = self.body.get(listed), before.body.get(listed)
        if self.form is not before.form or not isinstance(said, list | str) or not isinstance(then, type(said)):
            return False
        others = [{n: v for n, v in asked.body.items() if n not in (listed, *ANSWERED)} for asked in (self, before)]
        little = len(self.raw) - len(before.raw) <= LITTLE
        return little and others[0] == others[1] and said[: len(then)] == then

    def for_slot(self, slot: int, *, reuse: bool) -> bytes:
        """Return the unchanged body pinned to a slot, overriding the client's choice.

        `reuse`: the engine may reuse the slot's contents.
        """
        raw = self.raw.rstrip()
        mine = MINE % (slot, b"true" if reuse else b"false")
        return raw[:-1] + mine if self.body else b"{" + mine[1:]

    def begun_otherwise(self, words: str) -> Json | None:
        """Make another conversation with the same system prompt and tools that starts with `words`.

        None if there is no such common beginning.
        """
        listed = "input" if self.form is Form.RESPONSES else "messages"
        first: list[Any] = []
        for turn in _list(self.body.get(listed)):
            if not isinstance(turn, dict) or turn.get("role") not in ("system", "developer"):
                break
            first.append(turn)
        if self.form is Form.COMPLETION or not (first or any(self.body.get(name) for name in SHARED)):
            return None
        return as_chat(self.form, self.body | {listed: [*first, _user(words)]})

    def followed_by(self, reply: Json, words: str) -> Json | str | None:
        """Make the most likely next request, a chat completion or a text: `words` after the reply.

        None if it is unknown.
        """
        listed = "input" if self.form is Form.RESPONSES else "messages"
        said = _list(self.body.get(listed))
        match self.form:
            case Form.COMPLETION:
                prompt = self.body.get("prompt")
                return f"{prompt}{reply.get('text') or ''}{words}" if isinstance(prompt, str) else None
            case Form.CHAT:
                # Include reasoning only if the client has sent any before.
                thinks = any(isinstance(turn, dict) and turn.get("reasoning_content") for turn in said)
                more = [{name: value for name, value in reply.items() if thinks or name != "reasoning_content"}]
                calls = reply.get("tool_calls") or ()
                result = {"role": "tool", "tool_call_id": calls[0].get("id", ""), "content": words} if calls else None
            case Form.MESSAGES:
                more = [{"role": "assistant", "content": reply.get("content")}]
                used = _first(reply.get("content") or (), "tool_use")
                answer = {"type": "tool_result", "tool_use_id": used.get("id"), "content": words}
                result = {"role": "user", "content": [answer]} if used else None
            case Form.RESPONSES:
                asked, more = self.body.get("input"), _list(reply.get("output"))
                said = [_user(asked)] if isinstance(asked, str) else said
                call = _first(more, "function_call")
                output = {"type": "function_call_output", "call_id": call.get("call_id"), "output": words}
                result = output if call else None
            case _:
                return None
        if said and isinstance(said[-1], dict) and said[-1].get("role") == "assistant":
            return None  # a continued reply: how the client will send it back is unknown
        return as_chat(self.form, self.body | {listed: [*said, *more, result or _user(words)]})


def parse_request(form: Form, raw: bytes) -> ParsedRequest:
    """Parse a body. Raises Refused."""
    try:
        text = raw.decode("utf-8-sig")
        body = _Patient().decode(text) if len(raw) > MUCH else json.loads(text)
        if not isinstance(body, dict):
            raise ValueError("The body must be a JSON object.")
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, f"The body is not JSON: {error}") from error
    return ParsedRequest(form, raw, body)


def as_chat(form: Form, body: Json) -> Json:
    """Convert a body to a chat completion, for `/apply-template`. Raises Unconvertible."""
    try:
        match form:
            case Form.CHAT:
                return body
            case Form.MESSAGES:
                return from_messages(body)
            case Form.RESPONSES:
                return from_responses(body)
    except (KeyError, TypeError, AttributeError) as error:
        raise Unconvertible(str(error)) from error
    raise Unconvertible("it has no messages")


def refusal(form: Form | None, status: int, message: str, kind: str) -> Json:
    """Return an error in the dialect's format. `kind` is OpenAI's; Anthropic's is derived."""
    if form is Form.MESSAGES:
        kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
        kinds |= {413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error"}
        named = kinds.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": named, "message": message}}
    return {"error": {"code": status, "message": message, "type": kind, "param": None}}


def _user(words: str) -> Json:
    return {"role": "user", "content": words}


def _first(parts: Iterable[Json], kind: str) -> Json:
    return next((part for part in parts if part.get("type") == kind), {})


class _Patient(json.JSONDecoder):
    """JSON decoder that lets other threads run; the default one is three times as fast but blocks them."""

    def __init__(self) -> None:
        super().__init__()
        self._parts = 0
        self.parse_object = self._counted(json.decoder.JSONObject)  # type: ignore[attr-defined]
        self.parse_array = self._counted(json.decoder.JSONArray)  # type: ignore[attr-defined]
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def _counted(self, parse: Callable[..., tuple[Any, int]]) -> Callable[..., tuple[Any, int]]:
        def counted(*args: Any) -> tuple[Any, int]:
            self._parts += 1
            if self._parts > MOST_PARTS:
                raise ValueError(f"It has more than {MOST_PARTS:,} parts.")
            return parse(*args)

        return counted


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
