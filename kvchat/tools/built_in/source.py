"""The source of the built-in tools."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from kvchat.settings import Settings
from kvchat.tools.built_in.definition import BuiltInTool, ReadText, define
from kvchat.tools.built_in.files import file_tools
from kvchat.tools.built_in.python import RUN_PYTHON
from kvchat.tools.built_in.web import fetch_tool, search_tool
from kvchat.tools.tool import BUILT_IN, Tool, ToolFailed, ToolResult, calling_chat

LookUp = Callable[[str, str], Awaitable[Sequence[str]]]  # id of a chat, and a question; passages
SearchChats = Callable[[str], Awaitable[Sequence[tuple[str, str]]]]  # words; titles and excerpts


class BuiltInTools:
    """A chat has none of them unless it selected them."""

    id = BUILT_IN

    def __init__(
        self, settings: Callable[[], Settings], search_chats: SearchChats, look_up: LookUp, read_text: ReadText
    ) -> None:
        tools = (
            DATE_AND_TIME,
            chat_search_tool(search_chats),
            lookup_tool(look_up),
            *file_tools(lambda: settings().tool_folders, read_text),
            RUN_PYTHON,
            fetch_tool(read_text),
            search_tool(lambda: settings().web_search_url),
        )
        self._tools = {built_in.tool.name: built_in for built_in in tools}

    async def tools(self) -> Sequence[Tool]:
        return [built_in.tool for built_in in self._tools.values() if built_in.is_offered()]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if (built_in := self._tools.get(name)) is None:
            raise ToolFailed(f"There is no built-in tool named {name}")
        return await built_in.run(arguments)

    async def close(self) -> None: ...


async def _date_and_time(arguments: Mapping[str, Any]) -> ToolResult:
    now = datetime.now().astimezone()
    return ToolResult(f"{now:%A}, {now.isoformat(sep=' ', timespec='seconds')} ({now.tzname()})")


DATE_AND_TIME = BuiltInTool(
    replace(define("date_and_time", "Return the current local date, time and time zone.", {}), read_only=True),
    _date_and_time,
)


def chat_search_tool(search: SearchChats) -> BuiltInTool:
    async def run(arguments: Mapping[str, Any]) -> ToolResult:
        found = await search(arguments["query"])
        lines = [f"- {title or 'Untitled'}: {excerpt}" for title, excerpt in found]
        return ToolResult("\n".join(lines) or "No chat contains all these words.")

    description = (
        "Search the user's earlier chats. Return the titles of the chats in which one message contains all words "
        "of the query, with the place where they occur."
    )
    query = {"type": "string", "minLength": 1, "maxLength": 200, "description": "Words to search for"}
    return BuiltInTool(replace(define("search_chats", description, {"query": query}), read_only=True), run)


def lookup_tool(look_up: LookUp) -> BuiltInTool:
    async def run(arguments: Mapping[str, Any]) -> ToolResult:
        passages = await look_up(calling_chat.get(), arguments["query"])
        return ToolResult("\n\n".join(passages) or "No document in this chat has a matching passage.")

    description = (
        "Search the documents attached to this chat. Return the best matching passages, word for word, each below its "
        "place in brackets. Name the place when you use a passage."
    )
    query = {"type": "string", "minLength": 1, "maxLength": 500, "description": "Question, or words of the document"}
    return BuiltInTool(replace(define("search_documents", description, {"query": query}), read_only=True), run)
