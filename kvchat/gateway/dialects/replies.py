"""Parses a response while passing it on: the engine's counts, corrected for the client, and the reply."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kvchat.engine.api.wire import Timings
from kvchat.gateway.dialects.conversion import Json
from kvchat.gateway.dialects.request import MUCH, Form


@dataclass(frozen=True)
class Usage:
    """The prompt tokens kvchat itself processed for a request, and the model that answered."""

    model: str = ""  # name shown to clients; empty: keep the engine's name
    read: int = 0  # prompt tokens kvchat processed in the slot before forwarding the request
    read_ms: float = 0.0

    def reused(self, cached: Any) -> int:
        """Return how many of the `cached` tokens were in the slot before the request."""
        return max(0, int(cached or 0) - self.read)

    def correct(self, answer: Json) -> bool:
        changed = False
        for part in (answer, answer.get("message"), answer.get("response")):
            if not isinstance(part, dict):
                continue
            if self.model and isinstance(part.get("model"), str) and part["model"] != self.model:
                part["model"], changed = self.model, True
            for name in ("usage", "timings", "prompt_progress") if self.read else ():
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
            reused, ms = self.reused(counts["cache_n"]), self.read_ms + float(counts.get("prompt_ms") or 0.0)
            processed = int(counts.get("prompt_n") or 0) + int(counts["cache_n"] or 0) - reused
            counts |= {"cache_n": reused, "prompt_n": processed, "prompt_ms": ms}
            counts["prompt_per_token_ms"] = ms / max(1, processed)
            counts["prompt_per_second"] = 1e3 * processed / max(1.0, ms)
        if "cache" in counts:  # progress counts
            counts["cache"] = self.reused(counts["cache"])


MOST_HEARD = 64_000_000  # bytes; longer responses are not kept


@dataclass
class ResponseParser:
    """Parses one response: call `take` with its bytes, then `end`. Both return the bytes for the client."""

    form: Form
    stream: bool
    usage: Usage = field(default_factory=Usage)
    counts: Timings | None = None  # from the engine; times it omits are 0
    whole: bool = False  # the answer is complete; end markers may follow
    events: int = 0  # stream events, about a token each
    _size: int = 0
    _rest: bytearray = field(default_factory=bytearray)
    _message: Json = field(default_factory=dict)
    _blocks: dict[int, Json] = field(default_factory=dict)
    _output: list[Any] | None = None

    def take(self, data: bytes) -> bytes:
        """Add bytes; return the complete lines of a stream, nothing for a non-streamed response."""
        self._size += len(data)
        self._rest += data
        if not self.stream:
            return b""
        end = self._rest.rfind(b"\n") + 1
        lines = bytes(self._rest[:end])
        del self._rest[:end]
        return b"".join(map(self._line, lines.splitlines(keepends=True)))

    def end(self) -> bytes:
        rest = bytes(self._rest)
        self._rest.clear()
        if self.stream:
            return self._line(rest)
        return self._corrected(rest, self._whole)

    @property
    def is_large(self) -> bool:
        return len(self._rest) > MUCH

    @property
    def is_too_large(self) -> bool:
        return len(self._rest) > MOST_HEARD

    @property
    def reply(self) -> Json | None:
        """The reply in its dialect's format; None if incomplete."""
        if not self.whole or self._size > MOST_HEARD:
            return None
        match self.form:
            case Form.CHAT:
                calls = [self._blocks[index] for index in sorted(self._blocks)]
                return {"role": "assistant", "content": None} | self._message | ({"tool_calls": calls} if calls else {})
            case Form.COMPLETION:
                return self._message
            case Form.MESSAGES:
                blocks = [dict(self._blocks[index]) for index in sorted(self._blocks)]
                for block in blocks:
                    if block.get("type") == "tool_use" and "partial_json" in block:
                        block["input"] = _object(block.pop("partial_json").encode())
                return {"content": blocks}
            case Form.RESPONSES:
                return None if self._output is None else {"output": self._output}
        return None

    def _line(self, line: bytes) -> bytes:
        data = line[5:].strip()
        if not line.startswith(b"data:") or self._size > MOST_HEARD:
            return line
        if data == b"[DONE]":
            self.whole = True
            return line
        self.events += 1
        said = self._corrected(data, self._hear)
        return line if said is data else b"data: " + said + line[len(line.rstrip()) :]

    def _corrected(self, data: bytes, hear: Callable[[Json], None]) -> bytes:
        """Parse an object from the engine; return it for the client, unchanged if it is correct.

        An object of unknown form is passed on unchanged and its contents are ignored.
        """
        try:
            event = _object(data)
            hear(event)
            if self.usage.correct(event):
                return json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")
            return data
        except (AttributeError, KeyError, TypeError, ValueError):
            self._size, self.counts = MOST_HEARD + 1, None
            return data

    def _hear(self, event: Json) -> None:
        self._count(event)
        match self.form:
            case Form.CHAT | Form.COMPLETION:
                for choice in event.get("choices") or ():
                    if choice.get("index", 0) == 0:
                        self._take_choice(choice.get("delta") or {"text": choice.get("text")})
                        self.whole = self.whole or bool(choice.get("finish_reason"))
            case Form.MESSAGES if event.get("type") == "content_block_start":
                self._blocks[event.get("index", 0)] = dict(event.get("content_block") or {})
            case Form.MESSAGES if event.get("type") == "content_block_delta":
                block, delta = self._blocks.setdefault(event.get("index", 0), {}), event.get("delta") or {}
                for name in ("text", "thinking", "signature", "partial_json"):
                    if isinstance(words := delta.get(name), str):
                        block[name] = (block.get(name) or "") + words
            case Form.MESSAGES if event.get("type") == "message_stop":
                self.whole = True
            case Form.RESPONSES if event.get("type") == "response.completed":
                self.whole, self._output = True, (event.get("response") or {}).get("output")

    def _take_choice(self, delta: Json) -> None:
        for name in ("content", "reasoning_content", "text"):
            if isinstance(words := delta.get(name), str):
                self._message[name] = (self._message.get(name) or "") + words
        for call in delta.get("tool_calls") or ():
            known = self._blocks.setdefault(
                call.get("index", 0), {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            )
            known["id"] += call.get("id") or ""
            for name in ("name", "arguments"):
                known["function"][name] += (call.get("function") or {}).get(name) or ""

    def _whole(self, body: Json) -> None:
        self._count(body)
        match self.form:
            case Form.CHAT | Form.COMPLETION:
                choice = next(iter(body.get("choices") or ()), None)
                if choice is not None:
                    self.whole, self._message = True, choice.get("message") or {"text": choice.get("text")}
            case Form.MESSAGES:
                self.whole, self._blocks = "content" in body, dict(enumerate(body.get("content") or ()))
            case Form.RESPONSES:
                self.whole, self._output = "output" in body, body.get("output")

    def _count(self, event: Json) -> None:
        inner = event.get("message") or event.get("response")
        usage = event.get("usage") or (inner.get("usage") if isinstance(inner, dict) else None) or {}
        if isinstance(timings := event.get("timings"), dict) and "prompt_n" in timings:
            cached, read, predicted = (int(timings.get(name) or 0) for name in ("cache_n", "prompt_n", "predicted_n"))
            read_ms, write_ms = (float(timings.get(name) or 0.0) for name in ("prompt_ms", "predicted_ms"))
            self.counts = Timings(cached, read, read_ms, predicted, write_ms)
        elif "cache_read_input_tokens" in usage:  # Anthropic: input_tokens excludes cached tokens
            names = ("cache_read_input_tokens", "input_tokens", "output_tokens")
            cached, read, predicted = (int(usage.get(name) or 0) for name in names)
            self.counts = Timings(cached, read, 0.0, predicted, 0.0)
        elif "input_tokens_details" in usage:
            cached = int((usage["input_tokens_details"] or {}).get("cached_tokens") or 0)
            prompt, predicted = (int(usage.get(name) or 0) for name in ("input_tokens", "output_tokens"))
            self.counts = Timings(cached, prompt - cached, 0.0, predicted, 0.0)
        elif self.form is Form.MESSAGES and "output_tokens" in usage:
            before = self.counts or Timings(0, 0, 0.0, 0, 0.0)
            self.counts = replace(before, predicted_n=int(usage["output_tokens"] or 0))


def _object(data: bytes) -> Json:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
