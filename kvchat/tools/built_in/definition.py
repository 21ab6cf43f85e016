"""Definition of built-in tools, and functions that several of them share."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvchat.errors import KvchatError
from kvchat.tools.tool import BUILT_IN, Tool, ToolFailed, ToolResult

ReadText = Callable[[str, bytes, str | None], str]  # name, data, format if known; blocking; raises KvchatError
MAX_PART_CHARS = 30_000  # of a text in one result: about 8,000 tokens
START = {"type": "integer", "minimum": 0, "description": "Character to start at, to read on in a long text"}


@dataclass(frozen=True)
class BuiltInTool:
    tool: Tool
    run: Callable[[Mapping[str, Any]], Awaitable[ToolResult]]
    is_offered: Callable[[], bool] = lambda: True


def define(name: str, description: str, required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Tool:
    """Return a tool that is not read-only. `required` and `optional`: JSON schemas of the arguments by name."""
    properties = {**required, **(optional or {})}
    schema = {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}
    return Tool(BUILT_IN, name, description, schema)


def extracted_text(read_text: ReadText, name: str, data: bytes, format: str | None = None) -> str:
    """Return the text of a document. Blocking. Raises ToolFailed."""
    try:
        return read_text(name, data, format)
    except KvchatError as error:
        raise ToolFailed(f"No text could be read from {name}", error.detail) from error


def part_of(text: str, start: int) -> str:
    """Return at most MAX_PART_CHARS of a text, with a note if there is more."""
    end = start + MAX_PART_CHARS
    if start == 0 and len(text) <= end:
        return text
    if start >= len(text):
        return f"[The text ends at character {len(text)}.]"
    more = f" Continue with start={end}." if end < len(text) else " This is the end."
    return f"{text[start:end]}\n[Characters {start} to {min(end, len(text))} of {len(text)}.{more}]"
