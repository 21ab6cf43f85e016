"""Documents and pictures attached to a message, read within limits, off the event loop.

**Documents** are stored as text with their message and precede its text in the prompt, so that other questions
about them share the prefix. Those that cannot fit are refused before anything is stored. **Pictures** are stored as
files and sent as `data:` URLs; only the window decodes them (`ui/attachments/pictures.py`). The projector
(`--mmproj`) is loaded when a conversation with pictures is answered. It does not change the states of text, so it
is not in the fingerprint. In a prompt, a picture is as many ids below −1 as it has tokens
(`engine/api/pictures.py`).
"""

import io
import logging
import os
import time
from pathlib import Path

from blake3 import blake3

from kvchat.chat.record.messages import Attachment
from kvchat.engine.api.pictures import MAX_PIXELS, image_format, image_size
from kvchat.errors import KvchatError
from kvchat.system.files import NotAFile, TooLarge, read_regular_file
from kvchat.text.formatting import format_size
from kvchat.text.language import _, format_number

MAX_FILE_BYTES = 64_000_000
PDF_TIMEOUT_S = 60.0
_SNIFF_BYTES = 16_384  # bytes checked to tell text from binary
_OFFICE_SUFFIXES = frozenset((".docx", ".xlsx", ".pptx", ".odt", ".ods", ".odp", ".doc", ".xls", ".ppt", ".epub"))
MAX_PICTURE_BYTES = 10_000_000
ESTIMATED_PICTURE_TOKENS = 1000  # per picture, until the model counts it: 256 to 3,000
_TIFF_SIGNATURES = (b"II*\0", b"MM\0*")


logging.getLogger("pypdf").addHandler(logging.NullHandler())  # pypdf would print warnings


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


def document_from_bytes(name: str, data: bytes) -> Attachment:
    if data[:1024].lstrip().startswith(b"%PDF-"):
        return _document_attachment(name, data, _extract_pdf_text(name, data))
    if Path(name).suffix.lower() in _OFFICE_SUFFIXES:
        raise AttachmentError(
            name, _("kvchat supports text and PDF files."), _("Save it as a PDF or text file, then attach that file.")
        )
    return _document_attachment(name, data, _decode(name, data))


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
    advice = _("Attach a text, code, Markdown, CSV or PDF file.")
    raise AttachmentError(name, _("It contains no text that kvchat can read."), advice)


def _extract_pdf_text(name: str, data: bytes) -> str:
    from pypdf import PdfReader  # takes a third of a second to import

    deadline = time.monotonic() + PDF_TIMEOUT_S
    pages: list[str] = []
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            reason, advice = _("It is password-protected."), _("Save it without a password, then attach it.")
            raise AttachmentError(name, reason, advice)
        for page in reader.pages:
            if time.monotonic() > deadline:
                raise AttachmentError(name, _("Extracting its text takes too long."), _("Attach fewer pages."))
            pages.append(page.extract_text().strip())
    except KvchatError:
        raise
    except Exception as error:  # a damaged PDF can raise anything
        reason = _("The PDF is damaged or not supported ({name}).", name=type(error).__name__)
        raise AttachmentError(name, reason, _("Save it again with another app, or attach its text.")) from error
    if not any(pages):
        advice = _("Run text recognition (OCR) on it first.")
        raise AttachmentError(name, _("Its pages are images without text."), advice)
    return "\n\n".join(pages)
