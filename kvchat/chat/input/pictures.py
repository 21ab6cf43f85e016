"""Pictures that go with a message: what is taken, within bounds. Nothing is decoded here."""

from __future__ import annotations

import struct

from blake3 import blake3

from kvchat.chat.record.messages import Attachment
from kvchat.errors import KvchatError
from kvchat.words.language import _, number
from kvchat.words.wording import size as size_in_words

MOST_BYTES = 10_000_000
MOST_PIXELS = 40_000_000  # decoded it takes three bytes for each, in the engine
TOKENS_GUESSED = 1000  # for one picture, until the model has counted it: it takes 256 to 3,000
_LOOKS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"BM": "BMP"}  # what engines read
_OTHERS = (b"II*\0", b"MM\0*")  # TIFF


class CannotAttach(KvchatError):
    """A file that cannot be given to the model."""

    def __init__(self, name: str, why: str, advice: str) -> None:
        super().__init__(_("“{name}” cannot be attached", name=name), why, advice)


def is_picture(data: bytes) -> bool:
    """Whether a file begins as pictures do."""
    return kind_of(data) is not None or data.startswith(_OTHERS) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")


def kind_of(data: bytes) -> str | None:
    """PNG, JPEG, GIF or BMP; None for what engines do not read."""
    kind = next((kind for look, kind in _LOOKS.items() if data.startswith(look)), None)
    return None if kind == "BMP" and data[6:10] != bytes(4) else kind  # words may begin so, too


def picture_of(name: str, data: bytes) -> Attachment:
    """A picture as it is in its file. Raises CannotAttach."""
    if kind_of(data) is None:
        raise CannotAttach(
            name, _("Models are shown PNG, JPEG, GIF and BMP."), _("Save the picture as PNG, and attach that.")
        )
    advice = _("Make it smaller, and attach that.")
    if len(data) > MOST_BYTES:
        words = _(
            "It has {count}; {most_bytes} is the most.",
            count=size_in_words(len(data)),
            most_bytes=size_in_words(MOST_BYTES),
        )
        raise CannotAttach(name, words, advice)
    width, height = pixels(data)
    if not 0 < width * height <= MOST_PIXELS:
        words = (
            _("It has {width} × {height} pixels.", width=number(width), height=number(height))
            if width * height
            else _("It is damaged.")
        )
        raise CannotAttach(name, words, advice if width * height else _("Save it anew, and attach that."))
    return Attachment(name, len(data), blake3(data).hexdigest(), "", data)


def pixels(data: bytes) -> tuple[int, int]:
    """Width and height as the file's header tells them; 0, 0 where it tells none."""
    try:
        match kind_of(data):
            case "PNG":
                return struct.unpack_from(">II", data, 16)
            case "GIF":
                return struct.unpack_from("<HH", data, 6)
            case "BMP":
                width, height = struct.unpack_from("<ii", data, 18)
                return abs(width), abs(height)
            case "JPEG":
                return _jpeg_pixels(data)
    except (struct.error, IndexError):
        pass
    return 0, 0


def _jpeg_pixels(data: bytes) -> tuple[int, int]:
    """From the frame header, which the segments before it lead to (ITU-T T.81, B.1.1)."""
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
