"""HTTP/1.1 client for llama-server, without a proxy. Network errors become EngineErrors.

llama-server closes the connection after a streamed reply, so each request has its own; creating an httpx2 client for
it would take a millisecond, five times as long as this. To a paired kvchat, the connection of the last check or request
is kept for the next request, because a new one costs two round trips.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import json
import re
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2

from kvchat.engine.api import errors, wire
from kvchat.engine.api.errors import (
    CertificateChanged,
    EngineBroken,
    EngineError,
    EngineGone,
    EngineLifetime,
    EngineRefused,
    EngineUnreachable,
)
from kvchat.engine.api.response import GONE_ADVICE, EngineResponse, connection_lost
from kvchat.engine.api.wire import ChatChunk
from kvchat.system.concurrency import run_in_thread_if_large
from kvchat.text.language import _

CONNECT_TIMEOUT_S = 5.0
SILENCE_CHECK_S = 10.0  # silence in a started reply after which the engine is checked
QUICK_TIMEOUT_S = 60.0  # for requests without computing, which may wait for a running batch
_SPARE_S = 4.0  # idle time of a kept connection, longer than between two checks: an older one may be dead
_UNACKNOWLEDGED_MS = 10_000  # data that a paired kvchat does not acknowledge for this long was lost
_PROBE_AFTER_S = 0.1  # without an answer on a kept connection, the server may be away
_DRAIN_TIMEOUT_S = 0.5  # for the last data of a stream when its connection is closed
_MAX_LINE = 4_000_000  # bytes of one event in a stream
_COMPRESS_BYTES = 8_000  # more than this may not fit into TCP's first ten packets, and then takes a round trip more
_COMPRESS_IN_THREAD_BYTES = 500_000
NO_HEADERS: Mapping[str, str] = {}
_RECEIPT_PREFIX, _RECEIPT_LINE = "x-kvchat-", b": kvchat "  # of a server that is a kvchat itself
_FILE_HEADERS = ("content-type", "content-encoding", "etag")


@dataclass(frozen=True)
class PageFile:
    """A file of the server's web page."""

    content: bytes
    headers: Mapping[str, str]  # those that describe the content


@dataclass(frozen=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since: float = field(default_factory=time.time)  # unlike time.monotonic, it goes on during sleep


class Transport:
    """The connections to one server. All methods raise EngineGone; those that send the key also raise EngineRefused."""

    def __init__(
        self,
        base_url: str,
        key: str,
        silence_timeout_s: float,
        on_fault: Callable[[EngineError], None],
        on_silence: Callable[[], None],
        tls: ssl.SSLContext | None = None,
        response_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        """`tls` is the context for a paired kvchat, which gets compressed requests; others use the system's.

        `response_s`: time for a connection to open.
        """
        self._tls, self._response_s = tls, response_s
        self.lifetime = EngineLifetime()
        self._url = urlsplit(base_url)
        self._authorization = {"Authorization": f"Bearer {key}"} if key else {}
        self._silence_timeout_s = silence_timeout_s
        self._on_fault, self._on_silence = on_fault, on_silence
        self._closing = asyncio.Event()
        self._open_responses: set[EngineResponse] = set()
        self._spare: _Connection | None = None
        self._streams: set[asyncio.Future[None]] = set()

    async def close(self) -> None:
        """Wait briefly until running streams have received their last data, then drop all connections."""
        self._closing.set()
        if self._streams:
            await asyncio.wait(self._streams, timeout=_DRAIN_TIMEOUT_S)
        self._keep(None)
        for response in tuple(self._open_responses):
            response.abort()

    def end_silent_requests(self) -> None:
        """Abort the requests without data for SILENCE_CHECK_S, since the server is away: TCP might wait for minutes."""
        for response in tuple(self._open_responses):
            if time.monotonic() - response.heard_at >= SILENCE_CHECK_S:
                response.abort()

    async def get_status(self, path: str, timeout_s: float) -> int:
        """Return the status of a GET request.

        The key is sent only to a paired kvchat, which proves its identity: elsewhere, another program may be listening.
        """
        headers = self._authorization if self._tls else {}
        async with self._open("GET", path, b"", headers, timeout_s, is_check=True) as response:
            await response.read_head()
            if self._tls:
                await response.aread()  # the connection can be kept
            return response.status_code

    async def get_public(self, path: str) -> PageFile | None:
        """Return what the server sends without the key, compressed or not; None if it does not answer with 200."""
        async with self._open("GET", path, b"", {"Accept-Encoding": "gzip"}, QUICK_TIMEOUT_S) as response:
            await response.read_head()
            content = await response.aread()
        headers = {name: response.headers[name] for name in _FILE_HEADERS if name in response.headers}
        return PageFile(content, headers) if response.status_code == 200 else None

    async def request_json(
        self, method: str, path: str, body: dict[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        return wire.parse_object(await self.request(method, path, body, **options))

    async def request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout_s: float = QUICK_TIMEOUT_S,
        more_headers: Mapping[str, str] = NO_HEADERS,
    ) -> bytes:
        content, more = b"" if body is None else _json(body), more_headers
        async with self.forward(path, content, method=method, silence_s=timeout_s, more_headers=more) as response:
            data = await response.aread()
        if response.status_code != 200:
            fault = self._engine_fault(data, response.status_code)
            self._on_fault(fault)
            raise fault
        return data

    @contextlib.asynccontextmanager
    async def forward(
        self,
        path: str,
        body: bytes,
        *,
        method: str = "POST",
        silence_s: float,
        more_headers: Mapping[str, str] = NO_HEADERS,
    ) -> AsyncIterator[EngineResponse]:
        """Send a request and yield the response, whatever its status."""
        headers = self._authorization | {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        headers |= more_headers
        if self._tls is not None and len(body) > _COMPRESS_BYTES:
            headers["Content-Encoding"] = "gzip"
            body = await run_in_thread_if_large(len(body) > _COMPRESS_IN_THREAD_BYTES, gzip.compress, body, 6)
        async with self._open(method, path, body, headers, silence_s) as response:
            await response.read_head()
            yield response

    async def stream(
        self, path: str, body: dict[str, Any], more_headers: Mapping[str, str] = NO_HEADERS
    ) -> AsyncGenerator[ChatChunk, None]:
        """Yield the events of a streamed response. Raises EngineGone if the stream ends without its last event."""
        done = asyncio.get_running_loop().create_future()
        self._streams.add(done)
        has_begun = has_ended = False
        rest = b""
        try:
            silence_s = self._silence_timeout_s
            async with self.forward(path, _json(body), silence_s=silence_s, more_headers=more_headers) as response:
                if response.status_code != 200:
                    raise self._engine_fault(await response.aread(), response.status_code)
                if _RECEIPT_PREFIX + "source" in response.headers:
                    yield ChatChunk(memory=wire.parse_memory(_receipt_in(response.headers)))
                while data := await response.read():
                    *lines, rest = split_lines(rest + data)
                    for line in lines:
                        if line.startswith(_RECEIPT_LINE):
                            receipt = wire.parse_object(line.removeprefix(_RECEIPT_LINE))
                            yield ChatChunk(memory=wire.parse_memory(receipt))
                        if not line.startswith(b"data:"):
                            continue
                        event = line.removeprefix(b"data:").strip().decode("utf-8", "replace")
                        chunk = wire.parse_event(event)
                        if isinstance(chunk, EngineRefused):
                            raise self._engine_fault(event, chunk.status)
                        has_ended = has_ended or chunk.is_last
                        if chunk.is_empty:
                            continue
                        if not has_begun and chunk.has_output:  # send the first word immediately
                            has_begun = True
                            interval_s = min(SILENCE_CHECK_S, 2 * self._response_s)
                            response.read_in_batches(self._closing, self._on_silence, interval_s)
                        yield chunk
            if not has_ended:
                raise connection_lost(self.lifetime, _("The response ended early."))
        except EngineError as error:
            self._on_fault(error)
            raise
        finally:
            self._streams.discard(done)
            done.set_result(None)

    @contextlib.asynccontextmanager
    async def _open(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], silence_s: float, is_check: bool = False
    ) -> AsyncIterator[EngineResponse]:
        """Send a request and yield the response, whose head has not been read yet. A check opens a new connection."""
        if self._closing.is_set():
            title, detail = _("The engine is no longer running"), _("It was stopped or restarted.")
            raise EngineGone(title, detail, _(GONE_ADVICE), self.lifetime)
        spare = None if is_check else self._take_spare()
        connection = spare or await self._connect(silence_s)
        response = EngineResponse(connection.reader, connection.writer, silence_s, self.lifetime)
        self._open_responses.add(response)
        probe = asyncio.create_task(self._probe(response)) if spare else None
        framing = {"Host": self._url.netloc, "Content-Length": str(len(body))}
        framing["Connection"] = "keep-alive" if self._tls else "close"
        try:
            await response.send(method, self._url.path + path, framing | dict(headers), body)
            yield response
        finally:
            if probe:
                probe.cancel()
            self._open_responses.discard(response)
            if response.can_reuse_connection:
                self._keep(_Connection(connection.reader, connection.writer))
            else:
                response.abort()

    async def _connect(self, silence_s: float) -> _Connection:
        url, is_secure = self._url, self._tls is not None or self._url.scheme == "https"
        try:
            async with asyncio.timeout(min(self._response_s, silence_s)):
                reader, writer = await asyncio.open_connection(
                    url.hostname,
                    url.port or (443 if is_secure else 80),
                    ssl=(self._tls or _tls_context()) if is_secure else None,
                )
        except ssl.SSLCertVerificationError as error:
            raise CertificateChanged(self.lifetime) if self._tls else self._unreachable(error) from error
        except OSError as error:  # TimeoutError is one
            raise self._unreachable(error) from error
        if self._tls and (option := getattr(socket, "TCP_USER_TIMEOUT", None)):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, option, _UNACKNOWLEDGED_MS)
        return _Connection(reader, writer)

    async def _probe(self, response: EngineResponse) -> None:
        """Try to connect if there is no answer, and end the request if that fails: TCP would wait for minutes."""
        await asyncio.sleep(_PROBE_AFTER_S)
        if not response.status_code:
            try:
                self._keep(await self._connect(self._response_s))
            except EngineGone as failure:
                if not response.status_code:
                    response.abort(failure)

    def _keep(self, connection: _Connection | None) -> None:
        """Keep this connection for the next request instead of the earlier one."""
        if self._spare is not None:
            self._spare.writer.transport.abort()
        self._spare = connection
        if connection is not None:
            connection.writer.transport.resume_reading()  # type: ignore[attr-defined]
            if self._closing.is_set():
                self._keep(None)

    def _take_spare(self) -> _Connection | None:
        spare = self._spare
        if spare is None or spare.reader.at_eof() or spare.reader.exception() or spare.writer.is_closing():
            return None
        if not 0 <= time.time() - spare.idle_since <= _SPARE_S:
            return None
        self._spare = None
        return spare

    def _unreachable(self, error: OSError) -> EngineGone:
        reason = str(error) or _("It does not accept connections.")
        gone = EngineUnreachable(_("The engine cannot be reached"), reason, _(GONE_ADVICE), self.lifetime)
        gone.timed_out = isinstance(error, TimeoutError)
        return gone

    def _engine_fault(self, body: str | bytes, status: int) -> EngineRefused | EngineBroken:
        refusal = wire.parse_error(body, status)
        reason = errors.fatal_failure(refusal.status, refusal.message)
        return EngineBroken(reason, self.lifetime) if reason else refusal


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Return the TLS context for connections to a user's server. Loading the certificates takes long."""
    return httpx2.create_ssl_context(trust_env=False)


def _receipt_in(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the receipt in a response's headers, with its numbers as such."""
    values = {name.removeprefix(_RECEIPT_PREFIX): value for name, value in headers.items()}
    return {name: int(value) if re.fullmatch("[0-9]{1,15}", value) else value for name, value in values.items()}


def split_lines(data: bytes) -> list[bytes]:
    """Split a stream at its line ends. Raises EngineRefused if the unfinished last line is too long."""
    lines = data.split(b"\n")
    if len(lines[-1]) > _MAX_LINE:
        raise EngineRefused(200, _("The response is invalid"))
    return lines


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
