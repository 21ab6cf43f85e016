"""Servers that crash, hang, flood, lie and ask: one clear sentence each, and the next call works."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvchat.tools.mcp import connection, process, results
from kvchat.tools.mcp.manager import ServerManager
from kvchat.tools.mcp.server import ServerState
from kvchat.tools.tool import MAX_RESULT_CHARS, ToolFailed
from tests.engine.waiting import until
from tests.systems import needs_signals
from tests.tools.mcp.conftest import FAULTY_SERVER, Start


async def test_tools_and_calls(faulty: Start, manager: ServerManager) -> None:
    source = await faulty()
    assert source.server.state is ServerState.NOT_STARTED
    tools = await source.tools()
    assert ("echo", "Does echo", False) in [(tool.name, tool.description, tool.read_only) for tool in tools]
    assert (await source.call("echo", {"text": "héron"})).text == "héron"
    assert source.server.state is ServerState.RUNNING
    failed = await source.call("error", {})
    assert (failed.text, failed.is_error) == ("The file is missing", True)
    assert (await source.call("noise", {})).text == "after the noise"
    assert "Server is listening on port 1234" in source.log.lines
    await manager.stop("faulty")
    assert source.server.state is ServerState.NOT_STARTED


async def test_calls_run_in_parallel(faulty: Start) -> None:
    source = await faulty()
    results = await asyncio.gather(*(source.call("echo", {"text": str(number)}) for number in range(20)))
    assert [result.text for result in results] == [str(number) for number in range(20)]


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [
        ("crash", "The server stopped with exit code 3. Its last message: boom: no more disk"),
        ("flood", "The server sent a message of more than 32 MB."),
        ("requests", "The server sent too many requests."),
    ],
)
async def test_server_ends_during_a_call(faulty: Start, tool: str, sentence: str) -> None:
    source = await faulty()
    with pytest.raises(ToolFailed) as failed:
        await source.call(tool, {})
    assert str(failed.value) == f"The request to the MCP server “faulty” failed. {sentence}"
    await until(lambda: source.server.state is ServerState.FAILED)
    assert source.server.reason == sentence
    assert (await source.call("echo", {"text": "restarted"})).text == "restarted"


async def test_flood_takes_bounded_memory(faulty: Start) -> None:
    source = await faulty()
    await source.tools()
    tracemalloc.start()
    try:
        with pytest.raises(ToolFailed):
            await source.call("flood", {})
        assert tracemalloc.get_traced_memory()[1] < 4 * process.MAX_MESSAGE_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("tool", ["hang", "garbage", "deep"])
async def test_call_without_an_answer(faulty: Start, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    source = await faulty()
    await source.tools()
    monkeypatch.setattr(connection, "CALL_TIMEOUT_S", 0.5)
    with pytest.raises(ToolFailed, match="failed"):
        await source.call(tool, {})
    await until(lambda: "cancelled" in source.log.lines)
    monkeypatch.undo()
    assert (await source.call("echo", {"text": "still there"})).text == "still there"


async def test_answer_of_a_wrong_type(faulty: Start) -> None:
    source = await faulty()
    with pytest.raises(ToolFailed, match="The server’s response does not follow the protocol"):
        await source.call("lie", {})
    assert (await source.call("echo", {"text": "still there"})).text == "still there"


async def test_cancelled_call_is_cancelled_at_the_server(faulty: Start) -> None:
    source = await faulty()
    await source.tools()
    calling = asyncio.create_task(source.call("hang", {}))
    await asyncio.sleep(0.1)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await until(lambda: "cancelled" in source.log.lines)


@pytest.mark.slow
async def test_progress_extends_the_time(faulty: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    source = await faulty()
    await source.tools()
    monkeypatch.setattr(connection, "CALL_TIMEOUT_S", 3.0)
    assert (await source.call("progress", {"steps": 12, "seconds": 0.4})).text == "done"  # 4.8 s
    monkeypatch.setattr(connection, "CALL_LIMIT_S", 0.5)
    with pytest.raises(ToolFailed, match="did not respond in time"):
        await source.call("progress", {"steps": 100, "seconds": 0.1})


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("exit", "The server stopped with exit code 2. Its last message: missing API key"),
        ("mute", "The server did not respond within 1 seconds."),
    ],
)
async def test_server_does_not_start(faulty: Start, monkeypatch: pytest.MonkeyPatch, mode: str, sentence: str) -> None:
    if mode == "mute":
        monkeypatch.setattr(connection, "START_TIMEOUT_S", 1.0)
    source = await faulty(mode)
    for _attempt in range(2):
        with pytest.raises(ToolFailed, match="could not be started") as failed:
            await source.tools()
        assert failed.value.detail == sentence
    assert source.server.state is ServerState.FAILED
    assert sentence in source.server.reason


async def test_closing_interrupts_a_start(faulty: Start) -> None:
    source = await faulty("mute")
    starting = asyncio.create_task(source.tools())
    await until(lambda: bool(source.log.lines))
    await source.close()
    with pytest.raises(ToolFailed, match="stopped while it was starting"):
        await starting
    assert source.server.state is not ServerState.RUNNING


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"cwd": "/nowhere/at/all"}, "could not be started"),
        ({"command": "npx-of-nobody"}, "npx-of-nobody was not found"),
    ],
)
async def test_folder_or_command_is_missing(faulty: Start, entry: dict[str, str], reason: str) -> None:
    with pytest.raises(ToolFailed, match=reason):
        await (await faulty(**entry)).tools()


@pytest.mark.parametrize("tool", ["elicit", "sample"])
async def test_requests_for_input_are_declined(faulty: Start, tool: str) -> None:
    source = await faulty()
    assert "not supported" in (await source.call(tool, {})).text
    assert any("kvchat declined" in line for line in source.log.lines)


async def test_ten_thousand_tools(faulty: Start) -> None:
    source = await faulty("many")
    assert len(await source.tools()) == results.MAX_TOOLS
    assert source.server.problems == ("The server has too many tools. Only the first 512 are offered.",)


async def test_unusable_tools_are_named(faulty: Start) -> None:
    source = await faulty("odd")
    tools = {tool.name: tool for tool in await source.tools()}
    assert list(tools) == ["good", "writes", "twice"]
    assert tools["good"].read_only
    assert not tools["writes"].read_only
    assert tools["good"].description == "Reads␛[31m it"
    [problem] = source.server.problems
    assert problem.startswith("6 tools have an invalid name or schema and are not offered: twice, bad␀name, clock")


async def test_list_of_wrong_types(faulty: Start) -> None:
    source = await faulty("lying")
    with pytest.raises(ToolFailed, match="The server’s response does not follow the protocol"):
        await source.tools()


async def test_contents_of_results(faulty: Start) -> None:
    source = await faulty()
    result = await source.call("contents", {})
    assert result.text == (
        "one\n\nfile:///a.txt\ntwo\n\nfile:///a.bin [a/b, 3 bytes is not shown]\n\n"
        "Link: https://example.org/\u202e\n\n[audio/wav is not shown]"
    )
    assert result.links == (("Link", "https://example.org/"),)
    assert json.loads((await source.call("structured", {})).text) == {"sum": 3}
    result = await source.call("pictures", {})
    assert len(result.pictures) == results.MAX_PICTURES
    assert result.text.count("only the first 8 images are shown") == 3
    result = await source.call("long", {})
    assert len(result.text) <= MAX_RESULT_CHARS
    assert result.text.endswith("[40,000 of 500,000 characters are shown]")


async def test_environment_is_minimal(faulty: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    source = await faulty(env={"GIVEN": "yes", "FROM_ENV": "<${env:MY_TOKEN}>"})
    environment = json.loads((await source.call("env", {})).text)
    assert environment["GIVEN"] == "yes"
    assert environment["FROM_ENV"] == "<secret>"
    assert "MY_TOKEN" not in environment
    assert "PYTEST_CURRENT_TEST" not in environment


async def test_list_changes(faulty: Start, manager: ServerManager) -> None:
    source = await faulty()
    await source.tools()
    events: list[bool] = []
    unsubscribe = manager.subscribe(lambda: events.append(source.server.tools_changed))
    await source.call("change", {})
    await until(lambda: source.server.tools_changed)
    unsubscribe()
    assert events == [True]  # once for 50 notifications
    names = [tool.name for tool in await source.tools()]
    assert "echo" not in names, "its description is new"
    assert not source.server.tools_changed
    assert [tool.description for tool in source.server.pending_tools] == ["Deletes everything"]
    with pytest.raises(ToolFailed, match="tool has changed"):
        await source.call("echo", {})
    await manager.approve_tools(manager.source("faulty").server)
    assert "echo" in [tool.name for tool in await source.tools()]


async def test_failed_listing_does_not_hide_attachments(
    faulty: Start, manager: ServerManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = await faulty("attachments")
    await source.tools()
    await until(lambda: manager.attachment_sources)
    opened = source._connection

    async def fail() -> list[Any]:
        raise ToolFailed("The server is busy")

    monkeypatch.setattr(opened, "prompts", fail)
    monkeypatch.setattr(opened, "resources", fail)
    await manager._context.thread.run(opened._look_for_attachments())
    await source.close()  # after what it noted
    assert manager.attachment_sources == (source,)


async def test_announced_list_is_forgotten_with_its_server(faulty: Start) -> None:
    """Otherwise the window, which queries servers with a new list, would start a crashing server again and again."""
    source = await faulty()
    await source.tools()
    await source.call("change", {})
    await until(lambda: source.server.tools_changed)
    with pytest.raises(ToolFailed):
        await source.call("crash", {})
    await until(lambda: source.server.state is ServerState.FAILED)
    assert not source.server.tools_changed
    await source.tools()
    await source.call("change", {})
    await until(lambda: source.server.tools_changed)
    await source.close()
    assert not source.server.tools_changed


async def test_server_of_the_newest_version(faulty: Start) -> None:
    source = await faulty("modern")
    first = await source.tools()
    assert [tool.description for tool in first] == ["List 1"]
    assert await source.tools() == first, "the list is fresh for some time"
    with pytest.raises(ToolFailed, match="The server requested more input, which kvchat does not support"):
        await source.call("ask", {})
    while await source.tools() == first:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    assert [tool.description for tool in source.server.pending_tools] == ["List 2"]


@needs_signals
async def test_stubborn_server_and_its_children_are_killed(faulty: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_TIMEOUTS_S", (0.1, 0.1))
    source = await faulty("stubborn")
    server, child = map(int, (await source.call("child", {})).text.split())
    await source.close()
    await until(lambda: not psutil.pid_exists(server) and not _is_alive(child))


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


APP = """
import asyncio, sys
from pathlib import Path
from kvchat.system.paths import Paths
from kvchat.tools.mcp.manager import ServerManager

async def main():
    manager = ServerManager(Paths(*[Path(sys.argv[1], name) for name in "abcd"]))
    await manager.load()
    await manager.add("faulty", {"command": sys.executable, "args": [sys.argv[2], "stubborn"]})
    await manager.approve(manager.source("faulty").server)
    print((await manager.source("faulty").call("child", {})).text, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@needs_signals
async def test_server_dies_with_a_killed_app(tmp_path: Path) -> None:
    app = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", APP, tmp_path, FAULTY_SERVER],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with app:
        server, child = map(int, re.findall(r"\d+", await asyncio.to_thread(app.stdout.readline)))
        assert _is_alive(server)
        assert _is_alive(child)
        app.kill()
    await until(lambda: not _is_alive(server) and not _is_alive(child))


async def test_sdk_is_not_imported_before_a_server_starts() -> None:
    code = "import sys, kvchat.tools.mcp.manager; sys.exit('mcp' in sys.modules or 'pydantic' in sys.modules)"
    assert await asyncio.to_thread(subprocess.call, [sys.executable, "-c", code]) == 0
