"""The reference servers of the package registries."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import HTMLResponse, PlainTextResponse

from kvchat.tools.mcp import connection
from kvchat.tools.mcp.manager import ServerManager
from kvchat.tools.mcp.server import ServerState
from kvchat.tools.mcp.source import McpSource
from tests.reference_servers import server_entry
from tests.tools.mcp.test_http import serving

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """These servers take seconds to import, and longer on a busy machine."""
    monkeypatch.setattr(connection, "START_TIMEOUT_S", 300.0)


async def start(manager: ServerManager, name: str, *arguments: str, **entry: Any) -> McpSource:
    await manager.add("real", server_entry(name, *arguments) | entry)
    await manager.approve(manager.source("real").server)
    source = manager.source("real")
    assert await source.tools()
    assert source.server.state is ServerState.RUNNING
    assert source.server.problems == ()
    return source


async def test_time(manager: ServerManager) -> None:
    source = await start(manager, "time", "--local-timezone", "Europe/Berlin")
    times = {"source_timezone": "UTC", "target_timezone": "Asia/Tokyo", "time": "12:00"}
    assert "21:00" in (await source.call("convert_time", times)).text
    assert (await source.call("get_current_time", {"timezone": "Nowhere"})).is_error


async def test_git(manager: ServerManager, tmp_path: Path) -> None:
    run = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "Plant the garden"]):
        await asyncio.to_thread(subprocess.run, [*run, *command], check=True)
    source = await start(manager, "git", "--repository", str(tmp_path))
    assert "Plant the garden" in (await source.call("git_log", {"repo_path": str(tmp_path)})).text
    by_name = {item.tool.name: item.tool for item in source.server.tools}
    assert by_name["git_log"].read_only
    assert not by_name["git_commit"].read_only


async def test_fetch(manager: ServerManager) -> None:
    async def site(scope: Any, receive: Any, send: Any) -> None:
        page = HTMLResponse("<html><body><article><h1>River</h1><p>The heron waits.</p></article></body></html>")
        answer = page if scope.get("path") == "/" else PlainTextResponse("none", 404)
        if scope["type"] == "http":
            await answer(scope, receive, send)

    async with serving(site) as url:
        source = await start(manager, "fetch", "--ignore-robots-txt", "--allow-private-ips")
        result = await source.call("fetch", {"url": f"{url}/", "raw": True})
        assert "The heron waits." in result.text
        assert [prompt.name for prompt in await source.prompts()] == ["fetch"]


async def test_filesystem(manager: ServerManager, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "a.txt").write_text("in the folder")
    (tmp_path / "b.txt").write_text("outside")
    source = await start(manager, "filesystem", str(folder))
    assert (await source.call("read_text_file", {"path": str(folder / "a.txt")})).text == "in the folder"
    assert (await source.call("read_text_file", {"path": str(tmp_path / "b.txt")})).is_error
    await source.call("write_file", {"path": str(folder / "c.txt"), "content": "new"})
    assert (folder / "c.txt").read_text() == "new"


async def test_memory(manager: ServerManager, tmp_path: Path) -> None:
    source = await start(manager, "memory", env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")})
    entity = {"name": "heron", "entityType": "bird", "observations": ["waits"]}
    await source.call("create_entities", {"entities": [entity]})
    await manager.restart("real")
    assert "waits" in (await source.call("search_nodes", {"query": "heron"})).text


async def test_everything(manager: ServerManager) -> None:
    source = await start(manager, "everything")
    assert "5" in (await source.call("get-sum", {"a": 2, "b": 3})).text
    assert (await source.call("get-tiny-image", {})).pictures[0].startswith(b"\x89PNG")
    assert (await source.call("get-resource-links", {"count": 3})).text.count("demo://resource/") == 3
    assert (await source.call("trigger-long-running-operation", {"duration": 1, "steps": 4})).text
    assert "GIVEN" not in json.loads((await source.call("get-env", {})).text)
    prompts = {prompt.name: prompt for prompt in await source.prompts()}
    [attachment] = await source.prompt(next(name for name, prompt in prompts.items() if not prompt.arguments), {})
    assert attachment.content
    resources = await source.resources()
    assert (await source.resource(resources[0].uri))[0].content
