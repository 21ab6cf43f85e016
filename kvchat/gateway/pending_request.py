"""A request in progress: its prompt's ids, and the response stream to a client that may be slower than the engine."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Receive, Send

from kvchat.engine.api.errors import EngineRefused
from kvchat.engine.api.wire import Picture
from kvchat.gateway.dialects.conversion import Json, Unconvertible
from kvchat.gateway.dialects.request import Form, ParsedRequest, as_chat, refusal
from kvchat.gateway.records import RequestRecord
from kvchat.kvstore.savepoint import Tokens, common_prefix
from kvchat.session.host import ReadyEngine
from kvchat.session.lease import BOUNDARY_PROBES
from kvchat.system.concurrency import InterruptibleTask, run_in_thread_if_large

TAKEN_S = 60.0  # a client that reads nothing this long has left
MOST_WAITING = 64_000_000  # bytes buffered for a client
_PLACE = {"url": "data:image/png;base64,iVBORw=="}  # templates render without reading the image
_HEARD = ("input_audio", "input_video", "file")  # their tokens are unknown


@dataclass(frozen=True)
class Prompt:
    ids: Tokens
    text: str = ""  # empty if given as token ids


UNKNOWN = Prompt(())


def pictures_in(asked: ParsedRequest) -> tuple[Picture, ...]:
    """Return a request's images; none if it is not convertible, which the engine reports."""
    try:
        return (
            _chat_and_pictures(as_chat(asked.form, asked.body))[1]
            if asked.form not in (Form.COMPLETION, Form.PLAIN)
            else ()
        )
    except Unconvertible:
        return ()


async def prompt_of(engine: ReadyEngine, asked: ParsedRequest) -> Prompt:
    """Return a request's prompt, UNKNOWN if only the engine can make it or it refuses. Raises EngineGone."""
    try:
        if asked.form is Form.COMPLETION:
            prompt = await _given(engine, asked.body.get("prompt"))
        else:
            prompt = await _rendered(engine, as_chat(asked.form, asked.body), large=asked.is_large)
    except (Unconvertible, EngineRefused):
        return UNKNOWN
    return prompt if len(prompt.ids) < engine.limit else UNKNOWN  # the engine refuses longer prompts


async def shared_tokens(engine: ReadyEngine, following: Callable[[str], Json | str | None]) -> Tokens:
    """Return the common prefix of two prompts made with different probes; empty if there is none. Raises EngineGone."""
    both: list[Tokens] = []
    for probe in BOUNDARY_PROBES:
        try:
            made = following(probe)
            if made is None:
                return ()
            prompt = await (_given(engine, made) if isinstance(made, str) else _rendered(engine, made))
        except (Unconvertible, EngineRefused):
            return ()
        both.append(prompt.ids)
    return both[0][: common_prefix(*both)]


async def _given(engine: ReadyEngine, prompt: Any) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(await engine.engine.text_tokens(prompt), prompt)
    few = isinstance(prompt, list) and 0 < len(prompt) < engine.limit
    return Prompt(tuple(prompt)) if few and all(type(token) is int for token in prompt) else UNKNOWN


async def _rendered(engine: ReadyEngine, chat: Json, *, large: bool = False) -> Prompt:
    body, pictures = await run_in_thread_if_large(large, _chat_and_pictures, chat)
    text, ids = await engine.engine.request_tokens(body, pictures)
    return Prompt(ids, text)


def _chat_and_pictures(chat: Json) -> tuple[Json, tuple[Picture, ...]]:
    """Split a chat request into text with placeholders and images. Raises Unconvertible."""
    pictures: list[Picture] = []
    messages = chat.get("messages")
    if not isinstance(messages, list):
        raise Unconvertible("no messages")
    bare = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            message = message | {"content": [_without_picture(part, pictures) for part in content]}
        bare.append(message)
    return (chat | {"messages": bare} if pictures else chat), tuple(pictures)


def _without_picture(part: Any, pictures: list[Picture]) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _HEARD:
        raise Unconvertible(f"{kind} in it")
    if kind != "image_url":
        return part
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    head, comma, data = str(url).partition(";base64,")
    if not comma or not head.startswith("data:"):
        raise Unconvertible("a picture that is elsewhere")
    try:
        pictures.append(Picture(base64.b64decode(data, validate=True)))
    except binascii.Error as error:
        raise Unconvertible("a picture that is none") from error
    return part | {"image_url": _PLACE}


class TooSlow(ConnectionError):
    """Client stopped reading."""


class ResponseStream:
    """A response being sent: head, then body. Its producer never waits."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._waiting = 0
        self.begun = False  # headers were sent and are final
        self.ended = False
        self.sent: Callable[[], None] = lambda: None  # called once the first byte is sent

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.begun = True
        encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        self._arrived.put_nowait({"type": "http.response.start", "status": status, "headers": encoded})

    def write(self, data: bytes) -> None:
        """Queue body bytes. Raises TooSlow."""
        self._waiting += len(data)
        if self._waiting > MOST_WAITING:
            raise TooSlow
        self._arrived.put_nowait({"type": "http.response.body", "body": data, "more_body": True})

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            if self.begun:
                self._arrived.put_nowait({"type": "http.response.body", "body": b""})
            self._arrived.put_nowait(None)

    def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.begin(status, dict(headers) | {"content-length": str(len(body))})
        self.write(body)
        self.end()

    async def deliver(self, receive: Receive, send: Send) -> None:
        async def left() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        sending, leaving = asyncio.ensure_future(self._send(send)), asyncio.ensure_future(left())
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        first = True
        while (message := await self._arrived.get()) is not None:
            try:
                async with asyncio.timeout(TAKEN_S):
                    await send(message)
            except (OSError, TimeoutError):  # client left
                return
            self._waiting -= len(message.get("body", b""))
            if first and message.get("body"):
                first = False
                self.sent()


class MustRestart(Exception):
    """The window needs this request's slot or context space; the request starts over later.

    Also raised if a request sent before tokenization does not continue its slot's contents.
    """


@dataclass(eq=False)
class PendingRequest:
    """One request, from admission until the state it left in a slot is saved."""

    path: str
    asked: ParsedRequest
    record: RequestRecord
    outlet: ResponseStream = field(default_factory=ResponseStream)
    prompt: Prompt = UNKNOWN
    rendered_by: int = 0  # generation of the engine that rendered it
    answered: bool = False  # fully generated; the end may not be sent yet
    left: bool = False  # no client waits for it
    task: asyncio.Task[None] | None = None
    answering: InterruptibleTask = field(default_factory=InterruptibleTask)

    async def render(self, engine: ReadyEngine) -> None:
        self.prompt, self.rendered_by = await prompt_of(engine, self.asked), engine.generation

    def leave(self) -> None:
        """Abort the answer: the client disconnected. After a finished answer, saving still continues."""
        if not (self.outlet.ended or self.answered):
            self.left = True
            self._end()

    def break_off(self) -> None:
        if not self.outlet.ended:
            self.left = True
            self.refuse(503, "The engine was stopped.", "unavailable_error")
            self._end()

    def refuse(self, status: int, message: str, kind: str, again_s: int = 0) -> None:
        """Send an error, or end a stream with one. `again_s`: seconds until a retry makes sense."""
        form, outlet = self.asked.form, self.outlet
        if not outlet.begun:
            self.record.status = status
            headers = {"content-type": "application/json"} | ({"retry-after": str(again_s)} if again_s else {})
            body = json.dumps(refusal(form, status, message, kind), ensure_ascii=False).encode()
            outlet.whole(status, headers, body)
        elif self.asked.stream and not outlet.ended:
            error = refusal(form, status, message, kind)
            if form is Form.RESPONSES:
                error = {"type": "error", "code": kind, "message": message, "param": None}
            name = "event: error\n" if form in (Form.MESSAGES, Form.RESPONSES) else ""
            outlet.write(f"{name}data: {json.dumps(error)}\n\n".encode())
        outlet.end()

    def _end(self) -> None:
        if not self.answering.interrupt() and self.task is not None:
            self.task.cancel()
