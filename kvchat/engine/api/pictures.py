"""Pictures in prompts: their placeholder ids, file types and sizes.

llama-server uses one placeholder for all tokens of all pictures and keeps the pictures in a separate list
(tools/server/server-common.cpp, `server_tokens`). In kvchat, each picture has ids of its own, derived from its bytes
and the projector, so equal ids in two prompts mean equal pictures. They are negative, unlike the ids of tokens.
"""

import base64
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from blake3 import blake3

from kvchat.engine.api.errors import EngineRefused
from kvchat.engine.api.tokenizer import Tokenize
from kvchat.engine.api.wire import ChatMessage, Picture, prompt_body
from kvchat.text.language import _

MAX_PIXELS = 40_000_000  # the engine decodes each pixel to three bytes
_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"BM": "BMP"}  # supported formats
FIRST_PICTURE_ID = -2  # −1 is llama-server's placeholder
CACHE_BYTES = 64_000_000  # of recent pictures, which are sent again when a turn's prompt is processed
_PLACEHOLDER = Picture(b"\x89PNG")  # stands for any picture when a template is rendered

PostJson = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]  # sends a body to a path


def pictures_unusable(reason: str) -> EngineRefused:
    return EngineRefused(200, _("Images cannot be used: {why}.", why=reason))


class PicturePrompts:
    """Converts prompts with pictures for one engine process. Methods raise EngineGone and EngineRefused."""

    def __init__(self, call: PostJson, tokenize: Tokenize, projector: str, marker: str) -> None:
        """`projector`: identity of the projector's file. `marker`: text that stands for a picture in a prompt."""
        self._call, self._tokenize, self._projector, self._marker = call, tokenize, projector, marker
        self._cache: dict[Picture, tuple[int, ...]] = {}  # ids of recent pictures, most recently used last

    async def tokens(self, prompt: str, pictures: Sequence[Picture]) -> tuple[int, ...]:
        texts = self._split_at_markers(prompt, len(pictures))
        ids = list(await self._tokenize(texts[0], True))
        for picture, text in zip(pictures, texts[1:], strict=True):
            ids += await self._ids(picture)
            ids += await self._tokenize(text, False) if text else ()
        return tuple(ids)

    async def completion_prompt(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Convert token and picture ids to a /completion prompt: a text with markers, and the pictures for them."""
        special = await self._tokenize("", True)
        text, data, is_first = "", list[str](), True
        for is_picture, group in groupby(tokens, lambda token: token <= FIRST_PICTURE_ID):
            run = tuple(group)
            if is_picture:
                pictures = []
                while run:
                    picture = next((cached for cached, ids in self._cache.items() if run[: len(ids)] == ids), None)
                    if picture is None:
                        raise pictures_unusable(_("an image is no longer available"))
                    pictures.append(picture)
                    run = run[len(self._cache[picture]) :]
                text += self._marker * len(pictures)
                data += [base64.b64encode(picture.data).decode() for picture in pictures]
            else:
                has_opening = is_first and bool(special) and run[: len(special)] == special
                answer = await self._call("/detokenize", {"tokens": run[len(special) :] if has_opening else run})
                if await self._tokenize(answer["content"], is_first) != run:
                    raise EngineRefused(200, _("A prompt with images can be split only between words."))
                text += answer["content"]
            is_first = False
        return {"prompt_string": text, "multimodal_data": data}

    def count_markers(self, prompt: str) -> int:
        return prompt.count(self._marker)

    def _split_at_markers(self, prompt: str, pictures: int) -> list[str]:
        texts = prompt.split(self._marker)
        if len(texts) != pictures + 1:
            raise pictures_unusable(_("the model’s chat template does not support images"))
        return texts

    async def _ids(self, picture: Picture) -> tuple[int, ...]:
        ids = self._cache.pop(picture, None) or await self._measure(picture)
        self._cache[picture] = ids
        while len(self._cache) > 1 and sum(len(cached.data) for cached in self._cache) > CACHE_BYTES:
            del self._cache[next(iter(self._cache))]
        return ids

    async def _measure(self, picture: Picture) -> tuple[int, ...]:
        alone = [ChatMessage("user", "", pictures=(picture,))]
        try:
            answer = await self._call("/v1/chat/completions/input_tokens", prompt_body(alone))
        except EngineRefused as refusal:
            if refusal.status in (404, 501):
                raise pictures_unusable(_("this engine cannot count image tokens; a newer one can")) from refusal
            raise
        rendered = await self._call("/apply-template", prompt_body(with_placeholder_pictures(alone)))
        first, second = self._split_at_markers(str(rendered.get("prompt")), 1)
        text_tokens = len(await self._tokenize(first, True)) + len(await self._tokenize(second, False))
        count = int(answer.get("input_tokens") or 0) - text_tokens
        if count <= 0:
            raise pictures_unusable(_("the engine does not report how many tokens an image takes"))
        return picture_ids(self._projector, picture, count)


def picture_ids(projector: str, picture: Picture, count: int) -> tuple[int, ...]:
    """Return `count` placeholder ids for a picture, all of them −2 or less, within 31 bits."""
    # The hash includes the count: the ids must not be a prefix of those for a build that makes more tokens.
    digest = blake3(f"{projector}\0{count}\0".encode() + picture.data).digest(length=4 * count)
    ids: list[int] = (FIRST_PICTURE_ID - (np.frombuffer(digest, "<i4") & 0x3FFFFFFF)).tolist()
    return tuple(ids)


def with_placeholder_pictures(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    return [replace(message, pictures=(_PLACEHOLDER,) * len(message.pictures)) for message in messages]


UNSEEN_PICTURES = "[{count} images were shown to the user. You cannot see them.]"  # for the model


def without_pictures(message: ChatMessage) -> ChatMessage:
    """Return a tool's result with a sentence in place of its pictures."""
    if not message.pictures:
        return message
    note = UNSEEN_PICTURES.format(count=len(message.pictures))
    return replace(message, content="\n\n".join(filter(None, (message.content, note))), pictures=())


def image_format(data: bytes) -> str | None:
    """Return "PNG", "JPEG", "GIF" or "BMP"; None for any other data, which engines cannot read."""
    kind = next((kind for signature, kind in _SIGNATURES.items() if data.startswith(signature)), None)
    return None if kind == "BMP" and data[6:10] != bytes(4) else kind  # text can start with BM


def image_size(data: bytes) -> tuple[int, int]:
    """Return the width and height in the file's header, or (0, 0) if they cannot be read."""
    try:
        match image_format(data):
            case "PNG":
                return struct.unpack_from(">II", data, 16)
            case "GIF":
                return struct.unpack_from("<HH", data, 6)
            case "BMP":
                width, height = struct.unpack_from("<ii", data, 18)
                return abs(width), abs(height)
            case "JPEG":
                return _jpeg_size(data)
    except (struct.error, IndexError):
        pass
    return 0, 0


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Return the size in the frame header, after skipping the segments before it (ITU-T T.81, B.1.1)."""
    at = 2
    while True:
        while data[at] != 0xFF:
            at += 1
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 4)
            return width, height
        at += 1 if 0xD0 <= marker <= 0xD9 else 1 + struct.unpack_from(">H", data, at + 1)[0]
