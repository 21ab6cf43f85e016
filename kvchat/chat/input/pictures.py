"""Pictures that go with a message: what is taken, within bounds. Nothing is decoded here."""

from __future__ import annotations

from blake3 import blake3

from kvchat.chat.record.messages import Attachment
from kvchat.engine.speaking.pictures import MOST_PIXELS, kind_of, pixels
from kvchat.errors import KvchatError
from kvchat.words.language import _, number
from kvchat.words.wording import size as size_in_words

MOST_BYTES = 10_000_000
TOKENS_GUESSED = 1000  # for one picture, until the model has counted it: it takes 256 to 3,000
_OTHERS = (b"II*\0", b"MM\0*")  # TIFF


class CannotAttach(KvchatError):
    """A file that cannot be given to the model."""

    def __init__(self, name: str, why: str, advice: str) -> None:
        super().__init__(_("“{name}” cannot be attached", name=name), why, advice)


def is_picture(data: bytes) -> bool:
    """Whether a file begins as pictures do."""
    return kind_of(data) is not None or data.startswith(_OTHERS) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")


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
