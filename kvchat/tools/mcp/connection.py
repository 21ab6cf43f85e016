"""Connection to a running MCP server through the SDK, on the event loop of `ServerThread`."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from kvchat import __version__
from kvchat.text.formatting import one_line
from kvchat.text.language import _
from kvchat.tools.mcp.config import ServerConfig
from kvchat.tools.mcp.http import BoundedClient, SignIn, SignInNeeded
from kvchat.tools.mcp.process import MAX_MESSAGE_BYTES, ServerProcess
from kvchat.tools.mcp.results import (
    MAX_LISTED,
    MAX_TOOLS,
    Listing,
    clean,
    convert_prompt,
    convert_prompts,
    convert_resource,
    convert_resources,
    convert_result,
    convert_templates,
    convert_tools,
)
from kvchat.tools.mcp.server import Attachment, Prompt, Resource, ServerLog
from kvchat.tools.tool import ToolFailed, ToolResult

START_TIMEOUT_S = 30.0
SIGN_IN_TIMEOUT_S = 300.0  # for the user, in the browser
CALL_TIMEOUT_S = 120.0  # after the call and after each progress notification
CALL_LIMIT_S = 3600.0  # even with progress
CLOSE_TIMEOUT_S = 8.0
_MAX_PAGES = 100
_MAX_MESSAGE_CHARS = 500
_NO_SUCH_TRANSPORT = (400, 404, 405)  # responses to a POST from servers with the older SSE transport
# Messages of the SDK for a closed connection, for the 404 of a restarted server, and for other statuses.
_CLOSED, _SESSION_LOST = "Connection closed", "Session terminated"
_HTTP_ERRORS = ("Server returned an error response", "Not Found")
_CALL_RESULT: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
for _name in ("mcp", "client"):  # they log tracebacks for invalid messages
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


class Connection:
    """Connection from `open` until `close` or the end of the server. Every method may raise ToolFailed."""

    def __init__(
        self,
        config: ServerConfig,
        log: ServerLog,
        *,
        sign_in: SignIn | None,
        on_tools_changed: Callable[[], object],
        on_attachments_listed: Callable[[bool], object],
        on_end: Callable[[], object],
    ) -> None:
        """`config`: with its secrets filled in. The callbacks are called on this loop."""
        self._config, self._log, self._sign_in = config, log, sign_in
        self._on_tools_changed, self._on_end = on_tools_changed, on_end
        self._on_attachments_listed = on_attachments_listed
        self._client: Client | None = None
        self._http: BoundedClient | None = None
        self._process: ServerProcess | None = None
        self._closing, self._closed_by_us = asyncio.Event(), False
        self._task: asyncio.Task[None] | None = None
        self.reason = ""  # why the connection ended, in sentences
        self.needs_sign_in = False
        self.has_ended = False

    @property
    def capabilities(self) -> types.ServerCapabilities:
        client = self._client  # another thread may ask while this one closes it
        return client.server_capabilities if client else types.ServerCapabilities()

    @property
    def is_ending(self) -> bool:
        return self._closing.is_set() and not self.has_ended

    async def open(self) -> None:
        kinds = [self._config.kind or "http"]
        if self._config.url and not self._config.kind:
            kinds.append("sse")
        for kind in kinds:
            if await self._try_open(kind):
                return
            if self._http is None or self._http.last_status not in _NO_SUCH_TRANSPORT:
                break
        title = _("The MCP server “{name}” could not be started", name=self._config.name)
        if self.needs_sign_in:
            raise ToolFailed(title, self.reason, _("Sign in to it in Settings, Tools."))
        raise ToolFailed(title, self.reason, _("See its log in Settings, Tools."))

    async def close(self) -> None:
        self._closed_by_us = True
        self._closing.set()
        if self._task is not None:
            _done, running = await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT_S)
            for task in running:
                task.cancel()
                await asyncio.wait([task])

    async def _try_open(self, kind: str) -> bool:
        """Return True when the server is ready, or False if it has ended; then `reason` says why."""
        self._closing.clear()
        ready = asyncio.Event()
        self._task = task = asyncio.create_task(self._serve(kind, ready))
        waiting = asyncio.create_task(ready.wait())
        interactive = self._sign_in is not None and self._sign_in.open_browser is not None
        timeout = SIGN_IN_TIMEOUT_S if interactive else START_TIMEOUT_S
        try:
            await asyncio.wait([task, waiting], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            if not ready.is_set() and task.cancel():
                await asyncio.wait([task])
                self.reason = _("The server did not respond within {seconds} seconds.", seconds=f"{timeout:.0f}")
        return ready.is_set()

    async def _serve(self, kind: str, ready: asyncio.Event) -> None:
        """Run the SDK's context managers, which must be exited by the task that entered them."""
        self.has_ended, self.reason = False, ""
        tasks: list[asyncio.Task[None]] = []
        try:
            info = types.Implementation(name="kvchat", version=__version__)
            client = Client(self._transport(kind), client_info=info, message_handler=self._handle_message)
            async with client:
                self._client = client
                ready.set()
                tasks.append(asyncio.create_task(self._look_for_attachments()))
                tools = client.server_capabilities.tools
                if client.protocol_version in MODERN_PROTOCOL_VERSIONS and tools and tools.list_changed:
                    tasks.append(asyncio.create_task(self._listen(client)))
                await self._closing.wait()
        except (Exception, BaseExceptionGroup) as error:
            self.reason = self.reason or self._explain(error)
        finally:
            for task in tasks:
                task.cancel()
            if self._process is not None and not self._closed_by_us:
                self.reason = self.reason or self._process.explain_end()
            self._client, self.has_ended = None, True
            self._closing.set()
            if ready.is_set():
                self._on_end()

    def _transport(self, kind: str) -> AbstractAsyncContextManager[Any]:
        config = self._config
        if not config.url:
            self._process = ServerProcess(config, self._log, self._closing.set)
            return self._process.transport()
        self._log.note(f"{kind} {config.url}")
        auth = self._sign_in.auth(config.url) if self._sign_in else None
        self._http = client = BoundedClient(dict(config.headers), auth)
        if kind == "sse":
            return sse_client(
                config.url, httpx_client_factory=lambda *_, **_more: client, sse_read_timeout=CALL_LIMIT_S
            )
        return self._streamable(client)

    @asynccontextmanager
    async def _streamable(self, client: BoundedClient) -> AsyncIterator[Any]:
        url, limit = self._config.url, MAX_MESSAGE_BYTES
        async with client, streamable_http_client(url, http_client=client, max_sse_event_size=limit) as streams:
            yield streams

    async def _listen(self, client: Client) -> None:
        """Keep the subscription open through which servers with a 2026 protocol send notifications."""
        with contextlib.suppress(Exception):
            async with client.listen(tools_list_changed=True) as events:
                async for _event in events:
                    pass

    async def _look_for_attachments(self) -> None:
        """Report whether the server lists a prompt or resource, unless that fails. Many declare both and have none."""
        is_known = True
        for listing in (self.prompts, self.resources):
            try:
                if await listing():
                    self._on_attachments_listed(True)
                    return
            except ToolFailed:
                is_known = False
        if is_known and self._client is not None:
            self._on_attachments_listed(False)

    async def _handle_message(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._on_tools_changed()

    async def tools(self) -> Listing:
        """List the tools, or return the SDK's cached list while the server's `ttlMs` allows it."""
        if self.capabilities.tools is None:
            return Listing()
        tools, is_complete = await self._pages(
            lambda client, cursor: client.list_tools(cursor=cursor), "tools", MAX_TOOLS
        )
        return convert_tools(self._config.name, tools, is_complete)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        parameters = types.CallToolRequestParams(name=name, arguments=dict(arguments))
        loop = asyncio.get_running_loop()
        latest = loop.time() + CALL_LIMIT_S
        async with self._session(None) as client, asyncio.timeout(CALL_TIMEOUT_S) as limit:

            async def extend(progress: float, total: float | None, message: str | None) -> None:
                if not limit.expired():
                    limit.reschedule(min(loop.time() + CALL_TIMEOUT_S, latest))

            # Not `client.call_tool`: it validates the result, and regular expressions in the schema can take forever.
            result = await client.session.send_request(
                types.CallToolRequest(params=parameters), _CALL_RESULT, progress_callback=extend
            )
        if isinstance(result, types.InputRequiredResult):
            raise self._failed(_("The server requested more input, which kvchat does not support."))
        return convert_result(result)

    async def prompts(self) -> list[Prompt]:
        if self.capabilities.prompts is None:
            return []
        prompts, _ = await self._pages(lambda client, cursor: client.list_prompts(cursor=cursor), "prompts", MAX_LISTED)
        return convert_prompts(prompts)

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> list[Attachment]:
        async with self._session(CALL_TIMEOUT_S) as client:
            return convert_prompt(name, await client.get_prompt(name, dict(arguments)))

    async def resources(self) -> list[Resource]:
        """Return the resources, and the templates of resources if it has any."""
        if self.capabilities.resources is None:
            return []
        resources, _ = await self._pages(
            lambda client, cursor: client.list_resources(cursor=cursor), "resources", MAX_LISTED
        )
        templates: list[types.ResourceTemplate] = []
        with contextlib.suppress(ToolFailed):  # it may know no templates
            templates, _ = await self._pages(
                lambda client, cursor: client.list_resource_templates(cursor=cursor), "resource_templates", MAX_LISTED
            )
        return convert_resources(resources) + convert_templates(templates)

    async def resource(self, uri: str) -> list[Attachment]:
        async with self._session(CALL_TIMEOUT_S) as client:
            return convert_resource(await client.read_resource(uri, cache_mode="bypass"))

    async def _pages(
        self, ask: Callable[[Client, str | None], Awaitable[Any]], items: str, limit: int
    ) -> tuple[list[Any], bool]:
        """Return at most `limit` items of a list, and True if these are all."""
        found: list[Any] = []
        cursor: str | None = None
        async with self._session(START_TIMEOUT_S) as client:
            for _page in range(_MAX_PAGES):
                page = await ask(client, cursor)
                found += getattr(page, items)
                cursor = page.next_cursor
                if not cursor or len(found) > limit:
                    break
        return found[:limit], not cursor and len(found) <= limit

    @asynccontextmanager
    async def _session(self, timeout_s: float | None) -> AsyncIterator[Client]:
        """Yield the client, and convert every error in the `with` block to ToolFailed."""
        if self._client is None:
            raise self._failed(self.reason or _("The server is not running."))
        try:
            async with asyncio.timeout(timeout_s):
                yield self._client
        except TimeoutError as error:
            raise self._failed(_("The server did not respond in time.")) from error
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED and error.message == _CLOSED:
                with contextlib.suppress(TimeoutError):  # `_serve` finds out why
                    await asyncio.wait_for(self._closing.wait(), CLOSE_TIMEOUT_S)
                    await asyncio.sleep(0)
                raise self._failed(self.reason or self._explain(error)) from error
            if error.message == _SESSION_LOST:
                self._closing.set()
            raise self._failed(self._explain(error)) from error
        except ToolFailed:
            raise
        except Exception as error:
            raise self._failed(self._explain(error)) from error

    def _failed(self, reason: str) -> ToolFailed:
        return ToolFailed(_("The request to the MCP server “{name}” failed", name=self._config.name), reason)

    def _explain(self, error: BaseException) -> str:
        """Return the reason for an error in sentences, without a traceback."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        status = self._http.last_status if self._http else 0
        if isinstance(error, SignInNeeded) or status in (401, 403):
            self.needs_sign_in = True
            return _("The server requires you to sign in.")
        match error:
            case ToolFailed():
                return error.explanation or error.title
            case MCPError(code=types.CONNECTION_CLOSED) if self._process is not None:
                return self._process.explain_end()
            case MCPError() if "not supported" in error.message and self._is_input_request(error.message):
                return _("The server requested more input, which kvchat does not support.")
            case httpx2.HTTPStatusError():
                return _("The server returned HTTP status {status}.", status=status)
            case MCPError() if status >= 400 and error.message in _HTTP_ERRORS:
                return _("The server returned HTTP status {status}.", status=status)
            case MCPError():
                return _(
                    "The server reported an error: {text}", text=one_line(clean(error.message, _MAX_MESSAGE_CHARS))
                )
            case httpx2.StreamError():
                return clean(str(error), _MAX_MESSAGE_CHARS)
            case ValidationError() | RuntimeError():
                self._log.note(str(error))
                return _("The server’s response does not follow the protocol.")
            case httpx2.ConnectError() | httpx2.ConnectTimeout():
                return _("kvchat cannot connect to {url}.", url=self._config.url)
            case OSError():
                return ": ".join(str(part) for part in (error.strerror or error, error.filename) if part) + "."
        self._log.note(f"{type(error).__name__}: {error}")
        return clean(str(error), _MAX_MESSAGE_CHARS) or type(error).__name__

    @staticmethod
    def _is_input_request(message: str) -> bool:
        return message.startswith(("Elicitation", "Sampling", "List roots"))  # of the SDK
