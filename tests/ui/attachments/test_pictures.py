"""Pictures prepared for sending: within limits, upright, re-encoded; other files are refused."""

import struct
from dataclasses import replace
from random import Random

import pytest
from PySide6.QtCore import QBuffer, QIODevice, QSize, Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QApplication

from kvchat.chat.attachments import AttachmentError, picture_attachment
from kvchat.engine.api.pictures import image_format, image_size
from kvchat.ui.attachments.chips import PictureTile
from kvchat.ui.attachments.pictures import LONGEST_SIDE, decode, prepare_image, prepare_picture, upright_size
from kvchat.ui.base.theme import Look
from tests.pictures import png
from tests.ui.waiting import until

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="file:///etc/passwd"/></svg>'
BOMB = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 60_000, 60_000, 8, 2, 0, 0, 0) + bytes(20)


def encoded(image: QImage, kind: str) -> bytes:
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    assert image.save(buffer, kind)  # type: ignore[call-overload]
    return bytes(buffer.data().data())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_every_kind_becomes_what_engines_read(qapp: QApplication, kind: str) -> None:
    image = QImage(50, 40, QImage.Format.Format_RGB32)
    image.fill(QColor("teal"))
    made = prepare_picture("picture", encoded(image, kind))
    assert (image_format(made.data), image_size(made.data)) == ("PNG", (50, 40))
    assert made.data == prepare_picture("b", encoded(image, kind) + b"and whatever somebody has appended").data


def test_a_large_picture_is_made_smaller_and_a_noisy_one_a_jpeg(qapp: QApplication) -> None:
    large = QImage(4000, 1000, QImage.Format.Format_ARGB32)
    large.fill(Qt.GlobalColor.transparent)
    assert image_size(prepare_picture("wide.png", encoded(large, "PNG")).data) == (LONGEST_SIDE, 384)
    noise = QImage(Random(0).randbytes(2_400_000), 1000, 800, 3000, QImage.Format.Format_RGB888)
    assert image_format(prepare_image("noise", noise).data) == "JPEG"


@pytest.mark.parametrize("data", [SVG, BOMB, png()[:60], b"", b"GIF89a"])
def test_what_is_no_picture_is_refused(qapp: QApplication, data: bytes) -> None:
    assert decode(data, QSize(10, 10)) is None
    with pytest.raises(AttachmentError):
        prepare_picture("x", data)


async def test_a_tile_shows_the_picture_when_it_is_decoded(look: Look) -> None:
    tile = PictureTile(look, picture_attachment("red.png", png(width=40, height=20)), removable=True)
    assert tile.name.icon().isNull()
    await until(lambda: not tile.name.icon().isNull())
    assert tile.name.icon().pixmap(tile.name.iconSize()).toImage().pixelColor(5, 5) == QColor("red")
    damaged = PictureTile(look, replace(tile.attachment, data=png()[:50]), removable=False)
    await until(lambda: not damaged.name.icon().isNull())


def test_a_turned_photo_is_upright(qapp: QApplication) -> None:
    turned = encoded(QImage(40, 20, QImage.Format.Format_RGB32), "JPEG")
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"  # orientation 6: by a quarter
    photo = turned[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + turned[2:]
    assert upright_size(photo) == QSize(20, 40)
    assert image_size(prepare_picture("photo.jpg", photo).data) == (20, 40)
    small = decode(photo, QSize(10, 10))
    assert small is not None
    assert small.size() == QSize(5, 10)
