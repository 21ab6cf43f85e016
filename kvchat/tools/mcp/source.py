"""MCP server as a source of tools, started and restarted on demand."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kvchat.errors import KvchatError
from kvchat.system.concurrency import InterruptibleTask
from kvchat.text.language import _
from kvchat.tools.mcp.approvals import Approvals
from kvchat.tools.mcp.config import ServerConfig
from kvchat.tools.mcp.secrets import Secrets
from kvchat.tools.mcp.server import Attachment, Prompt, Resource, Server, ServerLog, ServerState, ServerTool
from kvchat.tools.tool import Tool, ToolFailed, ToolResult

if TYPE_CHECKING:
    from kvchat.tools.mcp.connection import Connection

R = TypeVar("R")
OAUTH = "(oauth)"  # name of a server's tokens among its secrets
_FINISH_TIMEOUT_S, _JOIN_TIMEOUT_S = 8.0, 2.0


class ServerThread:
    """Event loop for all connections in a separate thread, so that no server slows down the window."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the thread. Cancelling this call cancels the coroutine without waiting for its end."""
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=loop.run_forever, name="mcp", daemon=True)
            self._thread.start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    async def close(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            await self.run(_wait_for_others())
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join, _JOIN_TIMEOUT_S)
            if not thread.is_alive():
                loop.close()
            self._loop = self._thread = None


async def _wait_for_others() -> None:
    """Wait for cancelled starts to stop their processes."""
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others, timeout=_FINISH_TIMEOUT_S)


@dataclass
class SourceContext:
    """Dependencies that all servers share."""

    thread: ServerThread
    approvals: Approvals
    secrets: Secrets
    publish: Callable[[], object]  # called after each change of a server, on the event loop


class McpSource:
    """One server. Implements ToolSource: event-loop thread only, every method may raise ToolFailed."""

    def __init__(self, config: ServerConfig, context: SourceContext) -> None:
        self.id, self.log = config.name, ServerLog()
        self.config = config  # only settings that do not affect how the server starts may change
        self._context = context
        self._connection: Connection | None = None
        self._starting, self._start_task = asyncio.Lock(), InterruptibleTask()
        self._is_starting = self._tools_changed = self._needs_sign_in = False
        self._noting: asyncio.Future[None] | None = None
        self._reason = ""
        self._listed: tuple[Tool, ...] = ()
        self._listed_from: Connection | None = None
        self._problems: tuple[str, ...] = ()

    @property
    def server(self) -> Server:
        approved = self._context.approvals.tool_digests(self.id)
        tools = tuple(
            ServerTool(
                tool,
                tool.name not in self.config.disabled_tools,
                approved is None or approved.get(tool.name) == tool.digest,
                self._context.approvals.approved_description(self.id, tool.name),
            )
            for tool in self._listed
        )
        return Server(
            self.config,
            self._state,
            self.config.problem or self._reason,
            tools,
            self._problems,
            self._tools_changed and self._is_running,
            needs_sign_in=self._needs_sign_in,
        )

    @property
    def _is_running(self) -> bool:
        return self._connection is not None and not self._connection.has_ended

    @property
    def _state(self) -> ServerState:
        if self.config.problem:
            return ServerState.INVALID
        if self.config.disabled:
            return ServerState.OFF
        if not self._context.approvals.has_launch(self.config):
            return ServerState.NOT_APPROVED
        if self._is_starting:
            return ServerState.STARTING
        if self._is_running:
            return ServerState.RUNNING
        return ServerState.FAILED if self._reason else ServerState.NOT_STARTED

    async def tools(self) -> Sequence[Tool]:
        """Return the tools that are turned on and approved. The first list of a server counts as approved."""
        connection = await self._connected()
        self._tools_changed = False
        listing = await self._context.thread.run(connection.tools())
        self._listed, self._problems, self._listed_from = tuple(listing.tools), tuple(listing.problems), connection
        if self._context.approvals.tool_digests(self.id) is None:
            await asyncio.to_thread(self._context.approvals.approve_tools, self.id, self._listed)
        self._context.publish()
        return self.server.offered_tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        connection = await self._connected()
        if self._listed_from is not connection:
            await self.tools()
        tool = next((item for item in self.server.tools if item.tool.name == name), None)
        if tool is not None and not (tool.enabled and tool.approved):
            reason = _("The tool has changed since you approved it.") if tool.enabled else _("The tool is turned off.")
            raise ToolFailed(_("The tool “{name}” is not available", name=name), reason)
        return await self._context.thread.run(connection.call(name, arguments))

    async def prompts(self) -> list[Prompt]:
        connection = await self._connected()
        return await self._context.thread.run(connection.prompts())

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> list[Attachment]:
        connection = await self._connected()
        return await self._context.thread.run(connection.prompt(name, arguments))

    async def resources(self) -> list[Resource]:
        connection = await self._connected()
        return await self._context.thread.run(connection.resources())

    async def resource(self, uri: str) -> list[Attachment]:
        connection = await self._connected()
        return await self._context.thread.run(connection.resource(uri))

    async def sign_in(self, open_browser: Callable[[str], object]) -> None:
        """Connect, and let the user sign in if the server requires it. `open_browser` opens the sign-in page."""
        await self.close()
        await self._connected(open_browser)

    async def close(self) -> None:
        self._start_task.interrupt()
        async with self._starting:
            connection, self._connection, self._reason = self._connection, None, ""
            if connection is not None:
                await self._context.thread.run(connection.close())
        if self._noting is not None:
            await asyncio.wait([self._noting])
        self._context.publish()

    async def _connected(self, open_browser: Callable[[str], object] | None = None) -> Connection:
        async with self._starting:
            if self._connection is not None and self._connection.is_ending:
                await self._context.thread.run(self._connection.close())  # or this call would get the last one's error
            if self._connection is not None and not self._connection.has_ended:
                return self._connection
            self.check_may_start()
            self._is_starting, self._reason, self._needs_sign_in = True, "", False
            self._context.publish()
            try:
                connection = await self._start_task.run(self._start(open_browser))
                if connection is None:
                    raise ToolFailed(
                        _("The MCP server “{name}” could not be started", name=self.id),
                        _("The server was stopped while it was starting."),
                    )
                self._connection = connection
            except ToolFailed as error:
                self._reason = error.explanation or error.title
                raise
            except KvchatError as error:
                self._reason = str(error)
                raise ToolFailed(error.title, error.detail, error.advice) from error
            finally:
                self._is_starting = False
                self._context.publish()
            return self._connection

    def check_may_start(self) -> None:
        """Raise ToolFailed if the server is not approved, turned off or invalid."""
        state = self._state
        if state in (ServerState.INVALID, ServerState.OFF, ServerState.NOT_APPROVED):
            reason = {
                ServerState.INVALID: self.config.problem,
                ServerState.OFF: _("The server is turned off."),
                ServerState.NOT_APPROVED: _("You have not approved the server’s command or URL yet."),
            }[state]
            raise ToolFailed(
                _("The MCP server “{name}” cannot be used", name=self.id), reason, _("Open Settings, Tools.")
            )

    async def _start(self, open_browser: Callable[[str], object] | None) -> Connection:
        await asyncio.to_thread(importlib.import_module, "kvchat.tools.mcp.connection")  # takes a second
        from kvchat.tools.mcp.connection import Connection
        from kvchat.tools.mcp.http import SignIn

        config = await asyncio.to_thread(self._context.secrets.expand, self.config)
        sign_in = None
        if config.url and not any(name.lower() == "authorization" for name in config.headers):
            sign_in = SignIn(self._context.secrets.store(self.id, OAUTH), open_browser)
            await sign_in.load()
        loop = asyncio.get_running_loop()

        def call_soon(function: Callable[..., object], *arguments: object) -> None:
            with contextlib.suppress(RuntimeError):  # kvchat has ended
                loop.call_soon_threadsafe(function, *arguments)

        connection = Connection(
            config,
            self.log,
            sign_in=sign_in,
            on_tools_changed=lambda: call_soon(self._note_tools_changed),
            on_attachments_listed=lambda exist: call_soon(self._note_attachments, exist),
            on_end=lambda: call_soon(self._note_end, connection),
        )
        try:
            await self._context.thread.run(connection.open())
        finally:
            self._needs_sign_in = connection.needs_sign_in
        return connection

    def _note_tools_changed(self) -> None:
        if not self._tools_changed:
            self._tools_changed = True
            self._context.publish()

    def _note_attachments(self, exist: bool) -> None:
        async def save() -> None:
            with contextlib.suppress(KvchatError):  # asked again at the next start
                await asyncio.to_thread(self._context.approvals.note_attachments, self.id, exist)

        if exist != self._context.approvals.has_attachments(self.id):
            self._noting = asyncio.ensure_future(save())
            self._noting.add_done_callback(lambda _task: self._context.publish())

    def _note_end(self, connection: Connection) -> None:
        if connection is self._connection:
            self._reason, self._needs_sign_in = connection.reason, connection.needs_sign_in
            self._context.publish()
