"""What a request's body tells a model, in whichever dialect: its system prompt, its tools and its messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any

SYSTEM_ROLES = frozenset(("system", "developer"))
# What changes how a template renders, and is no part of a conversation.
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

_MOST_OF_DATA = 500  # characters that a block may have of anything that is not said


@dataclass(frozen=True)
class Message:
    """One of the conversation, as text."""

    role: str
    text: str  # what it says, calls of tools and their results included
    reasoning: str = ""


@dataclass(frozen=True)
class Contents:
    """What a body says."""

    system: tuple[str, ...] = ()
    tools: tuple[tuple[str, str], ...] = ()  # the name of each, and all that is said of it
    messages: tuple[Message, ...] = ()  # but for those of the system that stand first
    options: Mapping[str, int] = field(default_factory=dict)  # a hash of each

    @property
    def bytes(self) -> int:
        """Return what its texts take in memory."""
        said = (text for message in self.messages for text in (message.role, message.text, message.reasoning))
        told = (text for tool in self.tools for text in tool)
        return sum(map(getsizeof, (*self.system, *told, *said)))


NOTHING_KNOWN = Contents()


def contents(body: Mapping[str, Any]) -> Contents:
    """What a body says, as far as it has the shape of one: whatever has not is left out."""
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
    """A message of the chat, Anthropic's or the Responses dialect; of the last also what stands for itself."""
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
    """The texts of a content: a string, or blocks of several kinds."""
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
    """A block that is no text, as a picture: of what is long only a hash."""
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
