"""uvicorn in the running event loop, with limits that no number of clients can exceed.

uvicorn has no public way to limit its connections, so `_Connection` relies on `connections`, `cycle`, `conn` and
`flow` of its H11Protocol, `_Server` on `capture_signals`, `main_loop` and `servers` of its Server; as in
https://github.com/encode/uvicorn/blob/0.54.0/uvicorn/protocols/http/h11_impl.py and …/uvicorn/server.py. If one of
them is gone, tests/gateway/test_gateway.py and test_attacks.py fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvchat.errors import KvchatError
from kvchat.text.language import _

MAX_CONNECTIONS = 256  # each uses a file; a process may have 1024
BACKLOG = 128  # connections accepted per event-loop iteration
HEAD_TIMEOUT_S = 10.0  # for a request's headers to arrive, while there is room
KEEP_ALIVE_S = 30  # idle time between two requests
SHUTDOWN_TIMEOUT_S = 5.0  # for unfinished responses at shutdown


class _Connection(H11Protocol):
    """One client. Closed after a time without a request, or at once if there are too many."""

    _head: asyncio.TimerHandle | None = None

    def __init__(self, *given: Any, waiting: dict[_Connection, None], **named: Any) -> None:
        """`waiting`: connections we await the client on; longest-waiting first."""
        super().__init__(*given, **named)
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
        self._head = self.loop.call_later(HEAD_TIMEOUT_S, self._check_head)
        self._update_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.pop(self, None)
        if self._head is not None:
            self._head.cancel()
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport is not None:
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
        asked = self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        if (asked and not self.flow.write_paused) or self.transport.is_closing():
            self._waiting.pop(self, None)
        else:
            self._waiting.setdefault(self)

    def end_request(self) -> None:
        if self.cycle is not None and self.cycle.more_body:
            self.transport.abort()

    def _check_head(self) -> None:
        """Drop a client that sends no request head; rechecked, as any later head may be missing."""
        between = self.cycle is None or self.cycle.response_complete
        if between and (self.cycle is None or self.conn.trailing_data[0]):
            self.transport.abort()
        else:
            self._head = self.loop.call_later(HEAD_TIMEOUT_S, self._check_head)


class _Server(Server):
    """Runs in a loop that has its own signal handlers."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.stop_requested, self.is_listening = asyncio.Event(), asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        finally:
            for server in getattr(self, "servers", ()):
                server.close()
            for sock in sockets or ():
                sock.close()

    async def main_loop(self) -> None:
        self.is_listening.set()
        await self.stop_requested.wait()


class Listener:
    def __init__(self, server: _Server, task: asyncio.Task[None], sock: socket.socket) -> None:
        self._server, self._task = server, task
        self.port: int = sock.getsockname()[1]

    @property
    def connections(self) -> int:
        return len(self._server.server_state.connections)

    async def close(self) -> None:
        connections = self._server.server_state.connections
        for connection in tuple(connections):
            if isinstance(connection, _Connection):
                connection.end_request()
        self._server.stop_requested.set()
        await asyncio.wait({self._task}, timeout=SHUTDOWN_TIMEOUT_S)
        for connection in tuple(connections):
            connection.transport.abort()
        await asyncio.wait({self._task})


async def listen(app: ASGIApp, host: str, port: int) -> Listener:
    """Listen on `host`; port 0 picks a free one. Raises KvchatError."""
    sock = _bind(host, port)
    config = Config(
        app,
        log_config=None,
        log_level="error",  # do not log partial requests
        access_log=False,
        lifespan="off",
        http=cast(Any, partial(_Connection, waiting={})),
        ws="none",
        proxy_headers=False,
        backlog=BACKLOG,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=round(2 * SHUTDOWN_TIMEOUT_S),  # for answers that ignore a disconnect
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve([sock]), name="API server")
    listening = asyncio.ensure_future(server.is_listening.wait())
    try:
        await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        task.cancel()
        await asyncio.wait({task})
        sock.close()
        raise
    finally:
        listening.cancel()
    if task.done():
        await task
    return Listener(server, task, sock)


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
