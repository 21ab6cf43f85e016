"""One request and its answer over plain HTTP, on a connection of its own: a fifth of a millisecond where a whole client
takes a whole one. For what is asked on the way to an answer that somebody waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

import h11

from kvchat.words.language import _

_PIECE = 65_536
_MUCH = 1_000_000  # bytes that are handed over at once


class Unreachable(ConnectionError):
    """Nobody takes the connection."""


class BrokeOff(ConnectionError):
    """The answer did not come to its end, or makes no sense."""


class Answer:
    """An answer whose head is there. Read it once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silence_s: float | None) -> None:
        self.status_code = 0
        self.headers: Mapping[str, str] = {}
        self._reader, self._silence_s = reader, silence_s
        self.drop = writer.transport.abort  # the connection, whoever waits for it
        self.connection = h11.Connection(h11.CLIENT)

    async def begin(self) -> None:
        """Wait for its head, if it is not there yet."""
        if self.status_code:
            return
        head = await self._next()
        while not isinstance(head, h11.Response):
            head = await self._next()
        self.status_code = head.status_code
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """Its body, as it comes. Raises BrokeOff, and TimeoutError after too long a silence."""
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)

    async def aread(self) -> bytes:
        """Its whole body."""
        return b"".join([data async for data in self.aiter_raw()])

    async def _next(self) -> object:
        try:
            while (event := self.connection.next_event()) is h11.NEED_DATA:
                async with asyncio.timeout(self._silence_s):
                    self.connection.receive_data(await self._reader.read(_PIECE))
        except (h11.RemoteProtocolError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise BrokeOff(str(error) or type(error).__name__) from error
        if isinstance(event, h11.ConnectionClosed):
            raise BrokeOff(_("It was closed."))
        return event


@contextlib.asynccontextmanager
async def exchange(
    base_url: str,
    method: str,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    connect_s: float,
    silence_s: float | None,
    under_way: set[Answer],
) -> AsyncIterator[Answer]:
    """Ask, and give the answer, which is still to `begin`. Left early, the connection is dropped.

    `under_way` has it meanwhile. Raises Unreachable, BrokeOff, and TimeoutError after so long a silence.
    """
    to = urlsplit(base_url)
    try:
        async with asyncio.timeout(connect_s):
            reader, writer = await asyncio.open_connection(to.hostname, to.port or 80)
    except OSError as error:  # TimeoutError is one
        raise Unreachable(str(error) or _("It takes no connection.")) from error
    answer = Answer(reader, writer, silence_s)
    under_way.add(answer)
    try:
        told = {"Host": to.netloc, "Content-Length": str(len(body)), "Connection": "close"} | dict(headers)
        request = h11.Request(method=method, target=(to.path + path).encode(), headers=list(told.items()))
        sent = [answer.connection.send(one) for one in (request, h11.Data(data=body), h11.EndOfMessage())]
        said = b"".join(part for part in sent if part)
        for at in range(0, len(said), _MUCH):
            with contextlib.suppress(ConnectionError):  # what it answers says why it takes no more
                async with asyncio.timeout(silence_s):
                    await writer.drain()
            writer.write(said[at : at + _MUCH])
        yield answer
    finally:
        under_way.discard(answer)
        answer.drop()
