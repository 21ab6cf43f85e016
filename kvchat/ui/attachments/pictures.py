"""Pictures on their way to the model and onto the page: the only place that decodes them, and with bounds.

What is sent is drawn anew from what Qt has read: no file of a stranger's reaches the engine's own decoder.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import BinaryIO

from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QLoggingCategory, QSize, Qt
from PySide6.QtGui import QImage, QImageIOHandler, QImageReader, QPainter

from kvchat.chat.attachments import CannotAttach, picture_of
from kvchat.chat.record.messages import Attachment
from kvchat.words.language import _

# What decoders complain of in a stranger's picture is nothing to print; what cannot be decoded is told.
_STDERR, _silencing = 2, threading.Lock()
QLoggingCategory.setFilterRules("qt.gui.imageio*=false")

FORMATS = frozenset((b"png", b"jpeg", b"webp", b"gif", b"bmp"))
LONGEST_SIDE = 1536  # pixels; models look at no more than about that
MOST_MIB = 256  # that one picture may take in memory as it is decoded
_PNG_MOST = 1_000_000  # bytes; beyond it, it is sent as JPEG
_JPEG_QUALITY = 90


def prepared(name: str, data: bytes) -> Attachment:
    """A picture's file as it is sent: its first frame, upright and no larger than is of use. Raises CannotAttach.

    Of any thread.
    """
    image = decoded(data, QSize(LONGEST_SIDE, LONGEST_SIDE))
    if image is None:
        raise CannotAttach(
            name, _("The picture is damaged, too large, or of an unusual kind."), _("Save it as PNG first.")
        )
    return of_image(name, image)


def of_image(name: str, image: QImage) -> Attachment:
    """A picture out of no file, such as one from the clipboard. Raises CannotAttach."""
    if max(image.width(), image.height()) > LONGEST_SIDE:
        image = image.scaled(LONGEST_SIDE, LONGEST_SIDE, Qt.AspectRatioMode.KeepAspectRatio, _SMOOTH)
    data = _encoded(image, "PNG", -1)
    return picture_of(name, data if len(data) <= _PNG_MOST else _encoded(image, "JPEG", _JPEG_QUALITY))


def decoded(data: bytes, most: QSize) -> QImage | None:
    """A picture's first frame, upright, scaled down to `most`; None for what is none, or would take too much.

    Of any thread.
    """
    with _reader(data) as reader:
        size = reader.size()
        if not _is_taken(reader):
            return None
        if size.isValid() and max(size.width(), size.height()) > max(most.width(), most.height()):
            reader.setScaledSize(size.scaled(_as_it_lies(reader, most), Qt.AspectRatioMode.KeepAspectRatio))
        with _libpng_silent():
            image = reader.read()
        return None if image.isNull() else image


def shape(data: bytes) -> QSize | None:
    """Width and height of the upright picture, as its header tells them; None for what is none."""
    with _reader(data) as reader:
        size = reader.size()
        return _as_it_lies(reader, size) if _is_taken(reader) and size.isValid() and not size.isEmpty() else None


@contextlib.contextmanager
def _libpng_silent() -> Iterator[None]:
    """Keep libpng, which Qt does not ask to be silent, from printing; what others print meanwhile is printed after."""
    if not hasattr(os, "memfd_create"):  # elsewhere no window has a terminal
        yield
        return
    with _silencing, contextlib.ExitStack() as afterwards:
        with contextlib.suppress(OSError):  # nothing is printed anywhere
            terminal, heard = os.dup(_STDERR), os.fdopen(os.memfd_create("stderr"), "r+b", buffering=0)
            os.dup2(heard.fileno(), _STDERR)
            afterwards.callback(_print_again, terminal, heard)
        yield


def _print_again(terminal: int, heard: BinaryIO) -> None:
    os.dup2(terminal, _STDERR)
    os.close(terminal)
    with heard:
        heard.seek(0)
        for line in heard:
            if not line.startswith(b"libpng "):
                os.write(_STDERR, line)


@contextlib.contextmanager
def _reader(data: bytes) -> Iterator[QImageReader]:
    QImageReader.setAllocationLimit(MOST_MIB)
    held = QByteArray(data)
    buffer = QBuffer(held)
    buffer.open(QIODevice.OpenModeFlag.ReadOnly)
    reader = QImageReader(buffer)
    reader.setAutoTransform(True)
    yield reader


def _is_taken(reader: QImageReader) -> bool:
    return bytes(reader.format().data()) in FORMATS


def _as_it_lies(reader: QImageReader, size: QSize) -> QSize:
    """A size with its sides changed if the picture is to be turned by a quarter; and back again."""
    turned = reader.transformation() & QImageIOHandler.Transformation.TransformationRotate90
    return size.transposed() if turned else size


def _encoded(image: QImage, kind: str, quality: int) -> bytes:
    if kind == "JPEG" and image.hasAlphaChannel():  # what is transparent would be black
        opaque = QImage(image.size(), QImage.Format.Format_RGB32)
        opaque.fill(Qt.GlobalColor.white)
        painter = QPainter(opaque)
        painter.drawImage(0, 0, image)
        painter.end()
        image = opaque
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    image.save(buffer, kind, quality)  # type: ignore[call-overload]
    return bytes(buffer.data().data())


_SMOOTH = Qt.TransformationMode.SmoothTransformation
