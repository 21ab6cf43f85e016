"""Tool calls: tokens reused in five rounds with a restart between each, and in a second chat with the same tools."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from kvchat.chat.options import PermissionMode
from kvchat.chat.record.database import Database
from kvchat.chat.record.messages import Message, Role, prompt_messages
from kvchat.chat.turn.tool_calls import Answer, Decision
from kvchat.chat.turn.turn import MAX_ROUNDS
from kvchat.cli.arguments import BenchOptions
from kvchat.cli.bench import BenchSetup, bench_home
from kvchat.cli.terminal import print_err
from kvchat.engine.api import wire
from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.wire import ChatChunk, ChatMessage, Sampling
from kvchat.tools.tool import Tool, ToolResult
from kvchat.tools.toolbox import Toolbox
from tests.bench import shared_prompt

ROUNDS = 5
TOOLS, CHATS = 120, 20  # some 10,000 tokens of definitions; chats that share them
REPLY_TOKENS = 120
QUESTION = "How is the weather in the towns on the river? Look it up, town by town."


class Towns:
    """A source of many tools, of which one is called."""

    id = "towns"

    def __init__(self, tools: int) -> None:
        town = {"type": "string", "maxLength": 12}
        schema = {"type": "object", "properties": {"town": town}, "required": ["town"], "additionalProperties": False}
        weather = Tool("towns", "weather", "Return the weather in a town.", schema)
        others = [
            Tool("towns", f"measure_{number}", f"Return measurement {number} of a town: level, flow, heat.", schema)
            for number in range(tools)
        ]
        self._tools = [weather, *others]

    async def tools(self) -> Sequence[Tool]:
        return self._tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(f"12 degrees and rain in {arguments['town']}. " * 5)

    async def close(self) -> None: ...


@contextlib.contextmanager
def forcing_calls(name: str, arguments: str = "{", rounds: int = MAX_ROUNDS) -> Iterator[None]:
    """Begin each reply with a call of this tool, which the engine's grammar then completes and its parser reads.

    Models of a few MB would not choose a tool by themselves. `arguments`: the beginning of the arguments' JSON text;
    `rounds`: the number of results after which replies are no longer forced.
    """
    chat, body = LlamaServerClient.chat, wire.chat_body

    def one_call(prompt: wire.Body, sampling: Sampling, slot: int = 0) -> wire.Body:
        limits = {"parallel_tool_calls": False, "tool_choice": "required", "stop": ["</tool_call>"]}
        return body(prompt, sampling, slot) | (limits if prompt["messages"][-1]["role"] == "assistant" else {})

    def forced(
        client: LlamaServerClient, messages: Sequence[ChatMessage], sampling: Sampling
    ) -> AsyncGenerator[ChatChunk, None]:
        results = sum(message.role == Role.TOOL.value for message in messages)
        begun = ChatMessage("assistant", f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}')
        return chat(client, [*messages, begun] if messages[0].tools and results < rounds else messages, sampling)

    with mock.patch.object(LlamaServerClient, "chat", forced), mock.patch.object(wire, "chat_body", one_call):
        yield


async def measure(options: BenchOptions) -> dict[str, Any]:
    """Measure rounds of calls with a restart between each, and chats that share their tools. Raises KvchatError.

    `least_reused`: the smallest share of a prompt after the first that was not processed again. The rest is the new
    result. `outputs_agree`: each greedy reply equals that of a slot which was erased before.
    """
    rounds = await measure_rounds(options, TOOLS, ROUNDS)
    shared = await shared_prompt.measure(options, CHATS, await Towns(TOOLS).tools())
    return {
        "rounds": rounds,
        "least_reused": min(entry["cached_tokens"] / entry["prompt_tokens"] for entry in rounds[1:]),
        "outputs_agree": all(entry["agrees"] for entry in rounds),
        "shared": shared,
    }


async def measure_rounds(options: BenchOptions, tools: int, rounds: int) -> list[dict[str, Any]]:
    """Measure rounds of one turn. After each, kvchat restarts while the call waits for permission."""
    source, measured = Towns(tools), list[dict[str, Any]]()
    async with bench_home(options, reply_tokens=REPLY_TOKENS) as home:
        shared_prompt.use_template(home, shared_prompt.TEMPLATE)
        with forcing_calls("weather"):
            await _restart(home, source)
            new = await home.runtime.chat.new_chat()
            chosen = dataclasses.replace(new.options, tools=("towns/*",), permission=PermissionMode.ASK)
            new = dataclasses.replace(new, options=chosen)
            home.runtime.chat.send(new.id, QUESTION, home.greedy_sampling, new=new)
            for number in range(1, rounds + 1):
                print_err(f"Round {number} …")
                reply = await _wait_for_question(home, new.id)
                receipt, agrees = reply.receipt, await _agrees_with_cold(home, reply)
                assert receipt is not None
                measured.append(
                    {
                        "cached_tokens": receipt.cached_tokens,
                        "prompt_tokens": receipt.prompt_tokens,
                        "source": receipt.source,
                        "agrees": agrees,
                        "arguments": reply.calls[0].arguments,
                    }
                )
                await _restart(home, source)
                home.runtime.chat.retry(new.id, home.greedy_sampling)
                await _allow(home, new.id)
    return measured


async def _until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - the condition may be anything
        await asyncio.sleep(0.01)


async def _restart(home: BenchSetup, source: Towns) -> None:
    await home.restart()
    home.runtime.chat.turn_context.toolbox = Toolbox(lambda: [source])


async def _allow(home: BenchSetup, chat: str) -> None:
    key, calls = await _pending(home, chat), home.runtime.chat.turns.tool_calls
    calls.answer(key, Answer(Decision.ONCE))
    await _until(lambda: key not in calls.pending)


async def _pending(home: BenchSetup, chat: str) -> str:
    calls = home.runtime.chat.turns.tool_calls
    await _until(lambda: calls.pending_in(chat))
    return calls.pending_in(chat)[0].key


async def _wait_for_question(home: BenchSetup, chat: str) -> Message:
    """Wait until a call waits for permission and its reply is saved; return the reply."""
    saved = len(home.saves)
    await _pending(home, chat)
    await _until(lambda: len(home.saves) > saved)
    return (await home.runtime.chat.messages(chat))[-1]


async def _agrees_with_cold(home: BenchSetup, reply: Message) -> bool:
    """Compare a reply with one computed in an erased slot."""
    path = await home.runtime.chat.turn_context.run(Database.path, reply.parent_id or "")
    engine = (await home.runtime.engine.ready()).engine
    async with home.runtime.chat.slots.exclusive():
        await engine.erase_slot()
        home.runtime.chat.slots.forget()
        pieces: list[str] = []
        async for chunk in engine.chat(prompt_messages(path), home.greedy_sampling):
            pieces += [delta.arguments for delta in chunk.calls if delta.index == 0]
    assert path[0].role is Role.SYSTEM
    return bool(json.loads("".join(pieces)) == json.loads(reply.calls[0].arguments))
