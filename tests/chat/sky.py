"""A source of tools for tests of turns with tool calls, and a model that calls them."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvchat.chat.options import PermissionMode
from kvchat.chat.record.messages import Role
from kvchat.chat.turn.tool_calls import Answer
from kvchat.tools.tool import Tool, ToolFailed, ToolResult
from tests.chat.stage import Stage
from tests.pictures import png

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("sky", "weather", "Weather of a city", CITY, read_only=True)
SEND = Tool("sky", "send", "Send a report", CITY)


class Sky:
    """A source with a tool that only reads and one that does not."""

    id = "sky"

    def __init__(self) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.hold: asyncio.Event | None = None
        self.offered = [SEND, WEATHER]

    async def tools(self) -> Sequence[Tool]:
        return self.offered

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self.calls.append((name, arguments))
        if self.hold is not None:
            await self.hold.wait()
        if arguments["city"] == "Atlantis":
            raise ToolFailed("There is no such city")
        if arguments["city"] == "Oz":
            return ToolResult(
                "Seen.", pictures=(png(), b"\x89PNG\r\n damaged"), links=(("Map", "https://example.org/"),)
            )
        return ToolResult(f"12 degrees in {arguments['city']}")

    async def close(self) -> None: ...


async def chat_with_tools(
    stage: Stage, mode: PermissionMode = PermissionMode.READ_ONLY, tools: tuple[str, ...] = ("sky/*",)
) -> str:
    new = await stage.service.new_chat()
    options = replace(new.options, tools=tools, permission=mode)
    return (await stage.service.create(replace(new, options=options))).id


def plan(stage: Stage, *rounds: Sequence[tuple[str, str]]) -> None:
    """Have the model make these calls, one list per reply: (tool, city or JSON text)."""
    planned = [
        [
            {"name": name, "arguments": given if given[:1] in "{[" else json.dumps({"city": given})}
            for name, given in one
        ]
        for one in rounds
    ]
    stage.fake.set(FAKE_CALLS=json.dumps(planned))


async def contents(stage: Stage, chat: str) -> list[tuple[str, str]]:
    messages = await stage.messages(chat)
    return [(message.role.value, message.content) for message in messages if message.role is not Role.SYSTEM]


async def results(stage: Stage, chat: str) -> list[str]:
    """Return the results of the tool calls in a chat."""
    return [message.content for message in await stage.messages(chat) if message.role is Role.TOOL]


async def answer(stage: Stage, chat: str, answer: Answer) -> None:
    """Answer the next question, and wait until the call has ended or runs."""
    calls = stage.service.turns.tool_calls
    await stage.until(lambda: any(call.is_waiting for call in calls.pending_in(chat)))
    (waiting,) = calls.pending_in(chat)
    calls.answer(waiting.key, answer)
    await stage.until(lambda: waiting not in calls.pending_in(chat))
