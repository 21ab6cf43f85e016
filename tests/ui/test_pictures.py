"""Pictures made ready to be sent: bounded, upright, drawn anew; what is none is refused."""

from __future__ import annotations

import struct
from random import Random

import pytest
from PySide6.QtCore import QBuffer, QIODevice, QSize, Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QApplication

from kvchat.chat.pictures import CannotAttach, kind_of, pixels
from kvchat.ui.picture_tile import HEIGHT, WIDEST, thumbnail
from kvchat.ui.pictures import LONGEST_SIDE, decoded, of_image, prepared
from tests.pictures import png

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="file:///etc/passwd"/></svg>'
BOMB = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 60_000, 60_000, 8, 2, 0, 0, 0) + bytes(20)


def encoded(image: QImage, kind: str) -> bytes:
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    assert image.save(buffer, kind)  # type: ignore[call-overload]
    return bytes(buffer.data().data())


def test_the_same_picture_is_the_same_whatever_its_file_says_beside_it(qapp: QApplication) -> None:
    plain = prepared("a.png", png())
    with_more = prepared("b.png", png() + b"and whatever somebody has appended")
    assert plain.data == with_more.data
    assert kind_of(plain.data) == "PNG"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_every_kind_becomes_what_engines_read(qapp: QApplication, kind: str) -> None:
    image = QImage(50, 40, QImage.Format.Format_RGB32)
    image.fill(QColor("teal"))
    made = prepared("picture", encoded(image, kind))
    assert pixels(made.data) == (50, 40)


def test_a_large_picture_is_made_smaller_and_a_noisy_one_a_jpeg(qapp: QApplication) -> None:
    large = QImage(4000, 1000, QImage.Format.Format_ARGB32)
    large.fill(Qt.GlobalColor.transparent)
    assert pixels(prepared("wide.png", encoded(large, "PNG")).data) == (LONGEST_SIDE, 384)
    noise = QImage(Random(0).randbytes(2_400_000), 1000, 800, 3000, QImage.Format.Format_RGB888)
    assert kind_of(of_image("noise", noise).data) == "JPEG"


@pytest.mark.parametrize("data", [SVG, BOMB, png()[:60], b"", b"GIF89a"])
def test_what_is_no_picture_is_refused(qapp: QApplication, data: bytes) -> None:
    assert decoded(data, QSize(10, 10)) is None
    with pytest.raises(CannotAttach):
        prepared("x", data)


def test_a_thumbnail_keeps_its_shape_within_bounds(qapp: QApplication) -> None:
    wide, small = thumbnail(png(width=600, height=30), 2.0), thumbnail(png(width=30, height=60), 1.0)
    assert wide is not None
    assert small is not None
    assert wide.deviceIndependentSize().toSize().width() == WIDEST
    assert small.deviceIndependentSize().toSize() == QSize(HEIGHT // 2, HEIGHT)
    assert thumbnail(b"nothing", 1.0) is None
