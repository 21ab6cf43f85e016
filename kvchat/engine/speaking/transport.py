"""HTTP to a llama-server: a request's answer, or its stream. Foreign errors are translated here, once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2

from kvchat.engine.speaking import errors, wire
from kvchat.engine.speaking.errors import EngineBroken, EngineError, EngineGone, EngineRefused, EngineSilent
from kvchat.engine.speaking.exchange import Answer, BrokeOff, Unreachable, exchange
from kvchat.engine.speaking.life import Life
from kvchat.engine.speaking.wire import ChatChunk
from kvchat.system.files import collect
from kvchat.words.language import N_, _

if TYPE_CHECKING:
    from httpcore2 import AsyncNetworkStream

E = TypeVar("E", bound=EngineError)

MOST_ANSWER = 64_000_000  # bytes of an answer in one piece; a prompt as long as any context has a tenth of it
CONNECT_S = 5.0
PAUSE_S = 0.03  # between two reads of a stream: far less than between two updates of the page
WORRY_S = 10.0  # without a word, after words were coming
_QUICK_S = 60.0  # for what the engine answers without computing; it may be behind a running batch
_LAST_WORDS_S = 0.5  # at the end, for what a reply's connection still holds
_SILENT = N_("It has been silent for too long.")
_GONE_ADVICE = N_("kvchat starts it again by itself; send the message once more.")
_HANG_ADVICE = N_("Restart the engine, then send the message once more.")


class Transport:
    """The connections to one server. Every method but `close` raises EngineGone; those with the key EngineRefused."""

    def __init__(
        self,
        base_url: str,
        key: str,
        hang_guard_s: float | None,
        on_fault: Callable[[EngineError], None],
        on_silence: Callable[[], None],
        transport: httpx2.AsyncBaseTransport | None,
    ) -> None:
        """See `LlamaServerClient`."""
        self.life = Life()
        self._hang_guard_s = hang_guard_s
        self._on_fault, self._on_silence = on_fault, on_silence
        self._closing = asyncio.Event()
        self._streams: set[asyncio.Task[None]] = set()
        self._authorization = {"Authorization": f"Bearer {key}"} if key else {}
        self._open: set[httpx2.AsyncClient] = set()
        self._under_way: set[Answer] = set()
        self._plain = base_url if base_url.startswith("http://") and transport is None else ""
        # One for each request. The server closes connections after a streamed reply, and a request that is cancelled
        # at a bad moment leaves its connection open in httpx2's pool: with the client it goes.
        self._make = functools.partial(
            httpx2.AsyncClient,
            base_url=base_url,
            verify=_trust(base_url.partition(":")[0]),
            trust_env=False,  # a proxy has no business between us and our own child
            transport=transport,
        )

    async def close(self) -> None:
        """Drop all connections, once what a dead engine has said is read to its end."""
        self._closing.set()
        if self._streams:
            await asyncio.wait(self._streams, timeout=_LAST_WORDS_S)
        for http in tuple(self._open):
            await http.aclose()
        for answer in tuple(self._under_way):
            answer.drop()

    async def knock(self, path: str, timeout_s: float) -> int:
        """GET without the key, which is not for a stranger who happens to listen there; the status."""
        async with self._client() as http:
            return (await http.get(path, timeout=timeout_s)).status_code

    async def call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = _QUICK_S
    ) -> dict[str, Any]:
        """The object that the server answers."""
        return wire.parse_object(await self.answer(method, path, body, timeout_s=timeout_s))

    async def answer(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = _QUICK_S
    ) -> bytes:
        """Whatever the server answers."""
        content = b""
        if body is not None:
            content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        async with self.passed_on(path, content, method=method, silence_s=timeout_s) as response:
            try:
                answer = await collect(response.aiter_raw(), MOST_ANSWER)
            except ValueError as error:
                raise EngineRefused(response.status_code, _("The answer makes no sense")) from error
        if response.status_code != 200:
            refusal = self._lost(_refusal(wire.parse_error(answer, response.status_code)))
            self._on_fault(refusal)
            raise refusal
        return answer

    @contextlib.asynccontextmanager
    async def passed_on(
        self,
        path: str,
        body: bytes,
        *,
        method: str = "POST",
        silence_s: float | None,
        meanwhile: Callable[[], Awaitable[None]] | None = None,
        patience_s: float = 0.0,
    ) -> AsyncIterator[httpx2.Response | Answer]:
        """The server's own answer to a request that is made already, whatever its status, still to be read.

        `meanwhile` is done while the server is at it, as far as that can be, and only if its answer has not begun after
        `patience_s`; an error there drops the request.
        """
        headers = self._authorization | {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._plain:
            asked = exchange(
                *(self._plain, method, path, body, headers),
                connect_s=CONNECT_S,
                silence_s=silence_s,
                under_way=self._under_way,
            )
            async with self._in_words(), asked as plain:
                if meanwhile is not None and not await _begins_within(plain, patience_s):
                    await meanwhile()
                await plain.begin()
                yield plain
            return
        if meanwhile is not None:
            await meanwhile()
        timeout = httpx2.Timeout(silence_s, connect=CONNECT_S)
        async with (
            self._client() as http,
            http.stream(method, path, content=body, headers=headers, timeout=timeout) as answer,
        ):
            yield answer

    async def stream(self, path: str, body: dict[str, Any]) -> AsyncGenerator[ChatChunk, None]:
        """The events of a streamed answer. Raises EngineGone when it breaks off before its end.

        The reading is a task of its own, so that dropping the request is a cancellation, which runs through all of
        httpx2's nested generators. Closing this one while they are suspended would leave them to the garbage collector.
        """
        arrived: asyncio.Queue[ChatChunk | Exception | None] = asyncio.Queue()
        reading = asyncio.create_task(self._read(path, body, arrived.put_nowait), name=f"engine stream {path}")
        self._streams.add(reading)
        reading.add_done_callback(self._streams.discard)
        try:
            begun = False
            while (chunk := await self._next(arrived, begun=begun)) is not None:
                if isinstance(chunk, Exception):
                    raise chunk
                begun = begun or bool(chunk.text or chunk.thinking)
                yield chunk
        finally:
            reading.cancel()
            await asyncio.wait({reading})

    @contextlib.asynccontextmanager
    async def _in_words(self) -> AsyncIterator[None]:
        """What goes wrong with a plain exchange, in our words."""
        self._check_open()
        try:
            yield
        except Unreachable as error:
            raise self._lost(EngineGone(_("The engine cannot be reached"), str(error), _(_GONE_ADVICE))) from error
        except TimeoutError as error:
            raise self._lost(EngineSilent(_("The engine does not answer"), _(_SILENT), _(_GONE_ADVICE))) from error
        except BrokeOff as error:
            raise self._lost(EngineGone(_("The engine broke off"), str(error), _(_GONE_ADVICE))) from error

    def _lost(self, error: E) -> E:
        """Return the error, an EngineGone with the life that it ends."""
        if isinstance(error, EngineGone):
            error.life = self.life
        return error

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise self._lost(
                EngineGone(_("The engine is no longer there"), _("It was stopped or started anew."), _(_GONE_ADVICE))
            )

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx2.AsyncClient]:
        """For one request. This is the one place where httpx2's errors become ours."""
        self._check_open()
        try:
            async with self._make() as http:
                self._open.add(http)
                try:
                    yield http
                finally:
                    self._open.discard(http)
        except httpx2.ConnectError as error:
            raise self._lost(EngineGone(_("The engine cannot be reached"), _words(error), _(_GONE_ADVICE))) from error
        except httpx2.ReadTimeout as error:
            raise self._lost(EngineSilent(_("The engine does not answer"), _(_SILENT), _(_GONE_ADVICE))) from error
        except httpx2.TimeoutException as error:
            raise self._lost(
                EngineGone(_("The engine does not answer"), _("It cannot be reached."), _(_HANG_ADVICE))
            ) from error
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise self._lost(EngineGone(_("The engine broke off"), _words(error), _(_GONE_ADVICE))) from error

    async def _next(
        self, arrived: asyncio.Queue[ChatChunk | Exception | None], *, begun: bool
    ) -> ChatChunk | Exception | None:
        """What arrives next. Once words were coming, a long silence is told; a prompt takes as long as it takes."""
        while begun and arrived.empty():
            try:
                async with asyncio.timeout(WORRY_S):
                    return await arrived.get()
            except TimeoutError:
                self._on_silence()
        return await arrived.get()

    async def _read(
        self, path: str, body: dict[str, Any], arrive: Callable[[ChatChunk | Exception | None], None]
    ) -> None:
        """Read the stream to its end; hand over each chunk, then the error or None."""
        timeout = httpx2.Timeout(CONNECT_S, read=self._hang_guard_s)
        ended = begun = False
        try:
            async with (
                self._client() as http,
                http.stream("POST", path, json=body, headers=self._authorization, timeout=timeout) as answer,
            ):
                if answer.status_code != 200:
                    raise self._lost(_refusal(wire.parse_error(await answer.aread(), answer.status_code)))
                async for event in httpx2.EventSource(answer, None):
                    chunk = wire.parse_event(event.data)
                    if isinstance(chunk, wire.WireError):  # raised in here it would leave the event source open
                        refusal = self._lost(_refusal(chunk))
                        self._on_fault(refusal)
                        arrive(refusal)
                    elif chunk is not None:
                        arrive(chunk)
                        if not begun and (chunk.text or chunk.thinking):  # the first word waits for nothing
                            begun = True
                            read_in_batches(answer, self._closing)
                    ended = ended or wire.ends_stream(event.data)
        except Exception as error:  # whatever it is, it belongs to whoever reads
            if isinstance(error, EngineError):
                self._on_fault(error)
            arrive(error)
        else:
            arrive(
                None
                if ended
                else self._lost(
                    EngineGone(_("The engine broke off"), _("Its reply stopped before the end."), _(_GONE_ADVICE))
                )
            )


async def _begins_within(answer: Answer, seconds: float) -> bool:
    """Whether an answer's head is there before so long; it is waited for no longer."""
    if seconds:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await answer.begin()
    return bool(answer.status_code)


@functools.cache
def _trust(scheme: str) -> ssl.SSLContext:
    """Whose certificates count. Reading all of them takes long, and an engine of our own speaks plain HTTP."""
    return httpx2.create_ssl_context(trust_env=False) if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _refusal(error: wire.WireError) -> EngineRefused | EngineBroken:
    reason = errors.broken(error.status, error.message)
    return EngineBroken(reason) if reason else EngineRefused(error.status, error.message, error.kind)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def read_in_batches(answer: httpx2.Response, hurry: asyncio.Event) -> None:
    """Pause before each further read of `answer`, until `hurry` is set; what comes meanwhile is read at once.

    It waits in the operating system's buffer, from where it can be had even if the engine is gone by then.
    """
    stream: AsyncNetworkStream | None = answer.extensions.get("network_stream")
    if stream is None:  # no network below
        return
    read = stream.read

    async def read_after_a_pause(max_bytes: int, timeout: float | None = None) -> bytes:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_S):
                await hurry.wait()
        return await read(max_bytes, timeout)

    stream.read = read_after_a_pause  # type: ignore[method-assign]
