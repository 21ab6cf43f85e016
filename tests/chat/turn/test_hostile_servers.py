"""MCP servers that crash, hang, flood, lie, change and ask within a turn: one sentence each, and the chat goes on."""

import json
import sys

import pytest

from kvchat.chat.events import Notice
from kvchat.chat.options import PermissionMode
from kvchat.chat.record.messages import MessageState, Role
from kvchat.chat.turn.tool_calls import DENIED_RESULT, Answer, Decision
from kvchat.tools.mcp import connection
from tests.chat.sky import answer, chat_with_tools, results
from tests.chat.stage import Stage
from tests.tools.mcp.conftest import FAULTY_SERVER

pytestmark = pytest.mark.long
FAILED = "The request to the MCP server “faulty” failed."
STILL = "still there"


async def add_server(stage: Stage, name: str, mode: str = "") -> None:
    servers = stage.runtime.mcp_servers
    await servers.add(name, {"command": sys.executable, "args": [str(FAULTY_SERVER), mode]})
    await servers.approve(servers.source(name).server)


async def call(stage: Stage, tools: tuple[str, ...], *calls: tuple[str, str]) -> list[str]:
    """Have the model of a new chat call tools, one per reply, and return the results; the chat goes on afterwards."""
    planned = [[{"name": name, "arguments": json.dumps({"text": text})}] for name, text in calls]
    stage.fake.set(FAKE_CALLS=json.dumps(planned))
    chat = await chat_with_tools(stage, PermissionMode.ALL, tools)
    reply = await stage.ask(chat, "Call them.")
    assert reply is not None, stage.errors()
    assert reply.state is MessageState.COMPLETE
    assert await stage.ask(chat, "And now?") is not None, stage.errors()
    return await results(stage, chat)


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [
        ("crash", f"{FAILED} The server stopped with exit code 3. Its last message: boom: no more disk"),
        ("hang", f"{FAILED} The server did not respond in time."),
        ("garbage", f"{FAILED} The server did not respond in time."),
        ("flood", f"{FAILED} The server sent a message of more than 32 MB."),
        ("requests", f"{FAILED} The server sent too many requests."),
        ("lie", f"{FAILED} The server’s response does not follow the protocol."),
        ("elicit", "declined: Elicitation not supported"),
    ],
)
async def test_fault_in_a_call(stage: Stage, monkeypatch: pytest.MonkeyPatch, tool: str, sentence: str) -> None:
    await add_server(stage, "faulty")
    await stage.runtime.mcp_servers.start("faulty")
    if tool in ("hang", "garbage"):
        monkeypatch.setattr(connection, "CALL_TIMEOUT_S", 1.0)
    failed, *again = await call(stage, ("faulty/*",), (tool, ""), ("echo", STILL))
    assert failed == sentence
    assert again == [STILL] or tool in ("hang", "garbage")  # a slow machine may take a second for this, too


async def test_quitting_during_a_call(stage: Stage) -> None:
    await add_server(stage, "faulty")
    stage.fake.set(FAKE_CALLS=json.dumps([[{"name": "hang", "arguments": "{}"}]]))
    chat = await chat_with_tools(stage, PermissionMode.ALL, ("faulty/*",))
    stage.service.send(chat, "Call it.")
    await stage.until(lambda: any(not call.is_waiting for call in stage.service.turns.tool_calls.pending_in(chat)))
    await stage.restart()
    assert (await stage.messages(chat))[-1].role is Role.ASSISTANT, "the call can be executed later"


async def test_list_that_changes(stage: Stage) -> None:
    await add_server(stage, "faulty")
    called = await call(stage, ("faulty/*",), ("change", ""), ("echo", STILL), ("noise", ""))
    sentence = "“faulty” no longer offers this tool or has changed it since you approved it."
    assert called == ["changed", f"The tool “echo” is not available. {sentence}", "after the noise"]


async def test_server_that_asks_for_input(stage: Stage) -> None:
    await add_server(stage, "faulty", "asking")
    assert await call(stage, ("faulty/*",), ("ask", "")) == [
        f"{FAILED} The server requested more input, which kvchat does not support."
    ]


async def test_ten_thousand_tools(stage: Stage) -> None:
    await add_server(stage, "faulty", "many")
    assert await call(stage, ("faulty/tool7",), ("tool7", "")) == ["called tool7"]
    problems = stage.runtime.mcp_servers.source("faulty").server.problems
    assert problems == ("The server has too many tools. Only the first 512 are offered.",)


async def test_nested_schemas_and_halves_of_characters(stage: Stage) -> None:
    await add_server(stage, "faulty", "strange")
    called = await call(stage, ("faulty/*",), ("broken", ""), ("echo", "\ud83d"), ("nested", ""), ("echo", STILL))
    invalid = "Invalid arguments: The arguments are not a JSON object."
    assert called == ["half ? of it", invalid, "called nested", STILL]
    offered = stage.runtime.mcp_servers.source("faulty").server.tools
    assert [(item.tool.name, item.tool.description) for item in offered][:2] == [
        ("nested", "Does nested"),
        ("echo", "Half a character: ?"),
    ]


@pytest.mark.parametrize(
    ("mode", "title", "sentence"),
    [
        (
            "exit",
            "The MCP server “faulty” could not be started",
            "The server stopped with exit code 2. Its last message: missing API key. See its log in Settings, Tools.",
        ),
        (
            "lying",
            "The request to the MCP server “faulty” failed",
            "The server’s response does not follow the protocol.",
        ),
    ],
)
async def test_server_that_lists_no_tools(stage: Stage, mode: str, title: str, sentence: str) -> None:
    await add_server(stage, "faulty", mode)
    assert await call(stage, ("faulty/*",)) == []
    assert [(notice.title, notice.detail) for notice in stage.of(Notice)] == [(title, sentence)]


async def test_a_permission_does_not_count_for_a_tool_of_the_same_name(stage: Stage) -> None:
    for name in ("aaa", "zzz"):
        await add_server(stage, name)
    planned = [[{"name": alias, "arguments": "{}"}] for alias in ("echo", "echo", "zzz_echo")]
    stage.fake.set(FAKE_CALLS=json.dumps(planned))
    chat = await chat_with_tools(stage, PermissionMode.ASK, ("aaa/echo", "zzz/echo"))
    reply = stage.service.send(chat, "Call them.")
    await answer(stage, chat, Answer(Decision.ALWAYS))
    await stage.until(lambda: [call.tool.source for call in stage.service.turns.tool_calls.pending_in(chat)] == ["zzz"])
    await answer(stage, chat, Answer(Decision.DENY))
    assert await stage.finish(reply) is not None
    assert await results(stage, chat) == ["", "", DENIED_RESULT]
