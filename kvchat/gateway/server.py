"""uvicorn's HTTP protocol in the running event loop, with limits on connections and waiting times.

uvicorn has no public way to limit its connections. `_Connection` therefore relies on `connections`, `cycle`, `conn`
and `flow` of H11Protocol, and `Listener` on ServerState, as of
https://github.com/encode/uvicorn/blob/0.54.0/uvicorn/protocols/http/h11_impl.py and …/uvicorn/server.py. If uvicorn
removes one of them, tests/gateway/test_gateway.py and test_attacks.py fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from kvchat.errors import KvchatError
from kvchat.text.language import _

MAX_CONNECTIONS = 256  # each uses a file; a process may have 1024
MAX_HANDSHAKES = 64  # connections whose TLS handshake is not complete
BACKLOG = 128  # connections that wait to be accepted
ACCEPTED_AT_ONCE = 8  # per event-loop iteration, because the window waits meanwhile: 0.3 ms each
HEAD_TIMEOUT_S = 10.0  # for a TLS handshake, and for a request's headers to arrive, while there is room
TLS_SHUTDOWN_S = 2.0  # for a client to agree that the connection ends
KEEP_ALIVE_S = 30  # idle time between two requests
SHUTDOWN_TIMEOUT_S = 5.0  # for unfinished responses


class _Connection(H11Protocol):
    """A client's connection; closed if no request arrives in time or there are too many connections."""

    _head_timer: asyncio.TimerHandle | None = None
    _early = b""  # data that arrived together with the end of the TLS handshake

    def __init__(
        self, config: Config, state: ServerState, app_state: dict[str, Any], *, waiting: dict[_Connection, None]
    ) -> None:
        """`waiting`: connections that wait for their client, longest-waiting first."""
        super().__init__(config, state, app_state)
        self._waiting = waiting

    def connection_made(self, transport: Any) -> None:
        if len(self.connections) >= MAX_CONNECTIONS:
            longest = next(iter(self._waiting), None)
            if longest is None:
                transport.abort()
                return
            del self._waiting[longest]
            longest.transport.abort()
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._check_head)
        self._update_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
        if self.transport is not None:
            super().connection_lost(exc)

    def begin(self, transport: asyncio.Transport) -> None:
        """Handle the connection after its TLS handshake."""
        self.connection_made(transport)
        if self._early:
            self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        self._early += data
        if self.transport is not None:
            data, self._early = self._early, b""
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:  # new request: its body may be slow
                self._waiting.pop(self, None)
            self._update_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_waiting()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_waiting()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_waiting()

    def _update_waiting(self) -> None:
        has_request = self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        if has_request and not self.flow.write_paused:
            self._waiting.pop(self, None)
        else:
            self._waiting.setdefault(self)

    def shutdown(self) -> None:
        if self.cycle is not None and self.cycle.more_body:
            self.transport.abort()
        else:
            super().shutdown()

    def _check_head(self) -> None:
        """Close the connection if its client has not sent a complete request head; else check again later."""
        between = self.cycle is None or self.cycle.response_complete
        if between and (self.cycle is None or self.conn.trailing_data[0]):
            self.transport.abort()
        else:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._check_head)


class _Handshake(asyncio.Protocol):
    """A connection before and during its TLS handshake; the one that waits longest is closed if there are too many.

    asyncio's own TLS server does not limit them: each would keep a file open until its timeout.
    """

    def __init__(self, connection: _Connection, context: ssl.SSLContext, waiting: dict[_Handshake, None]) -> None:
        self._connection, self._context, self._waiting = connection, context, waiting
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if len(self._waiting) >= MAX_HANDSHAKES:
            longest = next(iter(self._waiting))
            del self._waiting[longest]
            longest.abort()
        self._waiting[self] = None
        self._transport = transport
        self._task = asyncio.get_running_loop().create_task(self._run(transport))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _run(self, transport: asyncio.Transport) -> None:
        try:
            with contextlib.suppress(OSError):  # also ssl.SSLError and TimeoutError
                tls = await asyncio.get_running_loop().start_tls(
                    transport,
                    self._connection,
                    self._context,
                    server_side=True,
                    ssl_handshake_timeout=HEAD_TIMEOUT_S,
                    ssl_shutdown_timeout=TLS_SHUTDOWN_S,
                )
                if tls is not None and not tls.is_closing():
                    self._connection.begin(tls)
        finally:
            self._waiting.pop(self, None)


class Listener:
    def __init__(self, server: asyncio.Server, state: ServerState, handshakes: dict[_Handshake, None]) -> None:
        self._server, self._state, self._handshakes = server, state, handshakes
        self.port: int = server.sockets[0].getsockname()[1]

    @property
    def connection_count(self) -> int:
        return len(self._state.connections)

    def stop_accepting(self) -> None:
        """Accept no more connections; those that are open stay."""
        self._server.close()

    async def close(self) -> None:
        """Stop listening, wait for answers, then abort those left. Can be called again if cancelled."""
        self.stop_accepting()
        for handshake in tuple(self._handshakes):
            handshake.abort()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        await self._wait_until_idle()
        for connection in tuple(self._state.connections):
            connection.transport.abort()
        await self._wait_until_idle()
        for task in tuple(self._state.tasks):  # of answers that ignore a disconnect
            task.cancel()

    async def _wait_until_idle(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
                while self._state.connections or self._state.tasks:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.02)


async def listen(app: ASGIApp, host: str, port: int, context: ssl.SSLContext | None = None) -> Listener:
    """Listen on `host`, by TLS if there is a `context`; port 0 picks a free port. Raises KvchatError."""
    config = Config(
        app,
        log_config=None,
        log_level="error",  # do not log partial requests
        access_log=False,
        http="h11",
        ws="none",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    config.load()
    state, waiting = ServerState(), dict[_Connection, None]()
    handshakes = dict[_Handshake, None]()

    def accept() -> asyncio.Protocol:
        connection = _Connection(config, state, {}, waiting=waiting)
        return connection if context is None else _Handshake(connection, context, handshakes)

    sock = _bind(host, port)
    try:
        loop = asyncio.get_running_loop()
        sock.listen(BACKLOG)  # Windows heeds the first number
        server = await loop.create_server(accept, sock=sock, backlog=ACCEPTED_AT_ONCE, start_serving=False)
        try:
            await server.start_serving()
            sock.listen(BACKLOG)  # asyncio uses one number for both
        except BaseException:
            server.close()
            raise
    except BaseException:
        sock.close()
        raise
    return Listener(server, state, handshakes)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        try:
            if hasattr(socket, "SO_REUSEADDR") and not hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise KvchatError(
            _("The API server could not start"),
            _("Cannot listen on {host}:{port}: {reason}.", host=host, port=port, reason=error.strerror),
            _("Choose another port, or close the program that uses it."),
        ) from error
    sock.setblocking(False)
    return sock
