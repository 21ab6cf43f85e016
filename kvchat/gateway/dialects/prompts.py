"""Token ids of a request's prompt, as the engine will make them, and of what may follow its reply."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvchat.engine.speaking.errors import EngineRefused
from kvchat.engine.speaking.wire import Picture
from kvchat.gateway.dialects.asked import Asked, Form
from kvchat.gateway.dialects.conversion import Json, Unconvertible
from kvchat.kvstore.savepoint import Tokens, common_prefix
from kvchat.session.host import ReadyEngine
from kvchat.session.lease import BOUNDARY_PROBES
from kvchat.system.concurrency import apart

_PLACE = {"url": "data:image/png;base64,iVBORw=="}  # templates render without reading the image
_HEARD = ("input_audio", "input_video", "file")  # their tokens are unknown


@dataclass(frozen=True)
class Prompt:
    ids: Tokens
    text: str = ""  # empty if given as token ids


UNKNOWN = Prompt(())


def pictures_in(asked: Asked) -> tuple[Picture, ...]:
    """Return a request's images. Raises Unconvertible for one given by reference."""
    return _chat_and_pictures(asked.chat())[1] if asked.form not in (Form.COMPLETION, Form.PLAIN) else ()


async def prompt_of(engine: ReadyEngine, asked: Asked) -> Prompt:
    """Return a request's prompt, UNKNOWN if only the engine can make it or it refuses. Raises EngineGone."""
    try:
        if asked.form is Form.COMPLETION:
            prompt = await _given(engine, asked.body.get("prompt"))
        else:
            prompt = await _rendered(engine, asked.chat(), large=asked.is_large)
    except (Unconvertible, EngineRefused):
        return UNKNOWN
    return prompt if len(prompt.ids) < engine.limit else UNKNOWN  # the engine refuses longer prompts


async def head_of(engine: ReadyEngine, asked: Asked) -> Tokens:
    """Return the tokens shared by all conversations with this system prompt and tools. Raises EngineGone."""
    return await _shared(engine, asked.begun_otherwise)


async def boundary_after(engine: ReadyEngine, asked: Asked, reply: Json) -> Tokens:
    """Return the tokens shared by all prompts that continue after this reply. Raises EngineGone."""
    return await _shared(engine, lambda words: asked.followed_by(reply, words))


async def _shared(engine: ReadyEngine, following: Callable[[str], Json | str | None]) -> Tokens:
    """Return the common prefix of two prompts made with different probes; empty if there is none."""
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
    body, pictures = await apart(large, _chat_and_pictures, chat)
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
