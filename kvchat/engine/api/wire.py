"""Bodies of requests to llama-server, and parsers for its responses. No I/O.

Field names are those in llama.cpp's tools/server/README.md. Servers differ by version, so a field that is missing or
has the wrong type counts as empty.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from kvchat.engine.api.errors import EngineRefused
from kvchat.system.files import parse_json
from kvchat.text.safe_text import safe_name
from kvchat.tools.tool import ToolCall

Body = dict[str, Any]
T = TypeVar("T")

_MAX_NUMBER, _MAX_TIME = 2.0**53, 4e9  # s
_CHUNK_BYTES = 200_000  # of a response of /tokenize, parsed at once
# More would overflow the stack of llama-server, which parses recursively.
MAX_NESTING = 200  # nested objects and lists in a body, or brackets in a grammar
MAX_GRAMMAR_CHARS = 50_000  # in a grammar, or in a JSON schema that is converted to one
_BRACKET = re.compile(r"[()\[\]{}]")


@dataclass(frozen=True)
class PromptProgress:
    """The progress of processing a prompt, in tokens."""

    total: int
    cache: int  # taken from the KV cache
    processed: int  # done so far, those from the cache included


@dataclass(frozen=True)
class Timings:
    """Token counts and durations of a request. The names are llama-server's."""

    cache_n: int  # prompt tokens taken from the KV cache
    prompt_n: int  # prompt tokens processed
    prompt_ms: float
    predicted_n: int  # tokens of the reply
    predicted_ms: float

    @property
    def prompt_tokens(self) -> int:
        return self.cache_n + self.prompt_n

    @property
    def tokens_per_second(self) -> float:
        return 1000.0 * self.predicted_n / self.predicted_ms if self.predicted_ms > 1.0 else 0.0


@dataclass(frozen=True)
class CallDelta:
    """A piece of a tool call. `id` and `name` come with the first piece; the pieces of `arguments` are joined."""

    index: int  # of the call in its reply
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ServerMemory:
    """Memory that a server, which is a kvchat itself, has used for a prompt."""

    source: str  # value of session.proof.Source; "": unknown
    found: int  # prompt tokens found
    miss: str  # code of the reason why the rest was processed, or ""
    restore_ms: float
    restored_bytes: int
    ahead: int  # tokens processed before they were requested
    ahead_ms: float


@dataclass(frozen=True)
class MemoryForecast:
    """Memory that another kvchat could load for a prompt."""

    source: str  # value of session.proof.Source
    ready: int  # tokens that need not be processed
    total: int
    bytes: int  # to restore


@dataclass(frozen=True)
class ChatMemory:
    """The memory that another kvchat keeps of a chat."""

    chat: str
    bytes: int
    save_points: int
    tokens: int  # of its longest save point
    source: str  # where it would be loaded from: value of session.proof.Source
    last_used_at: float  # time.time()
    keep: str  # "always", "never" or "automatic"


@dataclass(frozen=True)
class ChatChunk:
    """One event of a streamed reply. Fields that the event does not have are empty."""

    text: str = ""
    thinking: str = ""
    progress: PromptProgress | None = None
    timings: Timings | None = None
    finish_reason: str | None = None
    calls: tuple[CallDelta, ...] = ()
    memory: ServerMemory | None = None
    is_last: bool = False  # nothing follows

    @property
    def is_empty(self) -> bool:
        return self == ChatChunk(is_last=self.is_last)

    @property
    def has_output(self) -> bool:
        return bool(self.text or self.thinking or self.calls)


@dataclass(frozen=True)
class Picture:
    """The bytes of an image file, in one of the formats of `image_format`."""

    data: bytes

    @property
    def url(self) -> str:
        """The picture as a data: URL, with a generic media type because llama-server ignores it."""
        return f"data:image/*;base64,{base64.b64encode(self.data).decode()}"


@dataclass(frozen=True)
class ChatMessage:
    role: str  # "system", "user", "assistant" or "tool"
    content: str
    thinking: str = ""  # sent as reasoning_content, which some templates render
    pictures: tuple[Picture, ...] = ()  # placed before the text
    calls: tuple[ToolCall, ...] = ()  # a reply's tool calls; for a tool's result, the one it answers
    tools: str = ""  # the first message may carry the chat's tools: JSON text of the request's `tools`


def nesting_depth(text: str) -> int:
    level = deepest = 0
    for bracket in _BRACKET.findall(text):
        level += 1 if bracket in "([{" else -1
        deepest = max(deepest, level)
    return deepest


@dataclass(frozen=True)
class Sampling:
    """Sampling options. The names are llama-server's; None selects the engine's default."""

    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: tuple[str, ...] | None = None  # stop words
    json_schema: str | None = None  # schema for the reply, as JSON text
    grammar: str | None = None  # GBNF; not together with a schema

    def with_defaults(self, other: Sampling) -> Sampling:
        own = {name: value for name, value in vars(self).items() if value is not None}
        return replace(other, **own)


ENGINE_DEFAULTS = Sampling()


@dataclass(frozen=True)
class SlotFile:
    """The response to a save or restore. A restore is proved only by the next request's `cache_n`."""

    tokens: int
    file_bytes: int


@dataclass(frozen=True)
class ServerFacts:
    context_size: int  # tokens
    model_path: str
    build: str
    total_slots: int
    has_vision: bool  # a vision projector is loaded
    media_marker: str  # placeholder for a picture in a prompt
    end_token: str = ""  # text of the end-of-text token
    has_tools: bool = False  # the chat template renders tools


def prompt_body(messages: Sequence[ChatMessage], template: Mapping[str, bool | str] = {}) -> Body:
    """Build the part of a chat request that determines its prompt."""
    parts: list[Body] = []
    tools = messages[0].tools if messages else ""
    if tools and not messages[0].content:
        messages = messages[1:]
    for message in messages:
        part: Body = {"role": message.role, "content": message.content}
        if message.role == "tool":
            part |= {"tool_call_id": message.calls[0].id, "name": message.calls[0].name}
        elif message.calls:
            part["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.calls
            ]
        if message.pictures:
            images = [{"type": "image_url", "image_url": {"url": picture.url}} for picture in message.pictures]
            part["content"] = images + ([{"type": "text", "text": message.content}] if message.content else [])
        if message.thinking:
            part["reasoning_content"] = message.thinking
        parts.append(part)
    body: Body = {"messages": parts} | ({"chat_template_kwargs": dict(template)} if template else {})
    return body | {"tools": json.loads(tools)} if tools else body


def chat_body(prompt: Body, sampling: Sampling, slot: int = 0) -> Body:
    """Build a request for a streamed reply, computed in `slot`; without `id_slot` the engine would choose one."""
    options = vars(sampling) | {"json_schema": json.loads(sampling.json_schema) if sampling.json_schema else None}
    set_options = {name: value for name, value in options.items() if value is not None}
    return prompt | _cached_stream(slot) | {"timings_per_token": True} | set_options


def prefill_body(prompt: Sequence[int] | Body, slot: int = 0) -> Body:
    """Build a request to process a prompt without a reply. `prompt`: token ids, or `completion_prompt`'s result."""
    return {"prompt": prompt, "n_predict": 0} | _cached_stream(slot)


def _cached_stream(slot: int) -> Body:
    return {"stream": True, "id_slot": slot, "cache_prompt": True, "return_progress": True}


def parse_object(text: str | bytes) -> Body:
    try:
        value = parse_json(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def parse_error(text: str | bytes, status: int) -> EngineRefused:
    """Parse an error response, or an error event in a stream. `status` is used if the error has no code."""
    error, fallback = parse_object(text).get("error"), f"HTTP status {status}"
    if isinstance(error, dict):
        return EngineRefused(_int(error, "code") or status, _str(error, "message") or fallback, _str(error, "type"))
    if not isinstance(error, str):
        decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        error = decoded.strip()[:500] or fallback
    return EngineRefused(status, error)


def parse_event(data: str) -> ChatChunk | EngineRefused:
    """Parse one `data:` line of a streamed response.

    The last one is "[DONE]" for a chat, an event with `stop` for a /completion.
    """
    event = parse_object(data)
    if "error" in event:
        return parse_error(data, 500)
    choice = next(iter(_dicts(event, "choices")), {})
    delta, progress, timings = _dict(choice, "delta"), _dict(event, "prompt_progress"), _dict(event, "timings")
    return ChatChunk(
        _str(delta, "content"),
        _str(delta, "reasoning_content"),
        _read_fields(PromptProgress, progress) if "total" in progress else None,
        _read_fields(Timings, timings) if "prompt_n" in timings else None,
        _str(choice, "finish_reason") or None,
        tuple(map(_parse_call, _dicts(delta, "tool_calls"))),
        is_last=data == "[DONE]" or event.get("stop") is True,
    )


def _parse_call(delta: Body) -> CallDelta:
    function = _dict(delta, "function")
    return CallDelta(_int(delta, "index"), _str(delta, "id"), _str(function, "name"), _str(function, "arguments"))


def parse_memory(receipt: Body) -> ServerMemory:
    """Parse the values of a kvchat server's receipt, from its response's headers or its last line."""
    return ServerMemory(
        _str(receipt, "source"),
        _int(receipt, "found"),
        _str(receipt, "miss-code"),
        _float(receipt, "restore-ms"),
        _int(receipt, "restore-bytes"),
        _int(receipt, "ahead"),
        _float(receipt, "ahead-ms"),
    )


MAX_MODELS, MAX_MODEL_NAME = 200, 200  # names; characters of a name


def parse_models(body: Body) -> tuple[str, ...]:
    """Parse the response of /v1/models into the models' names, leaving out those that could be paths."""
    names = [_str(entry, "id") for entry in _dicts(body, "data")]
    safe = [name for name in names if name == safe_name(name, MAX_MODEL_NAME) and not set(name) & set("/\\")]
    return tuple(dict.fromkeys(safe[:MAX_MODELS]))


def parse_forecast(body: Body) -> MemoryForecast:
    forecast = _read_fields(MemoryForecast, body)
    return replace(forecast, ready=min(forecast.ready, forecast.total))


def parse_chat_memory(body: Body) -> tuple[int, tuple[ChatMemory, ...]]:
    """Return the bytes of all chats, which may share some, and the memory of each."""
    chats = [_read_fields(ChatMemory, entry) for entry in _dicts(body, "chats")]
    return _int(body, "bytes"), tuple(replace(c, last_used_at=min(c.last_used_at, _MAX_TIME)) for c in chats)


def parse_slot_file(body: Body) -> SlotFile:
    tokens = _int(body, "n_saved") or _int(body, "n_restored")
    return SlotFile(tokens, _int(body, "n_written") or _int(body, "n_read"))


def parse_facts(body: Body) -> ServerFacts:
    """Parse the response of /props. Older builds have the context size at the top level."""
    settings = _dict(body, "default_generation_settings")
    return ServerFacts(
        context_size=_int(settings, "n_ctx") or _int(body, "n_ctx"),
        model_path=_str(body, "model_path"),
        build=_str(body, "build_info"),
        total_slots=_int(body, "total_slots"),
        has_vision=_dict(body, "modalities").get("vision") is True,
        media_marker=_str(body, "media_marker") or "<__media__>",  # missing in builds from 2025
        end_token=_str(body, "eos_token"),
        has_tools=_dict(body, "chat_template_caps").get("supports_tools") is True,
    )


def parse_tokens(answer: bytes) -> tuple[int, ...] | None:
    """Parse the response of /tokenize; None if it is not a list of ids.

    A long list is parsed in pieces, so that other threads can run in between.
    """
    at, end, tokens = answer.find(b"["), answer.rfind(b"]"), list[Any]()
    if not 0 <= at < end:
        return None
    while at < end:
        comma = answer.find(b",", at + _CHUNK_BYTES, end)
        stop = end if comma < 0 else comma
        try:
            tokens += json.loads(b"[%b]" % answer[at + 1 : stop])
        except ValueError:
            return None
        at = stop
    return tuple(tokens) if all(isinstance(token, int) for token in tokens) else None


def _read_fields(kind: Callable[..., T], body: Body) -> T:
    """Return a `kind` of dataclass, all of whose fields are numbers and texts of the same names in `body`."""
    readers = {"int": _int, "float": _float, "str": _str}
    return kind(**{field.name: readers[field.type](body, field.name) for field in fields(kind)})  # type: ignore[arg-type, index]


def _int(body: Body, name: str) -> int:
    return int(_float(body, name))


def _float(body: Body, name: str) -> float:
    value = body.get(name)
    return float(value) if isinstance(value, int | float) and 0 <= value < _MAX_NUMBER else 0.0  # not NaN


def _str(body: Body, name: str) -> str:
    value = body.get(name)
    return value if isinstance(value, str) else ""


def _dict(body: Body, name: str) -> Body:
    value = body.get(name)
    return value if isinstance(value, dict) else {}


def _dicts(body: Body, name: str) -> list[Body]:
    value = body.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
