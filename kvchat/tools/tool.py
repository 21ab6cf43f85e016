"""A tool's definition, as listed by its source and as frozen in a chat, and the interface of sources."""

import functools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from kvchat.errors import KvchatError

BUILT_IN = "kvchat"  # source id of the built-in tools
MAX_RESULT_CHARS = 40_000  # of a result's text, which the model must process; the rest is cut off
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_MAX_REFERENCES = 30  # in a checkable schema
_NOT_CHECKED = frozenset(("pattern", "patternProperties", "$schema", "$id", "$dynamicRef", "$recursiveRef"))
_ALL_PROPERTIES = frozenset(("additionalProperties", "unevaluatedProperties"))  # those that match no pattern
_BY_NAME = ("properties", "$defs", "definitions", "dependentSchemas")  # schemas by name
_VALUES = ("const", "enum", "default", "examples")
calling_chat: ContextVar[str] = ContextVar("calling_chat", default="")  # id of the chat whose call is executed
_MAX_NAME = 64  # characters, the limit of OpenAI's API that templates and clients assume


@dataclass(frozen=True)
class Tool:
    source: str  # id of its source
    name: str  # as its source calls it
    description: str
    schema: Mapping[str, Any]  # JSON schema of the arguments, an object
    read_only: bool = False  # according to its source
    alias: str = ""  # its name in the prompt, unique in a chat; set by `freeze`

    @property
    def digest(self) -> str:
        """Hash of everything that the user approves. A grant is valid for one digest."""
        import hashlib  # the first frame needs no digests

        content = [self.source, self.name, self.description, self.schema, self.read_only]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it, or as the user edited it."""

    id: str  # given by the engine
    name: str  # the tool's alias
    arguments: str  # JSON text; a small model may write anything


@dataclass(frozen=True)
class ToolResult:
    text: str  # for the model, bounded by MAX_RESULT_CHARS; untrusted
    is_error: bool = False
    pictures: tuple[bytes, ...] = ()  # image files
    links: tuple[tuple[str, str], ...] = ()  # name and URL, to show; not fetched


@dataclass(frozen=True)
class SourceTools:
    """The tools that a source offers, or why it cannot list them."""

    source: str
    tools: tuple[Tool, ...] = ()
    error: KvchatError | None = None


class ToolFailed(KvchatError):
    """A source cannot list its tools or execute a call. The model reads the message as the call's result."""


class ToolSource(Protocol):
    """The built-in tools or an MCP server. Event-loop thread only. Every method may raise ToolFailed."""

    id: str

    async def tools(self) -> Sequence[Tool]:
        """Return the tools offered now, starting a server if needed."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Execute a call. Cancelling the task cancels the call."""
        ...

    async def close(self) -> None:
        """Stop everything that the source has started."""
        ...


@dataclass(frozen=True)
class ToolSet:
    """Tools frozen for a chat, in the order of the prompt."""

    tools: tuple[Tool, ...] = ()
    text: str = field(default="", compare=False)  # as stored

    def by_alias(self, alias: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.alias == alias), None)


def is_selected(tool: Tool, selected: Collection[str]) -> bool:
    """True if `selected` names the tool as "SOURCE/NAME" or all of its source as "SOURCE/*"."""
    return f"{tool.source}/{tool.name}" in selected or f"{tool.source}/*" in selected


def freeze(tools: Collection[Tool]) -> str:
    """Return the tools as JSON text to store with a chat, sorted, so that equal sets give equal prompts."""
    named: dict[str, Tool] = {}
    for tool in sorted(tools, key=lambda tool: (tool.name, tool.source)):
        alias = _NOT_IN_NAMES.sub("_", tool.name)[:_MAX_NAME] or "tool"
        if alias in named:
            alias = f"{_NOT_IN_NAMES.sub('_', tool.source)}_{alias}"[:_MAX_NAME]
        while alias in named:
            alias = f"{alias[: _MAX_NAME - 1]}_" if len(alias) < _MAX_NAME else f"_{alias[:-1]}"
        named[alias] = replace(tool, alias=alias)
    stored = [vars(named[alias]) for alias in sorted(named)]
    return json.dumps(stored, ensure_ascii=False, sort_keys=True, separators=(",", ":")) if stored else ""


def thaw(text: str) -> ToolSet:
    """Return the tools in a text from `freeze`; none if the text is unreadable."""
    try:
        tools = [Tool(**stored) for stored in json.loads(text)] if text else []
    except (ValueError, TypeError, RecursionError):
        return ToolSet()
    texts = [text for tool in tools for text in (tool.source, tool.name, tool.description, tool.alias)]
    valid = all(isinstance(text, str) for text in texts) and all(isinstance(tool.schema, dict) for tool in tools)
    return ToolSet(tuple(tools), text) if valid else ToolSet()


def checkable_schema(schema: Mapping[str, Any]) -> Any:
    """Return the part of an untrusted schema that can be checked in bounded time.

    Drops regular expressions, which can take forever, and references to other documents, which would be downloaded.
    Empty if the schema has many references, because nested ones can multiply the work.
    """
    if json.dumps(schema).count('"$ref"') > _MAX_REFERENCES:
        return {}

    def reduced(part: Any) -> Any:
        if isinstance(part, list):
            return [reduced(item) for item in part]
        if not isinstance(part, dict):
            return part
        dropped = _NOT_CHECKED if "patternProperties" not in part else _NOT_CHECKED | _ALL_PROPERTIES
        if not str(part.get("$ref", "#")).startswith("#"):
            return {}
        return {
            key: {name: reduced(value) for name, value in parts.items()}
            if key in _BY_NAME and isinstance(parts, dict)
            else (parts if key in _VALUES else reduced(parts))
            for key, parts in part.items()
            if key not in dropped
        }

    return reduced(dict(schema))


@functools.lru_cache(maxsize=8)
def prompt_tools(frozen: str) -> str:
    """Return frozen tools as JSON text for the `tools` field of a chat request; empty without tools."""
    tools = [
        {
            "type": "function",
            "function": {"name": tool.alias, "description": tool.description, "parameters": dict(tool.schema)},
        }
        for tool in thaw(frozen).tools
    ]
    return json.dumps(tools, ensure_ascii=False) if tools else ""
