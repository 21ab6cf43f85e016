"""A request in progress: its rendered prompt, and a response stream for clients slower than the engine."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Receive, Send

from kvchat.engine.api.errors import EngineRefused
from kvchat.engine.api.wire import Picture
from kvchat.gateway.dialects.conversion import Json, Unconvertible, split_pictures
from kvchat.gateway.dialects.request import Dialect, ParsedRequest, refusal
from kvchat.gateway.records import RequestRecord
from kvchat.kvstore.savepoint import Tokens, common_prefix
from kvchat.session.host import ReadyEngine
from kvchat.session.lease import BOUNDARY_PROBES
from kvchat.system.concurrency import InterruptibleTask, run_in_thread_if_large

SEND_TIMEOUT_S = 60.0  # a client that reads nothing this long has left
MAX_BUFFERED = 64_000_000  # bytes waiting for a client


@dataclass(frozen=True)
class RenderedPrompt:
    ids: Tokens
    text: str = ""  # empty if the client sent token ids


UNKNOWN = RenderedPrompt(())


def pictures_in(request: ParsedRequest) -> tuple[Picture, ...]:
    """Return a request's images, or none if it cannot be converted; the engine then reports the error."""
    try:
        return request.chat_and_pictures[1]
    except Unconvertible:
        return ()


async def prompt_of(engine: ReadyEngine, request: ParsedRequest) -> RenderedPrompt:
    """Render a request's prompt; UNKNOWN if kvchat or the engine cannot render it. Raises EngineGone."""
    try:
        prompt = request.body.get("prompt") if request.dialect is Dialect.COMPLETION else None
        if request.dialect is not Dialect.COMPLETION:
            chat, pictures = await run_in_thread_if_large(request.is_large, lambda: request.chat_and_pictures)
            text, ids = await engine.engine.request_tokens(chat, pictures)
        elif isinstance(prompt, str):
            text, ids = prompt, await engine.engine.text_tokens(prompt)
        elif isinstance(prompt, list) and len(prompt) < engine.limit and all(type(token) is int for token in prompt):
            text, ids = "", tuple(prompt)
        else:
            return UNKNOWN
    except (Unconvertible, EngineRefused):
        return UNKNOWN
    return RenderedPrompt(ids, text) if len(ids) < engine.limit else UNKNOWN  # the engine refuses longer prompts


async def shared_tokens(engine: ReadyEngine, make_request: Callable[[str], Json | str | None]) -> Tokens:
    """Return the tokens with which a prompt starts whatever its last text. Raises EngineGone.

    They are the common prefix of the prompts that `make_request` returns for two different texts. Empty if a prompt
    cannot be rendered.
    """
    prompts: list[Tokens] = []
    for probe in BOUNDARY_PROBES:
        try:
            request = make_request(probe)
            if request is None:
                return ()
            if isinstance(request, str):
                prompts.append(await engine.engine.text_tokens(request))
            else:
                prompts.append((await engine.engine.request_tokens(*split_pictures(request)))[1])
        except (Unconvertible, EngineRefused):
            return ()
    return prompts[0][: common_prefix(*prompts)]


class ClientTooSlow(ConnectionError):
    """The client stopped reading the response."""


class ResponseStream:
    """Queue of response data for a client, so that the producer never waits for the client."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._buffered = 0  # bytes
        self.has_begun = False  # headers were sent and are final
        self.has_answer = False  # more than progress was sent
        self.has_ended = False
        self.on_first_byte: Callable[[], None] = lambda: None

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.has_begun = True
        encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        self._messages.put_nowait({"type": "http.response.start", "status": status, "headers": encoded})

    def write(self, data: bytes) -> None:
        """Queue body bytes. Raises ClientTooSlow if more than MAX_BUFFERED are waiting."""
        self._buffered += len(data)
        if self._buffered > MAX_BUFFERED:
            raise ClientTooSlow
        self._messages.put_nowait({"type": "http.response.body", "body": data, "more_body": True})

    def end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            if self.has_begun:
                self._messages.put_nowait({"type": "http.response.body", "body": b""})
            self._messages.put_nowait(None)

    def send_whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.begin(status, dict(headers) | {"content-length": str(len(body))})
        self.write(body)
        self.end()

    async def deliver(self, receive: Receive, send: Send) -> None:
        async def wait_for_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        tasks = [asyncio.ensure_future(step) for step in (self._send(send), wait_for_disconnect())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        is_first = True
        while (message := await self._messages.get()) is not None:
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await send(message)
            except (OSError, TimeoutError):  # client left
                return
            self._buffered -= len(message.get("body", b""))
            if is_first and message.get("body"):
                is_first = False
                self.on_first_byte()


class MustRestart(Exception):
    """The chat window needs this request's slot or context space; the request starts over later."""


@dataclass(eq=False)
class PendingRequest:
    """A request, from admission until its slot's state is saved."""

    path: str
    request: ParsedRequest
    record: RequestRecord
    response: ResponseStream = field(default_factory=ResponseStream)
    prompt: RenderedPrompt = UNKNOWN
    engine_generation: int = 0  # generation of the engine that rendered `prompt`
    is_answered: bool = False  # fully generated; the end may not be sent yet
    is_abandoned: bool = False  # the client disconnected or the request was stopped
    task: asyncio.Task[None] | None = None
    answering: InterruptibleTask = field(default_factory=InterruptibleTask)

    async def render(self, engine: ReadyEngine) -> None:
        self.prompt, self.engine_generation = await prompt_of(engine, self.request), engine.generation

    def abandon(self) -> None:
        """Abort the answer because the client disconnected. An answer already complete is still saved."""
        if not (self.response.has_ended or self.is_answered):
            self._abort()

    def stop(self) -> None:
        if not self.response.has_ended:
            self.refuse(503, "The engine was stopped.", "unavailable_error")
            self._abort()

    def refuse(self, status: int, message: str, kind: str, retry_after_s: int = 0) -> None:
        dialect, response = self.request.dialect, self.response
        error = refusal(dialect, status, message, kind)
        if not response.has_begun:
            self.record.status = status
            headers = {"content-type": "application/json"}
            if retry_after_s:
                headers["retry-after"] = str(retry_after_s)
            response.send_whole(status, headers, json.dumps(error, ensure_ascii=False).encode())
        elif self.request.stream and not response.has_ended:
            if dialect is Dialect.RESPONSES:
                error = {"type": "error", "code": kind, "message": message, "param": None}
            name = "event: error\n" if dialect in (Dialect.MESSAGES, Dialect.RESPONSES) else ""
            response.write(f"{name}data: {json.dumps(error)}\n\n".encode())
        response.end()

    def _abort(self) -> None:
        self.is_abandoned = True
        if not self.answering.interrupt() and self.task is not None:
            self.task.cancel()
