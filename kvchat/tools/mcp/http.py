"""HTTP client for MCP servers with limited response sizes, and OAuth sign-in in the browser."""

import asyncio
import html
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthMetadata, OAuthToken

from kvchat.system.secret_store import SecretStore
from kvchat.text.formatting import format_size
from kvchat.text.language import _
from kvchat.tools.mcp.process import MAX_MESSAGE_BYTES

_TIMEOUT = httpx2.Timeout(30.0, read=3600.0)  # calls have their own time limit
_MAX_REQUEST_BYTES = 16_000
_PAGE = "<!doctype html><meta charset=utf-8><title>kvchat</title><p style='font:1.2em sans-serif'>{text}</p>"


class BoundedClient(httpx2.AsyncClient):
    """Client that stores the last status and raises StreamError for a response of more than MAX_MESSAGE_BYTES."""

    last_status = 0

    def __init__(self, headers: dict[str, str] | None = None, auth: httpx2.Auth | None = None, **_more: Any) -> None:
        # Uncompressed, because a small response could decompress to a huge one.
        headers = (headers or {}) | {"Accept-Encoding": "identity"}
        super().__init__(headers=headers, auth=auth, timeout=_TIMEOUT, event_hooks={"response": [self._limit_size]})

    async def _limit_size(self, response: httpx2.Response) -> None:
        self.last_status = response.status_code
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise httpx2.StreamError("the response is compressed although kvchat asked for an uncompressed one")
        if "text/event-stream" not in response.headers.get("content-type", ""):  # the SDK limits each event
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = 0
        async for piece in self._stream:
            total += len(piece)
            if total > MAX_MESSAGE_BYTES:
                limit = format_size(MAX_MESSAGE_BYTES)
                raise httpx2.StreamError(_("The server sent a message of more than {limit}.", limit=limit))
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class SignInNeeded(Exception):
    """The server requires a sign-in that the user has not started."""


class SignIn:
    """OAuth for one server. Implements the SDK's `TokenStorage` with one JSON object."""

    def __init__(self, store: SecretStore, open_browser: Callable[[str], object] | None) -> None:
        """`open_browser`: opens the URL of the sign-in page; None to raise SignInNeeded instead."""
        self.open_browser = open_browser
        self._store = store
        self._saved: dict[str, Any] = {}
        self._provider: OAuthClientProvider
        self._answer: asyncio.Future[AuthorizationCodeResult]
        self._callback_server: asyncio.Server

    async def load(self) -> None:
        saved = await asyncio.to_thread(self._store.load)
        try:
            self._saved = json.loads(saved[0]) if saved else {}
        except ValueError:
            self._saved = {}
        if not isinstance(self._saved.get("port"), int):
            self._saved = {
                "port": _free_port()
            }  # part of the redirect URL that is registered with the authorization server

    def auth(self, url: str) -> httpx2.Auth:
        metadata = OAuthClientMetadata.model_validate(
            {"redirect_uris": [f"http://127.0.0.1:{self._saved['port']}/callback"], "client_name": "kvchat"}
        )
        self._provider = OAuthClientProvider(url, metadata, self, self._show_page, self._wait_for_answer)
        return self._provider

    async def get_tokens(self) -> OAuthToken | None:
        if "tokens" not in self._saved:
            return None
        context = self._provider.context
        context.token_expiry_time = self._saved.get("expires_at")
        if metadata := self._saved.get("metadata"):
            context.oauth_metadata = OAuthMetadata.model_validate(metadata)  # has the URL that refreshes tokens
        return OAuthToken.model_validate(self._saved["tokens"])

    async def set_tokens(self, tokens: OAuthToken) -> None:
        metadata = self._provider.context.oauth_metadata
        await self._save(
            tokens=tokens.model_dump(mode="json", exclude_none=True),
            expires_at=time.time() + tokens.expires_in if tokens.expires_in else None,
            metadata=metadata.model_dump(mode="json", exclude_none=True) if metadata else None,
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        client = self._saved.get("client")
        return OAuthClientInformationFull.model_validate(client) if client else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        await self._save(client=client_info.model_dump(mode="json", exclude_none=True))

    async def _save(self, **values: Any) -> None:
        self._saved |= values
        await asyncio.to_thread(self._store.save, json.dumps(self._saved))

    async def _show_page(self, url: str) -> None:
        if self.open_browser is None:
            raise SignInNeeded
        self._answer = asyncio.get_running_loop().create_future()
        self._callback_server = await asyncio.start_server(self._handle_callback, "127.0.0.1", self._saved["port"])
        await asyncio.to_thread(self.open_browser, url)

    async def _wait_for_answer(self) -> AuthorizationCodeResult:
        try:
            return await self._answer
        finally:
            self._callback_server.close()

    async def _handle_callback(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                request = (await reader.readuntil(b"\r\n"))[:_MAX_REQUEST_BYTES].decode("latin-1").split()
            parts = urlsplit(request[1] if len(request) > 1 else "")
            answers = {name: values[0] for name, values in parse_qs(parts.query).items()}
            is_answer = parts.path == "/callback" and ("code" in answers or "error" in answers)
            text = _("You are signed in. You can close this page.") if "code" in answers else _("Sign-in failed.")
            body = _PAGE.format(text=html.escape(text)).encode()
            status = "200 OK" if is_answer else "404 Not Found"
            head = (
                f"HTTP/1.1 {status}",
                "Content-Type: text/html",
                f"Content-Length: {len(body)}",
                "Connection: close",
            )
            writer.write("\r\n".join([*head, "", ""]).encode() + body)
            await writer.drain()
            if is_answer and not self._answer.done():
                self._answer.set_result(
                    AuthorizationCodeResult(
                        code=answers.get("code", ""), state=answers.get("state"), iss=answers.get("iss")
                    )
                )
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
