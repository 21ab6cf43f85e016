"""Programs' prompts: parsed contents, the closest earlier prompt, and the divergence of two prompts.

Token ids are compared with numpy and texts by bisection, in a few milliseconds for 128K tokens. Prompts are kept in
memory only.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from array import array
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
    *("chat_template_kwargs", "reasoning_effort", "tool_choice", "parallel_tool_calls", "response_format"),
    *("text", "add_generation_prompt"),
)
_MAX_DATA_CHARS = 500  # longer strings of data are hashed


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
        texts = (text for message in self.messages for text in (message.role, message.text, message.reasoning))
        return sum(map(getsizeof, (*self.system, *texts, *itertools.chain(*self.tools))))


UNKNOWN_CONTENTS = Contents()


def parse_contents(chat: Mapping[str, Any]) -> Contents:
    """Parse a chat or text completion request, ignoring parts of unknown shape."""
    source = chat.get("messages", chat.get("prompt"))
    system: list[str] = []
    messages: list[Message] = []
    for turn in [{"role": "user", "content": source}] if isinstance(source, str) else _list(source):
        if not isinstance(turn, dict):
            continue
        text = "\n".join([*_texts(turn.get("content")), *map(_as_json, _list(turn.get("tool_calls")))])
        reasoning = str(turn.get("reasoning_content") or turn.get("reasoning") or "")
        message = Message(str(turn.get("role", "")), text, reasoning)
        if message.role in SYSTEM_ROLES and not messages:
            system.append(message.text)
        else:
            messages.append(message)
    tools = []
    for tool in _list(chat.get("tools")):
        function = tool.get("function") if isinstance(tool, dict) else None
        named = function if isinstance(function, dict) else tool if isinstance(tool, dict) else {}
        tools.append((str(named.get("name", named.get("type", "a tool"))), _as_json(tool)))
    options = {name: hash(json.dumps(chat[name], sort_keys=True)) for name in OPTIONS if name in chat}
    return Contents(tuple(filter(None, system)), tuple(tools), tuple(messages), options)


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    blocks = (block for block in _list(content) if isinstance(block, dict))
    return [block["text"] if isinstance(block.get("text"), str) else _as_json(_without_data(block)) for block in blocks]


def _without_data(value: Any) -> Any:
    """Replace long strings in a non-text block, such as an image, with a hash."""
    if isinstance(value, dict):
        return {name: _without_data(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_data(inner) for inner in value]
    return hash(value) if isinstance(value, str) and len(value) > _MAX_DATA_CHARS else value


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
    """A prompt's token ids, text and parsed contents. The request is not kept, as it may contain images."""

    def __init__(self, ids: Sequence[int] | Ids, text: str = "", chat: Mapping[str, Any] | None = None) -> None:
        self.ids: Ids = np.asarray(ids if isinstance(ids, np.ndarray) else array("i", ids), np.int32)
        self.text, self.contents = text, UNKNOWN_CONTENTS
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self.contents = parse_contents(chat or {})

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def weight(self) -> int:
        """Approximate memory use in bytes."""
        return self.ids.nbytes + getsizeof(self.text) + self.contents.bytes + 4_000

    @cached_property
    def minhash(self) -> npt.NDArray[np.uint32]:
        """MinHash: the smallest hashes of the prompt's 8-token runs, sorted. Similar prompts share many."""
        grams, width = self.ids.astype(np.uint32), 1
        while width < _GRAM and len(grams) > width:
            grams = grams[:-width] * _MIX + grams[width:]
            grams ^= grams >> np.uint32(15)
            width *= 2
        if len(grams) > _SKETCH:
            grams = np.partition(grams, _SKETCH)[:_SKETCH]
        return np.unique(grams)

    def shared_tokens(self, other: Prompt) -> int:
        size = min(len(self.ids), len(other.ids))
        differs = self.ids[:size] != other.ids[:size]
        return int(differs.argmax()) if differs.any() else size

    def extends_or_precedes(self, other: Prompt) -> bool:
        """True if one prompt starts with the other, ignoring the tokens at the end of `other` that start the reply."""
        return self.shared_tokens(other) >= min(len(self), max(len(other) - _REPLY_HEAD, 1))


@dataclass(frozen=True)
class Divergence:
    """Position and cause of a prompt's divergence from the closest earlier one. Texts never go to disk."""

    shared_tokens: int
    prompt_tokens: int
    cause: Reason
    earlier_text: str = ""  # text around it in the earlier prompt
    new_text: str = ""  # in this prompt

    @property
    def is_expected(self) -> bool:
        return self.cause.code in (ReasonCode.OTHER_CONVERSATION, ReasonCode.OTHER_WAY)

    def sentence(self, processed: int, seconds: float) -> str:
        """Describe the divergence and its cost: `processed` reprocessed tokens and the `seconds` they took."""
        at, of, cause = format_number(self.shared_tokens), format_number(self.prompt_tokens), self.cause.text
        text = _("the prompt changed at token {position} of {total}: {cause}", position=at, total=of, cause=cause)
        text = _("{words}; {tokens} tokens reprocessed", words=text, tokens=format_number(processed))
        return join_list((text, format_brief_duration(1000 * seconds))) if seconds else text


MAX_PER_PROGRAM = 24  # prompts per program and model: for its threads, titles and helpers
MAX_BYTES = 96_000_000  # total
_MIN_SIMILARITY = 0.2  # share of the shorter prompt; below: another kind of request
_CLEAR_SIMILARITY = 0.5  # share of the prompt; a longer common prefix ends the search

ProgramKey = tuple[str, str]  # program and model


class RecentPrompts:
    """The most recent prompts, within limits on count and size. A prompt replaces the one it extends."""

    def __init__(self) -> None:
        self._prompts: list[tuple[ProgramKey, Prompt]] = []  # oldest first

    def closest(self, key: ProgramKey, prompt: Prompt) -> Prompt | None:
        """Return the earlier prompt with the longest common prefix, else the most similar one, or None."""
        best, most = None, _MIN_SIMILARITY
        own = [earlier for program, earlier in reversed(self._prompts) if program == key]
        for earlier in own:
            share = earlier.shared_tokens(prompt) / max(1, min(len(earlier), len(prompt)))
            if share > most:
                best, most = earlier, share
        if most >= _CLEAR_SIMILARITY:
            return best
        for earlier in own:
            smaller = min(len(earlier.minhash), len(prompt.minhash))
            share = len(np.intersect1d(earlier.minhash, prompt.minhash, assume_unique=True)) / max(1, smaller)
            if share > most:  # the share of the shorter prompt that the other contains
                best, most = earlier, share
        return best

    def add(self, key: ProgramKey, prompt: Prompt, replaced: Prompt | None = None) -> None:
        own = [earlier for program, earlier in self._prompts if program == key]
        if replaced is None and len(own) >= MAX_PER_PROGRAM:
            replaced = own[0]
        self._prompts = [entry for entry in self._prompts if entry[1] is not replaced] + [(key, prompt)]
        size = sum(prompt.weight for _, prompt in self._prompts)
        while size > MAX_BYTES:
            size -= self._prompts.pop(0)[1].weight

    def forget(self, program: str) -> None:
        self._prompts = [entry for entry in self._prompts if entry[0][0] != program]
