"""Parser for responses passed on to clients: corrects the engine's counts and collects the reply."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

from kvchat.engine.api.wire import Timings
from kvchat.gateway.dialects.conversion import Json
from kvchat.gateway.dialects.request import THREAD_BYTES, Dialect, RequestRefused


@dataclass(frozen=True)
class UsageCorrection:
    """Corrections to a response: the model's name, and prompt tokens that kvchat processed itself."""

    model: str = ""  # name shown to clients; empty: keep the engine's name
    processed_tokens: int = 0  # prompt tokens kvchat processed in the slot before forwarding the request
    processing_ms: float = 0.0

    def reused(self, cached: Any) -> int:
        """Return how many of the engine's `cached` tokens were in the slot before this request was processed."""
        return max(0, int(cached or 0) - self.processed_tokens)

    def correct(self, answer: Json) -> bool:
        changed = False
        for part in (answer, answer.get("message"), answer.get("response")):
            if not isinstance(part, dict):
                continue
            if self.model and isinstance(part.get("model"), str) and part["model"] != self.model:
                part["model"], changed = self.model, True
            for name in ("usage", "timings", "prompt_progress") if self.processed_tokens else ():
                if isinstance(counts := part.get(name), dict):
                    self._correct_counts(counts)
                    changed = True
        return changed

    def _correct_counts(self, counts: Json) -> None:
        if "cache_read_input_tokens" in counts:  # Anthropic: input_tokens excludes reused tokens
            cached = int(counts["cache_read_input_tokens"] or 0)
            counts["cache_read_input_tokens"] = self.reused(cached)
            counts["input_tokens"] = int(counts.get("input_tokens") or 0) + cached - self.reused(cached)
        for name in ("prompt_tokens_details", "input_tokens_details"):
            if isinstance(details := counts.get(name), dict) and "cached_tokens" in details:
                details["cached_tokens"] = self.reused(details["cached_tokens"])
        if "cache_n" in counts:  # llama-server's timings
            reused, ms = self.reused(counts["cache_n"]), self.processing_ms + float(counts.get("prompt_ms") or 0.0)
            processed = int(counts.get("prompt_n") or 0) + int(counts["cache_n"] or 0) - reused
            counts |= {"cache_n": reused, "prompt_n": processed, "prompt_ms": ms}
            counts["prompt_per_token_ms"] = ms / max(1, processed)
            counts["prompt_per_second"] = 1e3 * processed / max(1.0, ms)
        if "cache" in counts:  # progress counts
            counts["cache"] = self.reused(counts["cache"])


MAX_PARSED = 64_000_000  # bytes; longer responses are not kept


@dataclass
class ResponseParser:
    """Parser for one response. Call `feed` with each chunk, then `finish`; both return bytes for the client."""

    dialect: Dialect
    stream: bool
    usage: UsageCorrection = field(default_factory=UsageCorrection)
    timings: Timings | None = None  # from the engine; times it omits are 0
    is_complete: bool = False  # end markers may follow
    events: int = 0  # stream events, about a token each
    _size: int = 0
    _partial_line: bytearray = field(default_factory=bytearray)
    _message: Json = field(default_factory=dict)
    _blocks: dict[int, Json] = field(default_factory=dict)
    _output: list[Any] | None = None

    def feed(self, data: bytes) -> bytes:
        """Add a chunk; return the complete lines of a stream, or nothing for a non-streamed response.

        Raises RequestRefused if the unparsed bytes exceed MAX_PARSED.
        """
        self._size += len(data)
        self._partial_line += data
        end = self._partial_line.rfind(b"\n") + 1 if self.stream else 0
        lines = bytes(self._partial_line[:end])
        del self._partial_line[:end]
        if len(self._partial_line) > MAX_PARSED:
            raise RequestRefused(502, "The engine's response is too long.", "server_error")
        return b"".join(map(self._parse_line, lines.splitlines(keepends=True)))

    def finish(self) -> bytes:
        rest = bytes(self._partial_line)
        self._partial_line.clear()
        return self._parse_line(rest) if self.stream else self._parse(rest)

    @property
    def is_large(self) -> bool:
        return len(self._partial_line) > THREAD_BYTES

    @property
    def reply(self) -> Json | None:
        """The reply in its dialect's format, or None if it is incomplete or too long."""
        if not self.is_complete or self._size > MAX_PARSED:
            return None
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        match self.dialect:
            case Dialect.CHAT:
                return (
                    {"role": "assistant", "content": None} | self._message | ({"tool_calls": blocks} if blocks else {})
                )
            case Dialect.COMPLETION:
                return self._message
            case Dialect.MESSAGES:
                for block in blocks:
                    if isinstance(block, dict) and block.get("type") == "tool_use" and "partial_json" in block:
                        block["input"] = _parse_object(block.pop("partial_json").encode())
                return {"content": blocks}
            case Dialect.RESPONSES:
                return None if self._output is None else {"output": self._output}
        return None

    def _parse_line(self, line: bytes) -> bytes:
        data = line[5:].strip()
        if not line.startswith(b"data:") or self._size > MAX_PARSED:
            return line
        if data == b"[DONE]":
            self.is_complete = True
            return line
        self.events += 1
        corrected = self._parse(data)
        return line if corrected is data else b"data: " + corrected + line[len(line.rstrip()) :]

    def _parse(self, data: bytes) -> bytes:
        """Parse a JSON object from the engine; return it with the corrected counts and model name.

        An object of unknown form is returned unchanged and ends the parsing of the response.
        """
        try:
            event = _parse_object(data)
            self._read_counts(event)
            self._read_reply(event)
            if self.usage.correct(event):
                return json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")
            return data
        except (AttributeError, KeyError, TypeError, ValueError):
            self._size, self.timings = MAX_PARSED + 1, None
            return data

    def _read_reply(self, event: Json) -> None:
        match self.dialect, event.get("type") if self.stream else None:
            case ((Dialect.CHAT | Dialect.COMPLETION), _):
                for choice in event.get("choices") or ():
                    if choice.get("index", 0) == 0:
                        self._add_message(choice.get("delta") or choice.get("message") or {"text": choice.get("text")})
                        self.is_complete = self.is_complete or not self.stream or bool(choice.get("finish_reason"))
            case Dialect.MESSAGES, None:
                self.is_complete, self._blocks = "content" in event, dict(enumerate(event.get("content") or ()))
            case Dialect.MESSAGES, "content_block_start":
                self._blocks[event.get("index", 0)] = dict(event.get("content_block") or {})
            case Dialect.MESSAGES, "content_block_delta":
                block, delta = self._blocks.setdefault(event.get("index", 0), {}), event.get("delta") or {}
                _append_texts(block, delta, ("text", "thinking", "signature", "partial_json"))
            case Dialect.MESSAGES, "message_stop":
                self.is_complete = True
            case Dialect.RESPONSES, None:
                self.is_complete, self._output = "output" in event, event.get("output")
            case Dialect.RESPONSES, "response.completed":
                self.is_complete, self._output = True, (event.get("response") or {}).get("output")

    def _add_message(self, message: Json) -> None:
        _append_texts(self._message, message, ("content", "reasoning_content", "text"))
        for number, call in enumerate(message.get("tool_calls") or ()):
            block = self._blocks.setdefault(
                call.get("index", number), {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            )
            block["id"] += call.get("id") or ""
            for name in ("name", "arguments"):
                block["function"][name] += (call.get("function") or {}).get(name) or ""

    def _read_counts(self, event: Json) -> None:
        inner = event.get("message") or event.get("response")
        usage = event.get("usage") or (inner.get("usage") if isinstance(inner, dict) else None) or {}
        timings = event.get("timings")
        prompt_ms = predicted_ms = 0.0
        if isinstance(timings, dict) and "prompt_n" in timings:
            cached, prompt, predicted = _integers(timings, "cache_n", "prompt_n", "predicted_n")
            prompt_ms, predicted_ms = (float(timings.get(name) or 0.0) for name in ("prompt_ms", "predicted_ms"))
        elif "cache_read_input_tokens" in usage:  # Anthropic: input_tokens excludes cached tokens
            cached, prompt, predicted = _integers(usage, "cache_read_input_tokens", "input_tokens", "output_tokens")
        elif "input_tokens_details" in usage:
            (cached,) = _integers(usage["input_tokens_details"] or {}, "cached_tokens")
            prompt, predicted = _integers(usage, "input_tokens", "output_tokens")
            prompt -= cached
        elif self.dialect is Dialect.MESSAGES and "output_tokens" in usage:
            before = self.timings or Timings(0, 0, 0.0, 0, 0.0)
            self.timings = replace(before, predicted_n=int(usage["output_tokens"] or 0))
            return
        else:
            return
        self.timings = Timings(cached, prompt, prompt_ms, predicted, predicted_ms)


def _integers(values: Json, *names: str) -> list[int]:
    return [int(values.get(name) or 0) for name in names]


def _append_texts(values: Json, delta: Json, names: tuple[str, ...]) -> None:
    for name in names:
        if isinstance(text := delta.get(name), str):
            values[name] = (values.get(name) or "") + text


def _parse_object(data: bytes) -> Json:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
