"""Prompts of programs: the contents of a body, the closest earlier prompt, and where two diverge.

Token ids are compared with numpy, texts by bisection: a few milliseconds for 128K tokens. All of it is in memory
only.
"""

from __future__ import annotations

import contextlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from sys import getsizeof
from typing import Any

import numpy as np
import numpy.typing as npt

from kvchat.text.formatting import format_brief_duration
from kvchat.text.language import _, format_number, join_list
from kvchat.text.reasons import Reason, ReasonCode

SYSTEM_ROLES = frozenset(("system", "developer"))
# Request options that change how a template renders.
OPTIONS = (
    "chat_template_kwargs",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "text",
    "add_generation_prompt",
)

_MOST_OF_DATA = 500  # characters; longer strings of data are hashed


@dataclass(frozen=True)
class Message:
    role: str
    text: str  # includes tool calls and results
    reasoning: str = ""


@dataclass(frozen=True)
class Contents:
    system: tuple[str, ...] = ()
    tools: tuple[tuple[str, str], ...] = ()  # name and full definition of each
    messages: tuple[Message, ...] = ()  # without leading system messages
    options: Mapping[str, int] = field(default_factory=dict)  # hashes by name

    @property
    def bytes(self) -> int:
        said = (text for message in self.messages for text in (message.role, message.text, message.reasoning))
        told = (text for tool in self.tools for text in tool)
        return sum(map(getsizeof, (*self.system, *told, *said)))


NOTHING_KNOWN = Contents()


def contents(body: Mapping[str, Any]) -> Contents:
    """Parse a request body, ignoring whatever has an unknown shape."""
    told = [*_texts(body.get("system")), *_texts(body.get("instructions"))]
    turns = body.get("messages", body.get("input", body.get("prompt")))
    messages: list[Message] = []
    for turn in [{"role": "user", "content": turns}] if isinstance(turns, str) else _list(turns):
        message = _message(turn) if isinstance(turn, dict) else None
        if message is not None and message.role in SYSTEM_ROLES and not messages:
            told.append(message.text)
        elif message is not None:
            messages.append(message)
    tools = tuple((_name(tool), _as_json(tool)) for tool in _list(body.get("tools")))
    options = {name: hash(json.dumps(body[name], sort_keys=True)) for name in OPTIONS if name in body}
    return Contents(tuple(filter(None, told)), tools, tuple(messages), options)


def _message(turn: Mapping[str, Any]) -> Message:
    kind, content = turn.get("type"), turn.get("content")
    if kind == "reasoning":
        return Message("assistant", "", "\n".join([*_texts(turn.get("summary")), *_texts(content)]))
    if kind in ("function_call", "custom_tool_call"):
        return Message("assistant", _as_json([turn.get("name"), turn.get("arguments", turn.get("input"))]))
    if kind in ("function_call_output", "custom_tool_call_output"):
        return Message("tool", "\n".join(_texts(turn.get("output"))))
    said = _texts(content)
    thought = [str(turn[name]) for name in ("reasoning_content", "reasoning") if turn.get(name)]
    blocks = [block for block in _list(content) if isinstance(block, dict)]
    thought += [str(block.get("thinking", "")) for block in blocks if block.get("type") == "thinking"]
    answers = bool(blocks) and all(block.get("type") == "tool_result" for block in blocks)
    calls = [_as_json(call) for call in _list(turn.get("tool_calls"))]
    return Message("tool" if answers else str(turn.get("role", "")), "\n".join([*said, *calls]), "\n".join(thought))


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    found: list[str] = []
    for block in _list(content):
        if isinstance(block, str):
            found.append(block)
        elif isinstance(block, dict) and block.get("type") != "thinking":
            said = block.get("text", block.get("content"))
            found += _texts(said) if said is not None else [_as_json(_without_data(block))]
    return found


def _without_data(value: Any) -> Any:
    """Replace long strings in a non-text block, such as an image, with a hash."""
    if isinstance(value, dict):
        return {name: _without_data(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_data(inner) for inner in value]
    return hash(value) if isinstance(value, str) and len(value) > _MOST_OF_DATA else value


def _name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    named = function if isinstance(function, dict) else tool if isinstance(tool, dict) else {}
    return str(named.get("name", named.get("type", "a tool")))


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


Ids = npt.NDArray[np.int32]

_GRAM = 8  # consecutive tokens that count as a match between prompts
_SKETCH = 512  # hashes per prompt
_MIX = np.uint32(0x9E3779B1)
_REPLY_HEAD = 8  # tokens at a prompt's end that start the reply; templates render them differently in history


class Prompt:
    """A prompt's token ids and text, with the parsed request body.

    The body itself is not kept: it may contain images.
    """

    def __init__(self, ids: Sequence[int] | Ids, text: str = "", body: Mapping[str, Any] | None = None) -> None:
        self.ids: Ids = np.asarray(ids if isinstance(ids, np.ndarray) else array("i", ids), np.int32)
        self.text, self.contents = text, NOTHING_KNOWN
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self.contents = contents(body or {})

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def weight(self) -> int:
        """Approximate memory use in bytes."""
        return self.ids.nbytes + getsizeof(self.text) + self.contents.bytes + 4_000

    @cached_property
    def sketch(self) -> npt.NDArray[np.uint32]:
        """The smallest hashes of its 8-token runs, sorted; similar prompts share many (MinHash)."""
        grams, width = self.ids.astype(np.uint32), 1
        while width < _GRAM and len(grams) > width:
            grams = grams[:-width] * _MIX + grams[width:]
            grams ^= grams >> np.uint32(15)
            width *= 2
        if len(grams) > _SKETCH:
            grams = np.partition(grams, _SKETCH)[:_SKETCH]
        return np.unique(grams)

    def shares(self, other: Prompt) -> int:
        size, start, step = min(len(self.ids), len(other.ids)), 0, 1024
        while start < size:
            apart = self.ids[start : min(size, start + step)] != other.ids[start : min(size, start + step)]
            if apart.any():
                return start + int(apart.argmax())
            start, step = start + step, 2 * step
        return size

    def goes_on_from(self, other: Prompt) -> bool:
        """True if it extends the other, so none of that is processed again."""
        return self.shares(other) >= min(len(self), max(len(other) - _REPLY_HEAD, 1))


@dataclass(frozen=True)
class Divergence:
    """The point where a prompt diverges from the closest earlier one, and why. Texts never go to disk."""

    at: int  # shared tokens
    of: int  # prompt tokens
    cause: Reason
    before: str = ""  # text around it in the earlier prompt
    after: str = ""  # in this prompt

    @property
    def expected(self) -> bool:
        """True for another conversation, or another branch of this one."""
        return self.cause.code in (ReasonCode.OTHER_CONVERSATION, ReasonCode.OTHER_WAY)

    def sentence(self, read: int | None = None, seconds: float = 0.0) -> str:
        """Describe it in a sentence; `read`: tokens that were reprocessed, in `seconds`."""
        at, of, cause = format_number(self.at), format_number(self.of), self.cause.text
        words = _("the prompt changed at token {at} of {of}: {cause}", at=at, of=of, cause=cause)
        if read is not None:
            words = _("{words}; {tokens} tokens reprocessed", words=words, tokens=format_number(read))
        return join_list((words, format_brief_duration(1000 * seconds))) if read is not None and seconds else words


MOST_OF_ONE = 24  # prompts per program and model: for its threads, titles and helpers
MOST_BYTES = 96_000_000  # total
_ALIKE = 0.2  # share of the shorter prompt; below: another kind of request
_CLEAR = 0.5  # share of the prompt; a longer common prefix ends the search

Whose = tuple[str, str]  # program and model


class RecentPrompts:
    """A bounded LRU cache. A prompt that extends another replaces it."""

    def __init__(self) -> None:
        self._kept: dict[Whose, OrderedDict[int, Prompt]] = {}
        self._number = 0

    def closest(self, whose: Whose, prompt: Prompt) -> Prompt | None:
        """Return the prompt with the longest common prefix, else the most similar one, or None."""
        best, most = None, _ALIKE
        kept = list(reversed(self._kept.get(whose, OrderedDict()).values()))
        for earlier in kept:
            share = earlier.shares(prompt) / max(1, min(len(earlier), len(prompt)))
            if share > most:
                best, most = earlier, share
        if most >= _CLEAR:
            return best
        for earlier in kept:
            smaller = min(len(earlier.sketch), len(prompt.sketch))
            alike = len(np.intersect1d(earlier.sketch, prompt.sketch, assume_unique=True)) / max(1, smaller)
            if alike > most:  # the share of the shorter prompt that the other contains
                best, most = earlier, alike
        return best

    def keep(self, whose: Whose, prompt: Prompt, instead: Prompt | None) -> None:
        kept = self._kept.setdefault(whose, OrderedDict())
        for key in [key for key, earlier in kept.items() if earlier is instead]:
            del kept[key]
        self._number += 1
        kept[self._number] = prompt
        while len(kept) > MOST_OF_ONE:
            kept.popitem(last=False)
        while sum(prompt.weight for kept in self._kept.values() for prompt in kept.values()) > MOST_BYTES:
            oldest = min(self._kept, key=lambda whose: next(iter(self._kept[whose])))
            self._kept[oldest].popitem(last=False)
            if not self._kept[oldest]:  # client names are unlimited
                del self._kept[oldest]

    def forget(self, program: str | None) -> None:
        for whose in [whose for whose in self._kept if program in (None, whose[0])]:
            del self._kept[whose]
