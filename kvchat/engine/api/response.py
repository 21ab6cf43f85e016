"""A response of llama-server while it arrives, parsed by h11."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping

import h11

from kvchat.engine.api.errors import EngineGone, EngineLifetime, EngineRefused, EngineSilent
from kvchat.system.files import read_limited
from kvchat.text.language import N_, _

MAX_RESPONSE_BYTES = 64_000_000  # of a response that is not streamed; the longest prompt takes a tenth of this
READ_INTERVAL_S = 0.03  # between two reads of a stream; the window updates less often
_READ_BYTES = 65_536
_WRITE_BYTES = 1_000_000
GONE_ADVICE = N_("kvchat restarts it automatically. Send the message again.")


class EngineResponse:
    """A response, to be read once. Reading raises EngineGone or EngineSilent."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silence_s: float, lifetime: EngineLifetime
    ) -> None:
        self.status_code = 0  # 0 until `read_head` has returned
        self.headers: Mapping[str, str] = {}
        self.heard_at = time.monotonic()  # when data last arrived
        self._reader, self._writer, self._silence_s, self._lifetime = reader, writer, silence_s, lifetime
        self._http = h11.Connection(h11.CLIENT)
        self._failure: EngineGone | None = None
        self._closing: asyncio.Event | None = None
        self._on_silence: Callable[[], None] = lambda: None
        self._interval_s = 0.0

    @property
    def can_reuse_connection(self) -> bool:
        return self._http.our_state is self._http.their_state is h11.DONE and not self._http.trailing_data[0]

    def abort(self, failure: EngineGone | None = None) -> None:
        """Close the connection. Reading then raises `failure`, if given."""
        self._failure = failure
        self._writer.transport.abort()

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> None:
        request = h11.Request(method=method, target=target.encode(), headers=list(headers.items()))
        sent = [self._http.send(event) for event in (request, h11.Data(data=body), h11.EndOfMessage())]
        data = b"".join(part for part in sent if part)
        for at in range(0, len(data), _WRITE_BYTES):
            with contextlib.suppress(OSError):  # the server may have sent a response with the reason
                try:
                    async with asyncio.timeout(self._silence_s):
                        await self._writer.drain()
                except TimeoutError as error:
                    raise _silent_error(self._lifetime) from error
            self._writer.write(data[at : at + _WRITE_BYTES])

    async def read_head(self) -> None:
        while not self.status_code:
            if isinstance(head := await self._next(), h11.Response):
                self.status_code = head.status_code
                self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}

    async def read(self) -> bytes:
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                return bytes(event.data)
        return b""

    async def aiter_raw(self) -> AsyncGenerator[bytes, None]:
        while data := await self.read():
            yield data

    async def aread(self) -> bytes:
        try:
            async with contextlib.aclosing(self.aiter_raw()) as pieces:
                return await read_limited(pieces, MAX_RESPONSE_BYTES)
        except ValueError as error:
            raise EngineRefused(self.status_code, _("The response is invalid")) from error

    def read_in_batches(self, closing: asyncio.Event, on_silence: Callable[[], None], interval_s: float) -> None:
        """From now on, pause before each read to get larger chunks, until `closing` is set.

        `on_silence` is called after every `interval_s` without data.
        """
        self._closing, self._on_silence, self._interval_s = closing, on_silence, interval_s

    async def _next(self) -> object:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._receive())
                self.heard_at = time.monotonic()
        except TimeoutError as error:
            raise _silent_error(self._lifetime) from error
        except (h11.RemoteProtocolError, OSError) as error:
            raise self._failure or connection_lost(self._lifetime, str(error) or type(error).__name__) from error
        if isinstance(event, h11.ConnectionClosed):
            raise self._failure or connection_lost(self._lifetime, _("The engine closed the connection."))
        return event

    async def _receive(self) -> bytes:
        if self._closing is None:
            async with asyncio.timeout(self._silence_s):
                return await self._reader.read(_READ_BYTES)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_INTERVAL_S):
                await self._closing.wait()
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]
        waited = 0.0
        while waited + self._interval_s < self._silence_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    data = await self._reader.read(_READ_BYTES)
                self._writer.transport.pause_reading()  # type: ignore[attr-defined]
                return data
            self._on_silence()
            waited += self._interval_s
        async with asyncio.timeout(self._silence_s - waited):
            return await self._reader.read(_READ_BYTES)


def connection_lost(lifetime: EngineLifetime, detail: str) -> EngineGone:
    return EngineGone(_("The connection to the engine was lost"), detail, _(GONE_ADVICE), lifetime)


def _silent_error(lifetime: EngineLifetime) -> EngineSilent:
    title, detail = _("The engine is not responding"), _("It has not responded for too long.")
    return EngineSilent(title, detail, _(GONE_ADVICE), lifetime)
