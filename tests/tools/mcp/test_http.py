"""Servers over HTTP on this computer: of the SDK, of the older kind, with sign-in, and hostile ones."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations
from starlette.types import ASGIApp

from kvchat.tools.mcp import connection
from kvchat.tools.mcp.manager import ServerManager
from kvchat.tools.mcp.server import ServerState
from kvchat.tools.mcp.source import McpSource
from kvchat.tools.tool import ToolFailed
from tests.engine.waiting import until


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=0))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = server.force_exit = True
        await task


def make_server(**options: Any) -> MCPServer:
    server = MCPServer("demo", **options)

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    async def grow(ctx: Context) -> str:
        server.add_tool(add, name="another")
        await ctx.notify_tools_changed()
        return "grown"

    @server.prompt()
    def review(code: str) -> str:
        return f"Review {code}"

    @server.resource("docs://guide", mime_type="text/markdown")
    def guide() -> str:
        """The guide."""
        return "# Guide"

    @server.resource("docs://logo", mime_type="image/png")
    def logo() -> bytes:
        return b"\x89PNG"

    return server


async def add_server(manager: ServerManager, url: str, **entry: object) -> McpSource:
    await manager.add("web", {"url": url, **entry})
    await manager.approve(manager.source("web").server)
    return manager.source("web")


async def test_tools_prompts_and_resources(manager: ServerManager) -> None:
    async with serving(make_server().streamable_http_app()) as url:
        source = await add_server(manager, f"{url}/mcp")
        assert [(tool.name, tool.read_only) for tool in await source.tools()] == [
            ("add", True),
            ("grow", False),
        ]
        assert (await source.call("add", {"a": 2, "b": 3})).text == "5"
        assert (await source.call("add", {"a": "two"})).is_error
        [prompt] = await source.prompts()
        assert [(argument.name, argument.required) for argument in prompt.arguments] == [("code", True)]
        [text] = await source.prompt("review", {"code": "x = 1"})
        assert text.content == b"Review x = 1"
        assert [(item.uri, item.media_type) for item in await source.resources()] == [
            ("docs://guide", "text/markdown"),
            ("docs://logo", "image/png"),
        ]
        [attachment] = await source.resource("docs://guide")
        assert (attachment.name, attachment.content) == ("guide", b"# Guide")
        assert (await source.resource("docs://logo"))[0].content == b"\x89PNG"
        with pytest.raises(ToolFailed, match="failed"):
            await source.resource("docs://nothing")
        await until(lambda: manager.attachment_sources == (source,))
        await source.close()


async def test_change_of_the_list_is_announced(manager: ServerManager) -> None:
    async with serving(make_server().streamable_http_app()) as url:
        source = await add_server(manager, f"{url}/mcp")
        await source.tools()
        while not source.server.tools_changed:  # the subscription may not be open yet
            await source.call("grow", {})
            await asyncio.sleep(0.05)
        await source.tools()
        assert [tool.name for tool in source.server.pending_tools] == ["another"]
        await source.close()


async def test_older_transport(manager: ServerManager) -> None:
    async with serving(make_server().sse_app()) as url:
        source = await add_server(manager, f"{url}/sse")
        assert (await source.call("add", {"a": 2, "b": 3})).text == "5"
        await source.close()


async def test_server_that_restarts(manager: ServerManager) -> None:
    apps = [make_server().streamable_http_app(), make_server().streamable_http_app()]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await apps[0](scope, receive, send)

    async with serving(apps[0]) as url:
        source = await add_server(manager, f"{url}/mcp")
        assert (await source.call("add", {"a": 2, "b": 3})).text == "5"
    with pytest.raises(ToolFailed, match="cannot connect to"):
        await source.call("add", {"a": 2, "b": 3})
    await until(lambda: source.server.state is ServerState.FAILED)
    with pytest.raises(ToolFailed, match="could not be started"):
        await source.tools()


Answer = Callable[[dict[str, Any], Callable[..., Awaitable[None]]], Awaitable[None]]


def answering(status: int = 200, body: bytes = b"", **headers: str) -> ASGIApp:
    """Return an app that gives every request the same answer."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body})

    return app


HUGE = json.dumps({"jsonrpc": "2.0", "id": 1, "result": "x" * 40_000_000}).encode()


@pytest.mark.parametrize(
    ("app", "sentence"),
    [
        (answering(500), "The server returned HTTP status 500."),
        (answering(401), "The server requires you to sign in."),
        (answering(403), "The server requires you to sign in."),
        (answering(404), "The server returned HTTP status 404."),
        (answering(200, b"<html>", content_type="text/html"), "Unexpected content type: text/html"),
        (answering(200, b"{", content_type="application/json"), "Failed to parse JSON response"),
        (answering(200, HUGE, content_type="application/json"), "The server sent a message of more than 32 MB."),
        (answering(200, b"data: " + HUGE + b"\n\n", content_type="text/event-stream"), "SSE stream failed"),
        (answering(200, gzip.compress(HUGE), content_type="application/json", content_encoding="gzip"), "compressed"),
        (answering(307, location="http://127.0.0.1:1/stolen"), "not followed"),
    ],
    ids=["500", "401", "403", "404", "html", "broken", "huge", "huge event", "gzip bomb", "redirect"],
)
async def test_hostile_servers(manager: ServerManager, app: ASGIApp, sentence: str) -> None:
    async with serving(app) as url:
        source = await add_server(manager, f"{url}/mcp", headers={"Authorization": "Bearer x"})
        with pytest.raises(ToolFailed, match="could not be started") as failed:
            await source.tools()
    assert sentence in failed.value.detail
    assert "Traceback" not in str(failed.value)
    assert source.server.needs_sign_in == (sentence == "The server requires you to sign in.")


async def test_server_that_never_answers(manager: ServerManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "START_TIMEOUT_S", 0.5)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.sleep(600)

    async with serving(app) as url:
        source = await add_server(manager, f"{url}/mcp")
        with pytest.raises(ToolFailed, match="did not respond within"):
            await source.tools()


async def test_secret_headers_are_sent_and_hidden(manager: ServerManager) -> None:
    seen: list[str] = []
    inner = make_server().streamable_http_app()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(value.decode() for name, value in scope.get("headers", ()) if name == b"authorization")
        await inner(scope, receive, send)

    async with serving(app) as url:
        await add_server(manager, f"{url}/mcp", headers={"Authorization": "Bearer hush"})
        await manager.hide_secrets("web")
        source = manager.source("web")
        await source.tools()
        await source.close()
    assert set(seen) == {"Bearer hush"}
    assert "hush" not in manager.file.read_text() + "".join(source.log.lines)
