"""Configuration, approval and secrets of servers, without running any; and two that run."""

import json
import sys

import pytest

from kvchat.errors import KvchatError
from kvchat.system.paths import Paths
from kvchat.tools.mcp.connection import Connection
from kvchat.tools.mcp.manager import ServerManager
from kvchat.tools.mcp.server import ServerState
from kvchat.tools.tool import ToolFailed
from tests.systems import has_mode
from tests.tools.mcp.conftest import FAULTY_SERVER, Start

ENTRY = {"command": sys.executable, "args": [str(FAULTY_SERVER)]}


async def reopened(paths: Paths) -> ServerManager:
    manager = ServerManager(paths)
    await manager.load()
    return manager


async def test_nothing_runs_before_approval(manager: ServerManager, paths: Paths) -> None:
    await manager.add("a", ENTRY)
    [server] = manager.servers
    assert server.state is ServerState.NOT_APPROVED
    assert str(FAULTY_SERVER) in server.config.launch
    assert manager.sources == ()
    with pytest.raises(ToolFailed, match="You have not approved"):
        await manager.start("a")
    await manager.approve(manager.source("a").server)
    assert [source.id for source in (await reopened(paths)).sources] == ["a"]
    shown = manager.source("a").server
    await manager.add("a", ENTRY | {"env": {"LD_PRELOAD": "evil.so"}}, replace=True)
    await manager.approve(shown)
    assert manager.servers[0].state is ServerState.NOT_APPROVED
    assert (await reopened(paths)).sources == ()


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 5}', '{"a": {"launch": 1, "tools": 2}}'])
async def test_damaged_approvals_approve_nothing(manager: ServerManager, paths: Paths, text: str) -> None:
    await manager.add("a", ENTRY)
    await manager.approve(manager.source("a").server)
    paths.mcp_approvals.write_text(text)
    assert [server.state for server in (await reopened(paths)).servers] == [ServerState.NOT_APPROVED]


async def test_configuration_cannot_approve(manager: ServerManager, paths: Paths) -> None:
    await manager.add("a", ENTRY | {"approved": True, "launch": "x", "autoApprove": ["*"], "alwaysAllow": ["*"]})
    assert manager.servers[0].state is ServerState.NOT_APPROVED


async def test_changed_and_new_tools_wait_for_approval(faulty: Start, manager: ServerManager, paths: Paths) -> None:
    source = await faulty()
    tools = await source.tools()
    await manager.stop("faulty")
    approvals = json.loads(paths.mcp_approvals.read_text())
    approvals["faulty"]["tools"]["echo"] = "another digest"
    del approvals["faulty"]["tools"]["crash"]
    paths.mcp_approvals.write_text(json.dumps(approvals))
    await manager.load()
    offered = await source.tools()
    assert {tool.name for tool in tools} - {tool.name for tool in offered} == {"echo", "crash"}
    assert [tool.name for tool in source.server.pending_tools] == ["echo", "crash"]
    await manager.approve_tools(manager.source("faulty").server)
    assert await source.tools() == tools


async def test_failed_list_lets_no_call_pass(
    faulty: Start, manager: ServerManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_connection: Connection) -> None:
        raise ToolFailed("The server did not respond in time.")

    source = await faulty()
    await manager.set_tool_enabled("faulty", "echo", False)
    with monkeypatch.context() as failing:
        failing.setattr(Connection, "tools", fail)
        with pytest.raises(ToolFailed, match="in time"):
            await source.tools()
    with pytest.raises(ToolFailed, match="turned off"):
        await source.call("echo", {})


async def test_tools_and_servers_are_switched_off(faulty: Start, manager: ServerManager) -> None:
    source = await faulty(custom={"kept": 1})
    await source.tools()
    await manager.set_tool_enabled("faulty", "echo", False)
    assert manager.source("faulty") is source, "it keeps running"
    assert source.server.state is ServerState.RUNNING
    assert "echo" not in [tool.name for tool in await source.tools()]
    assert [item.tool.name for item in source.server.tools if not item.enabled] == ["echo"]
    with pytest.raises(ToolFailed, match="turned off"):
        await source.call("echo", {})
    await manager.set_enabled("faulty", False)
    assert source.server.state is ServerState.OFF
    assert manager.sources == ()
    with pytest.raises(ToolFailed, match="turned off"):
        await source.call("echo", {})
    await manager.set_enabled("faulty", True)
    await manager.set_tool_enabled("faulty", "echo", True)
    assert "echo" in [tool.name for tool in await source.tools()]
    assert (await manager.entry("faulty"))["custom"] == {"kept": 1}
    assert "disabledTools" not in await manager.entry("faulty")


async def test_edits_by_hand(faulty: Start, manager: ServerManager) -> None:
    source = await faulty()
    await source.tools()
    content = json.loads(manager.file.read_text())
    content["mcpServers"]["other"] = {"url": "https://example.org/mcp"}
    manager.file.write_text(json.dumps(content))
    await manager.load()
    assert [(server.name, server.state) for server in manager.servers] == [
        ("faulty", ServerState.RUNNING),
        ("other", ServerState.NOT_APPROVED),
    ]
    manager.file.write_text("{")
    await manager.load()
    assert manager.problem is not None
    assert source.server.state is ServerState.RUNNING, "a typing error stops nothing"
    with pytest.raises(KvchatError, match="Correct the file"):
        await manager.set_enabled("faulty", False)
    del content["mcpServers"]["faulty"]
    manager.file.write_text(json.dumps(content))
    await manager.load()
    assert manager.problem is None
    assert source.server.state is not ServerState.RUNNING


async def test_secrets_move_to_the_keyring(faulty: Start, manager: ServerManager, paths: Paths) -> None:
    source = await faulty(env={"API_TOKEN": "hush", "ZONE": "UTC"})
    assert await manager.hide_secrets("faulty") == ["API_TOKEN"]
    assert "hush" not in manager.file.read_text()
    source = manager.source("faulty")
    assert source.config.environment == {"API_TOKEN": "${keyring:API_TOKEN}", "ZONE": "UTC"}
    assert "hush" not in source.config.launch
    assert json.loads((await source.call("env", {})).text)["API_TOKEN"] == "hush"
    await manager.add("thief", ENTRY | {"env": {"X": "${keyring:API_TOKEN}"}})
    await manager.approve(manager.source("thief").server)
    with pytest.raises(ToolFailed, match=r"\${keyring:API_TOKEN} has no value"):
        await manager.start("thief")
    await manager.remove("faulty")
    assert not [path for path in paths.config.iterdir() if path.name != "mcp.json"]
    assert "faulty" not in paths.mcp_approvals.read_text()


async def test_names_and_imports(manager: ServerManager) -> None:
    await manager.add("a", ENTRY)
    with pytest.raises(KvchatError, match="already exists"):
        await manager.add("a", ENTRY)
    with pytest.raises(KvchatError, match="neither a command nor a URL"):
        await manager.add("b", {})
    with pytest.raises(KvchatError, match="Configured servers: a"):
        manager.source("nobody")
    assert has_mode(manager.file, 0o600)
    assert await manager.add_all({"a": {"command": "evil"}, "b": {"command": "b"}}) == ["b"]
    assert [server.config.command for server in manager.servers] == [sys.executable, "b"]
    assert manager.sources == ()


async def test_unwritable_folder(manager: ServerManager, paths: Paths) -> None:
    paths.config.write_text("a file is in the way")
    with pytest.raises(KvchatError, match=r"could not be (read|saved)"):
        await manager.add("a", ENTRY)
