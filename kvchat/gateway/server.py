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

MOST_CONNECTIONS = 256  # each uses a file; a process may have 1024
AT_A_TIME = 128  # connections accepted per event-loop iteration
HEAD_S = 10.0  # for a request's headers to arrive, while there is room
KEPT_OPEN_S = 30  # idle time between two requests
PATIENCE_S = 5.0  # for unfinished responses at shutdown


class _Connection(H11Protocol):
    """One client. Closed after a time without a request, or at once if there are too many."""

    _head: asyncio.TimerHandle | None = None

    def __init__(self, *given: Any, waiting: dict[_Connection, None], **named: Any) -> None:
        """`waiting`: connections we await the client on; longest-waiting first."""
        super().__init__(*given, **named)
        self._waiting = waiting

    def connection_made(self, transport: Any) -> None:
        if len(self.connections) >= MOST_CONNECTIONS:
            longest = next(iter(self._waiting), None)
            if longest is None:
                transport.abort()
                return
            del self._waiting[longest]
            longest.transport.abort()
        super().connection_made(transport)
        self._head = self.loop.call_later(HEAD_S, self._expect_head)
        self._waits()

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
            self._waits()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._waits()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._waits()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._waits()

    def _waits(self) -> None:
        asked = self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        if (asked and not self.flow.write_paused) or self.transport.is_closing():
            self._waiting.pop(self, None)
        else:
            self._waiting.setdefault(self)

    def end_request(self) -> None:
        if self.cycle is not None and self.cycle.more_body:
            self.transport.abort()

    def _expect_head(self) -> None:
        """Drop a client that sends no request head; rechecked, as any later head may be missing."""
        between = self.cycle is None or self.cycle.response_complete
        if between and (self.cycle is None or self.conn.trailing_data[0]):
            self.transport.abort()
        else:
            self._head = self.loop.call_later(HEAD_S, self._expect_head)


class _Server(Server):
    """Runs in a loop that has its own signal handlers."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.told_to_end, self.listens = asyncio.Event(), asyncio.Event()

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
        self.listens.set()
        await self.told_to_end.wait()


class Listening:
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
        self._server.told_to_end.set()
        await asyncio.wait({self._task}, timeout=PATIENCE_S)
        for connection in tuple(connections):
            connection.transport.abort()
        await asyncio.wait({self._task})


async def listen(app: ASGIApp, host: str, port: int) -> Listening:
    """Listen on `host`; port 0 picks a free one. Raises KvchatError."""
    sock = _bound(host, port)
    config = Config(
        app,
        log_config=None,
        log_level="error",  # do not log partial requests
        access_log=False,
        lifespan="off",
        http=cast(Any, partial(_Connection, waiting={})),
        ws="none",
        proxy_headers=False,
        backlog=AT_A_TIME,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEPT_OPEN_S,
        timeout_graceful_shutdown=round(2 * PATIENCE_S),  # for answers that ignore a disconnect
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve([sock]), name="API server")
    listens = asyncio.ensure_future(server.listens.wait())
    try:
        await asyncio.wait({task, listens}, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        task.cancel()
        await asyncio.wait({task})
        sock.close()
        raise
    finally:
        listens.cancel()
    if task.done():
        await task
    return Listening(server, task, sock)


def _bound(host: str, port: int) -> socket.socket:
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
