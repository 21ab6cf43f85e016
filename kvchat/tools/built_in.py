"""The built-in tools."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kvchat.tools.tool import BUILT_IN, Tool, ToolFailed, ToolResult


@dataclass(frozen=True)
class BuiltInTool:
    tool: Tool
    run: Callable[[Mapping[str, Any]], Awaitable[ToolResult]]


class BuiltInTools:
    """Source of the built-in tools. A chat has none of them unless it selected them."""

    id = BUILT_IN

    def __init__(self, tools: Sequence[BuiltInTool] = ()) -> None:
        self._tools = {built_in.tool.name: built_in for built_in in (DATE_AND_TIME, *tools)}

    async def tools(self) -> Sequence[Tool]:
        return [built_in.tool for built_in in self._tools.values()]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if (built_in := self._tools.get(name)) is None:
            raise ToolFailed(f"There is no built-in tool named {name}")
        return await built_in.run(arguments)

    async def close(self) -> None: ...


async def _date_and_time(arguments: Mapping[str, Any]) -> ToolResult:
    now = datetime.now().astimezone()
    return ToolResult(f"{now:%A}, {now.isoformat(sep=' ', timespec='seconds')} ({now.tzname()})")


DATE_AND_TIME = BuiltInTool(
    Tool(
        BUILT_IN,
        "date_and_time",
        "Return the current local date, time and time zone.",
        {"type": "object", "properties": {}, "additionalProperties": False},
        read_only=True,
    ),
    _date_and_time,
)
