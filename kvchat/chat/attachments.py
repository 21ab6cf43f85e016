"""Documents and pictures attached to a message, read within limits, off the event loop.

**Documents** are stored as text with their message and precede its text in the prompt, so that other questions
about them share the prefix. Those that cannot fit are refused before anything is stored. **Pictures** are stored as
files and sent as `data:` URLs, also those that tools return; only the window decodes them
(`ui/attachments/pictures.py`). The projector
(`--mmproj`) is loaded when a conversation with pictures is answered. It does not change the states of text, so it
is not in the fingerprint. In a prompt, a picture is as many ids below −1 as it has tokens
(`engine/api/pictures.py`).
"""

import os
from pathlib import Path

from blake3 import blake3

from kvchat.chat.extraction import (
    EXIT_PASSWORD,
    EXIT_TOO_LONG,
    OFFICE_FORMATS,
    ExtractionFailed,
    extract_text,
)
from kvchat.chat.record.messages import Attachment
from kvchat.engine.api.pictures import MAX_PIXELS, image_format, image_size
from kvchat.errors import KvchatError
from kvchat.system.files import NotAFile, TooLarge, read_regular_file
from kvchat.system.parent_guard import no_window_flags
from kvchat.text.formatting import format_size
from kvchat.text.language import _, format_number

MAX_FILE_BYTES = 64_000_000
LONG_PAGE_BYTES = 20_000  # HTML: of a longer page, only the text is read
_SNIFF_BYTES = 16_384  # bytes checked to tell text from binary
_UNREADABLE_SUFFIXES = frozenset((".odt", ".ods", ".odp"))
MAX_PICTURE_BYTES = 10_000_000
ESTIMATED_PICTURE_TOKENS = 1000  # per picture, until the model counts it: 256 to 3,000
_TIFF_SIGNATURES = (b"II*\0", b"MM\0*")


class AttachmentError(KvchatError):
    def __init__(self, name: str, reason: str, advice: str) -> None:
        super().__init__(_("“{name}” cannot be attached", name=name), reason, advice)


def is_picture(data: bytes) -> bool:
    return (
        image_format(data) is not None
        or data.startswith(_TIFF_SIGNATURES)
        or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")
    )


def picture_attachment(name: str, data: bytes) -> Attachment:
    if image_format(data) is None:
        advice = _("Convert the image to PNG, then attach it.")
        raise AttachmentError(name, _("Supported image formats are PNG, JPEG, GIF and BMP."), advice)
    width, height = image_size(data)
    if not width * height:
        raise AttachmentError(name, _("It is damaged."), _("Save it again with another app, then attach it."))
    advice = _("Attach a smaller version.")
    if len(data) > MAX_PICTURE_BYTES:
        count, most = format_size(len(data)), format_size(MAX_PICTURE_BYTES)
        raise AttachmentError(
            name, _("It is {count}; the limit is {most_bytes}.", count=count, most_bytes=most), advice
        )
    if not 0 < width * height <= MAX_PIXELS:
        reason = _("It has {width} × {height} pixels.", width=format_number(width), height=format_number(height))
        raise AttachmentError(name, reason, advice)
    return Attachment(name, len(data), blake3(data).hexdigest(), "", data)


def read_attachment(path: Path) -> Attachment:
    data = read_bytes(path)
    name = os.fsencode(path.name).decode("utf-8", "replace")  # invalid text cannot be stored
    return picture_attachment(name, data) if is_picture(data) else document_from_bytes(name, data)


def read_bytes(path: Path) -> bytes:
    try:
        return read_regular_file(path, MAX_FILE_BYTES)
    except OSError as error:
        advice = _("Check the permissions of the file.")
        if isinstance(error, NotAFile):
            advice = _("Attach one or more files instead.")
        elif isinstance(error, TooLarge):
            advice = _("Attach only the relevant part.")
        raise AttachmentError(path.name, f"{error.strerror or error}.", advice) from error


def document_from_bytes(name: str, data: bytes, format: str | None = None) -> Attachment:
    if (format := format or document_format(name, data)) is not None:
        return _document_attachment(name, data, _extract_text(name, data, format))
    if Path(name).suffix.lower() in _UNREADABLE_SUFFIXES:
        reason = _("kvchat cannot read this format.")
        raise AttachmentError(name, reason, _("Save it as a PDF or text file, then attach that file."))
    return _document_attachment(name, data, _decode(name, data))


def document_format(name: str, data: bytes) -> str | None:
    """Return the format whose text must be extracted, or None for plain text. Short HTML stays as it is: code."""
    if data[:1024].lstrip().startswith(b"%PDF-"):
        return "pdf"
    suffix = Path(name).suffix.lower().removeprefix(".")
    if suffix in ("html", "htm", "xhtml"):
        return "html" if len(data) > LONG_PAGE_BYTES else None
    return suffix if suffix in (*OFFICE_FORMATS, "epub") else None


def document_from_text(name: str, text: str) -> Attachment:
    return _document_attachment(name, text.encode(), text)


def _document_attachment(name: str, data: bytes, text: str) -> Attachment:
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").encode("utf-8", "replace").decode()
    if not text.strip():
        raise AttachmentError(name, _("It contains no text."), _("Attach a file that contains text."))
    return Attachment(name, len(data), blake3(data).hexdigest(), text)


def _decode(name: str, data: bytes) -> str:
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    if b"\0" not in data[:_SNIFF_BYTES]:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            from charset_normalizer import from_bytes

            best = from_bytes(data).best()
            if best is not None:
                return str(best)
    advice = _("Attach a text, code, PDF, Office, EPUB or HTML file.")
    raise AttachmentError(name, _("It contains no text that kvchat can read."), advice)


def _extract_text(name: str, data: bytes, format: str) -> str:
    try:
        text = extract_text(data, format, creation_flags=no_window_flags())
    except OSError as error:
        reason = _("The text extraction could not start: {error}.", error=error.strerror or str(error))
        raise AttachmentError(name, reason, _("Try again, or attach its text.")) from error
    except ExtractionFailed as error:
        reason, advice = _failure_texts(error, format)
        raise AttachmentError(name, reason, advice) from error
    if format == "pdf" and not text.strip():
        advice = _("Run text recognition (OCR) on it first.")
        raise AttachmentError(name, _("Its pages are images without text."), advice)
    return text


def _failure_texts(error: ExtractionFailed, format: str) -> tuple[str, str]:
    if error.code is None:
        return _("Extracting its text takes too long."), _("Attach only the relevant part.")
    if error.code == EXIT_PASSWORD:
        return _("It is password-protected."), _("Save it without a password, then attach it.")
    if error.code == EXIT_TOO_LONG:
        return _("It contains too much text."), _("Attach only the relevant part.")
    reason = _("The file is damaged or not supported ({name}).", name=error.detail or format.upper())
    return reason, _("Save it again with another app, or attach its text.")
