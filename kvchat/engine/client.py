"""Speaks HTTP to a llama-server: one request, one typed answer. Foreign errors are translated here, once."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import TracebackType
from typing import Any, Protocol, Self

import httpx
import httpx_sse

from kvchat.engine import wire
from kvchat.engine.gulps import read_in_gulps
from kvchat.engine.wire import (
    ChatChunk,
    ChatMessage,
    PromptProgress,
    Sampling,
    ServerFacts,
    SlotRestore,
    SlotSave,
    Timings,
)
from kvchat.errors import KvchatError


class EngineError(KvchatError):
    """Something went wrong between kvchat and its engine."""


class EngineGone(EngineError):
    """The connection could not be made or broke off: the engine died, hangs or was stopped."""


class EngineSilent(EngineGone):
    """The engine took a request and then said nothing for too long."""


class EngineRefused(EngineError):
    """The engine answered with an error status."""

    def __init__(self, status: int, message: str, kind: str = "") -> None:
        super().__init__("The engine refused the request", message)
        self.status = status
        self.message = message
        self.kind = kind  # llama-server's error type, e.g. "exceed_context_size_error"


class Engine(Protocol):
    """A ready llama-server as a turn sees it. Every method raises EngineGone or EngineRefused."""

    async def facts(self) -> ServerFacts:
        """GET /props."""
        ...

    def with_template(self, options: Mapping[str, bool | str]) -> Engine:
        """The same engine, which renders and answers with these options of the chat template."""
        ...

    async def check_schema(self, schema: str) -> None:
        """Whether a reply can follow this JSON schema, without touching the slot. Raises EngineRefused if not."""
        ...

    async def prompt_tokens(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """The token ids a chat request with these messages is going to send: /apply-template, then /tokenize."""
        ...

    async def count_tokens(self, text: str) -> int:
        """How many tokens a text has, by itself: /tokenize."""
        ...

    def chat(self, messages: Sequence[ChatMessage], sampling: Sampling) -> AsyncGenerator[ChatChunk, None]:
        """POST /v1/chat/completions, streamed, pinned to slot 0, with progress and timings.

        Closing it drops the request: wrap it in `contextlib.aclosing`.
        """
        ...

    async def prefill(
        self, tokens: Sequence[int], progress: Callable[[PromptProgress], None] = lambda progress: None
    ) -> Timings:
        """POST /completion with n_predict 0: make the slot hold exactly these tokens; what that took."""
        ...

    async def save_slot(self, filename: str) -> SlotSave:
        """POST /slots/0?action=save."""
        ...

    async def restore_slot(self, filename: str) -> SlotRestore:
        """POST /slots/0?action=restore."""
        ...

    async def erase_slot(self) -> None:
        """POST /slots/0?action=erase."""
        ...


class Health(Enum):
    """What a server says of itself."""

    LOADING = "loading"
    READY = "ready"


class NotOurEngine(EngineError):
    """The server that answers is not the one we started."""


_GONE_ADVICE = "kvchat starts it again by itself; send the message once more."
_HANG_ADVICE = "Restart the engine, then send the message once more."
_CONNECT_S = 5.0
_HEALTH_S = 2.0  # asked again and again, so a slow answer costs nothing
_QUICK_S = 60.0  # for what the engine answers without computing; it may be behind a running batch
_LAST_WORDS_S = 0.1  # at the end, for what a reply's connection still holds
_SLOT_S = 900.0  # a save or restore may wait for a busy slot, and move many GB on a slow disk


class LlamaServerClient:
    """An `Engine` over HTTP. Close it with `close`, or use it as an async context manager."""

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        hang_guard_s: float | None = 600.0,
        on_fault: Callable[[EngineError], None] = lambda _: None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`hang_guard_s`: longest silence within a stream, None for no limit. `transport` is for tests.

        A prefill shows progress at least after each batch, so a silence of minutes is a hang. `on_fault` is told of
        every stream that went wrong, before whoever reads it is.
        """
        self.base_url = base_url
        self.key = key
        self._hang_guard_s = hang_guard_s
        self._on_fault = on_fault
        self._template: Mapping[str, bool | str] = {}
        self._closing = asyncio.Event()
        self._streams: set[asyncio.Task[None]] = set()
        self._authorization = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(
            base_url=base_url,
            # The server closes connections after a streamed reply; a pooled one would break the next request.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,  # a proxy has no business between us and our own child
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def close(self) -> None:
        """Drop all connections, once what a dead engine has said is read to its end."""
        self._closing.set()
        if self._streams:
            await asyncio.wait(self._streams, timeout=_LAST_WORDS_S)
        await self._http.aclose()

    async def health(self, timeout_s: float = _HEALTH_S) -> Health:
        """GET /health. Raises EngineGone while nobody listens yet."""
        with _translated(self._http):
            response = await self._http.get("/health", timeout=timeout_s)
        if response.status_code == 200:
            return Health.READY
        if response.status_code == 503:
            return Health.LOADING
        raise NotOurEngine("Another program answers on the engine's port", f"/health says {response.status_code}.")

    async def verify(self) -> ServerFacts:
        """The facts of a server that turns away a caller without our key and knows ours. Raises NotOurEngine.

        The call without the key goes first: our key is not for a stranger who happens to listen there.
        """
        with _translated(self._http):
            response = await self._http.get("/props", timeout=_CONNECT_S)
        if response.status_code == 401:
            with contextlib.suppress(EngineRefused):
                return await self.facts()
        raise NotOurEngine("Another program answers on the engine's port", "It does not know this launch's key.")

    def with_template(self, options: Mapping[str, bool | str]) -> LlamaServerClient:
        """The same connections, whose requests carry these options of the chat template."""
        other = copy.copy(self)
        other._template = options
        return other

    async def check_schema(self, schema: str) -> None:
        """POST /apply-template, which makes a grammar of the schema. Raises EngineRefused where it cannot."""
        messages = wire.messages_body([ChatMessage("user", "?")])
        await self._call("POST", "/apply-template", {"messages": messages, "json_schema": json.loads(schema)})

    async def facts(self) -> ServerFacts:
        """GET /props."""
        return wire.parse_facts(await self._call("GET", "/props"))

    async def prompt_tokens(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """The token ids a chat request with these messages is going to send: /apply-template, then /tokenize."""
        body = {"messages": wire.messages_body(messages)} | wire.template_body(self._template)
        rendered = await self._call("POST", "/apply-template", body)
        return await self._tokens({"content": rendered.get("prompt"), "add_special": True, "parse_special": True})

    async def count_tokens(self, text: str) -> int:
        """How many tokens a text has, by itself: /tokenize."""
        return len(await self._tokens({"content": text, "add_special": False, "parse_special": True}))

    async def chat(self, messages: Sequence[ChatMessage], sampling: Sampling) -> AsyncGenerator[ChatChunk, None]:
        """POST /v1/chat/completions, streamed, pinned to slot 0, with progress and timings.

        Closing it drops the request: wrap it in `contextlib.aclosing`.
        """
        stream = self._stream("/v1/chat/completions", wire.chat_body(messages, sampling, self._template))
        async with contextlib.aclosing(stream) as chunks:
            async for chunk in chunks:
                yield chunk

    async def prefill(
        self, tokens: Sequence[int], progress: Callable[[PromptProgress], None] = lambda progress: None
    ) -> Timings:
        """POST /completion with n_predict 0: make the slot hold exactly these tokens; what that took."""
        timings = Timings(cache_n=0, prompt_n=len(tokens), prompt_ms=0.0, predicted_n=0, predicted_ms=0.0)
        async with contextlib.aclosing(self._stream("/completion", wire.prefill_body(tokens))) as chunks:
            async for chunk in chunks:
                timings = chunk.timings or timings
                if chunk.progress:
                    progress(chunk.progress)
        return timings

    async def save_slot(self, filename: str) -> SlotSave:
        """POST /slots/0?action=save."""
        return wire.parse_save(await self._slot("save", {"filename": filename}))

    async def restore_slot(self, filename: str) -> SlotRestore:
        """POST /slots/0?action=restore."""
        return wire.parse_restore(await self._slot("restore", {"filename": filename}))

    async def erase_slot(self) -> None:
        """POST /slots/0?action=erase."""
        await self._slot("erase", {})

    async def look(self, path: str) -> bytes:
        """GET something that is there to be looked at, such as /slots or /metrics."""
        return await self._answer("GET", path)

    async def _tokens(self, body: dict[str, Any]) -> tuple[int, ...]:
        tokens = wire.parse_tokens(await self._call("POST", "/tokenize", body))
        if tokens is None:
            raise EngineRefused(200, "The engine's answer to /tokenize makes no sense.")
        return tokens

    async def _slot(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._call("POST", f"/slots/0?action={action}", body, timeout_s=_SLOT_S)

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = _QUICK_S
    ) -> dict[str, Any]:
        return wire.parse_object(await self._answer(method, path, body, timeout_s=timeout_s))

    async def _answer(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = _QUICK_S
    ) -> bytes:
        with _translated(self._http):
            response = await self._http.request(
                method,
                path,
                json=body,
                headers=self._authorization,
                timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S),
            )
        if response.status_code != 200:
            raise _refusal(wire.parse_error(response.content, response.status_code))
        return response.content

    async def _stream(self, path: str, body: dict[str, Any]) -> AsyncGenerator[ChatChunk, None]:
        """The events of a streamed answer. Raises EngineGone when it breaks off before its end.

        The reading is a task of its own, so that dropping the request is a cancellation, which runs through all of
        httpx's nested generators. Closing this one while they are suspended would leave them to the garbage collector.
        """
        arrived: asyncio.Queue[ChatChunk | Exception | None] = asyncio.Queue()
        reading = asyncio.create_task(self._read(path, body, arrived.put_nowait), name=f"engine stream {path}")
        self._streams.add(reading)
        reading.add_done_callback(self._streams.discard)
        try:
            while (chunk := await arrived.get()) is not None:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            reading.cancel()
            await asyncio.wait({reading})

    async def _read(
        self, path: str, body: dict[str, Any], arrive: Callable[[ChatChunk | Exception | None], None]
    ) -> None:
        """Read the stream to its end; hand over each chunk, then the error or None."""
        timeout = httpx.Timeout(_CONNECT_S, read=self._hang_guard_s)
        ended = begun = False
        try:
            with _translated(self._http):
                async with self._http.stream(
                    "POST", path, json=body, headers=self._authorization, timeout=timeout
                ) as answer:
                    if answer.status_code != 200:
                        raise _refusal(wire.parse_error(await answer.aread(), answer.status_code))
                    async for event in httpx_sse.EventSource(answer).aiter_sse():
                        chunk = wire.parse_event(event.data)
                        if isinstance(chunk, wire.WireError):  # raised in here it would leave the event source open
                            refusal = _refusal(chunk)
                            self._on_fault(refusal)
                            arrive(refusal)
                        elif chunk is not None:
                            arrive(chunk)
                            if not begun and (chunk.text or chunk.thinking):  # the first word waits for nothing
                                begun = True
                                read_in_gulps(answer, self._closing)
                        ended = ended or wire.ends_stream(event.data)
        except Exception as error:  # whatever it is, it belongs to whoever reads
            if isinstance(error, EngineError):
                self._on_fault(error)
            arrive(error)
        else:
            arrive(
                None if ended else EngineGone("The engine broke off", "Its reply stopped before the end.", _GONE_ADVICE)
            )


def _refusal(error: wire.WireError) -> EngineRefused:
    return EngineRefused(error.status, error.message, error.kind)


@contextlib.contextmanager
def _translated(http: httpx.AsyncClient) -> Iterator[None]:
    """The one place where httpx's errors become ours."""
    if http.is_closed:
        raise EngineGone("The engine is no longer there", "It was stopped or started anew.", _GONE_ADVICE)
    try:
        yield
    except httpx.ConnectError as error:
        raise EngineGone("The engine cannot be reached", _words(error), _GONE_ADVICE) from error
    except httpx.ReadTimeout as error:
        raise EngineSilent("The engine does not answer", "It has been silent for too long.", _GONE_ADVICE) from error
    except httpx.TimeoutException as error:
        raise EngineGone("The engine does not answer", "It cannot be reached.", _HANG_ADVICE) from error
    except (httpx.HTTPError, httpx.StreamError, httpx_sse.SSEError) as error:
        raise EngineGone("The engine broke off", _words(error), _GONE_ADVICE) from error


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
