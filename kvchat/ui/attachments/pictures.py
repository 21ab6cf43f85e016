"""Decoding of pictures and screenshots, with size limits. Pictures are decoded only in this module.

A picture to be sent is encoded again after decoding, so that no untrusted file reaches the engine's decoder.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator

from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QLoggingCategory, QPoint, QRect, QSize, Qt, QUrl, Signal
from PySide6.QtGui import (
    QCloseEvent,
    QColor,
    QImage,
    QImageIOHandler,
    QImageReader,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPixmap,
    QScreen,
)
from PySide6.QtWidgets import QWidget

from kvchat.chat.attachments import AttachmentError, picture_attachment
from kvchat.chat.record.messages import Attachment
from kvchat.errors import KvchatError
from kvchat.system.session_bus import BusUnavailable, SessionBus
from kvchat.text.language import _
from kvchat.ui.base.accessibility import announce
from kvchat.ui.base.building import label
from kvchat.ui.desktop.activation import on_wayland
from kvchat.ui.desktop.global_key import PortalDeclined, request

# Decoder warnings about untrusted pictures are not printed; decoding failures are reported.
QLoggingCategory.setFilterRules("qt.gui.imageio*=false")

FORMATS = frozenset((b"png", b"jpeg", b"webp", b"gif", b"bmp"))
LONGEST_SIDE = 1536  # pixels; models use about this much at most
MAX_MIB = 256  # memory limit for decoding one picture
_MAX_PNG_BYTES = 1_000_000  # bytes; above this, sent as JPEG
_JPEG_QUALITY = 90
_KEEP_RATIO, _SMOOTH = Qt.AspectRatioMode.KeepAspectRatio, Qt.TransformationMode.SmoothTransformation

_REDRAW_S = 0.3  # for the desktop to redraw behind the window
_DIALOG_S = 120.0  # time limit for the desktop's dialog; then the window is shown again
_MIN_DRAG = 4  # pixels; a shorter drag is a click
_STEP = 10  # pixels by which an arrow key moves or resizes the region
_SHADE = QColor(0, 0, 0, 110)
_ARROWS = {Qt.Key.Key_Left: (-1, 0), Qt.Key.Key_Right: (1, 0), Qt.Key.Key_Up: (0, -1), Qt.Key.Key_Down: (0, 1)}


def prepare_picture(name: str, data: bytes) -> Attachment:
    """Convert an image file to an attachment: its first frame, upright. Thread-safe. Raises AttachmentError."""
    image = decode(data, QSize(LONGEST_SIDE, LONGEST_SIDE))
    if image is None:
        reason = _("The image is damaged, too large or in an unsupported format.")
        raise AttachmentError(name, reason, _("Save it as a PNG file first."))
    return prepare_image(name, image)


def prepare_image(name: str, image: QImage) -> Attachment:
    """Convert an image without a file, such as one from the clipboard, to an attachment. Raises AttachmentError."""
    if max(image.width(), image.height()) > LONGEST_SIDE:
        image = image.scaled(LONGEST_SIDE, LONGEST_SIDE, _KEEP_RATIO, _SMOOTH)
    data = _encoded(image, "PNG", -1)
    if len(data) > _MAX_PNG_BYTES:
        opaque = QImage(image.size(), QImage.Format.Format_RGB32)
        opaque.fill(Qt.GlobalColor.white)  # JPEG would turn transparency black
        with QPainter(opaque) as painter:
            painter.drawImage(0, 0, image)
        data = _encoded(opaque, "JPEG", _JPEG_QUALITY)
    return picture_attachment(name, data)


def decode(data: bytes, limit: QSize) -> QImage | None:
    """Return the first frame, upright and scaled down to `limit`; None if it is no image or too large. Thread-safe."""
    with _reader(data) as reader:
        if reader is None:
            return None
        size = reader.size()
        if size.isValid() and max(size.width(), size.height()) > max(limit.width(), limit.height()):
            reader.setScaledSize(size.scaled(_rotated(reader, limit), _KEEP_RATIO))
        image = reader.read()
        return None if image.isNull() else image


def upright_size(data: bytes) -> QSize | None:
    """Return the size of the upright image as stated in its header, or None if `data` is not an image."""
    with _reader(data) as reader:
        return None if reader is None or reader.size().isEmpty() else _rotated(reader, reader.size())


@contextlib.contextmanager
def _reader(data: bytes) -> Iterator[QImageReader | None]:
    QImageReader.setAllocationLimit(MAX_MIB)
    buffer = QBuffer()  # must outlive the reader
    buffer.setData(QByteArray(data))
    buffer.open(QIODevice.OpenModeFlag.ReadOnly)
    reader = QImageReader(buffer)
    reader.setAutoTransform(True)
    yield reader if bytes(reader.format().data()) in FORMATS else None


def _rotated(reader: QImageReader, size: QSize) -> QSize:
    """Swap width and height if the file says that the image must be rotated by 90°."""
    is_rotated = reader.transformation() & QImageIOHandler.Transformation.TransformationRotate90
    return size.transposed() if is_rotated else size


def _encoded(image: QImage, kind: str, quality: int) -> bytes:
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    image.save(buffer, kind, quality)  # type: ignore[call-overload]
    return bytes(buffer.data().data())


class NoScreenshot(KvchatError):
    def __init__(self) -> None:
        super().__init__(
            _("The screenshot could not be taken"),
            _("Your desktop does not let apps take screenshots."),
            _("Take one with your desktop’s own shortcut and paste it here."),
        )


async def take_screenshot(window: QWidget) -> QImage | None:
    """Hide `window` and let the user select an area. Return None if canceled. Raises NoScreenshot."""
    screen = window.screen()
    window.hide()
    try:
        await asyncio.sleep(_REDRAW_S)
        is_wayland = on_wayland() or os.environ.get("XDG_SESSION_TYPE") == "wayland"
        return await (_capture_via_portal() if is_wayland else _capture_with_picker(screen))
    finally:
        window.show()
        window.raise_()
        window.activateWindow()


async def _capture_via_portal() -> QImage | None:
    """Take a screenshot through the desktop's portal. Return None if the user cancels it.

    https://flatpak.github.io/xdg-desktop-portal/docs/doc-org.freedesktop.portal.Screenshot.html
    """
    bus = SessionBus()
    options = {"interactive": ("b", True)}
    try:
        async with asyncio.timeout(_DIALOG_S):
            results = await request(bus, "Screenshot", "Screenshot", "sa{sv}", ("",), options)
    except (PortalDeclined, TimeoutError):
        return None
    except BusUnavailable as error:
        raise NoScreenshot from error
    finally:
        await bus.close()
    path = QUrl(str(results.get("uri", ("s", ""))[1])).toLocalFile()
    image = await asyncio.to_thread(QImage, path)
    if image.isNull():
        raise NoScreenshot
    return image


async def _capture_with_picker(screen: QScreen) -> QImage | None:
    whole = screen.grabWindow(0)
    if whole.isNull():
        raise NoScreenshot
    picker, finished = RegionPicker(whole), asyncio.Event()
    picker.finished.connect(finished.set)
    try:
        picker.show_on(screen)
        await finished.wait()
        region = picker.region
    finally:
        picker.close()
        picker.deleteLater()
    if region.isEmpty():
        return None
    ratio = whole.devicePixelRatio()
    return whole.copy(QRect(region.topLeft() * ratio, region.size() * ratio)).toImage()


class RegionPicker(QWidget):
    finished = Signal()  # `region` is chosen, or empty if canceled

    def __init__(self, picture: QPixmap) -> None:
        super().__init__(None, Qt.WindowType.FramelessWindowHint | Qt.WindowType.WindowStaysOnTopHint)
        self.setAccessibleName(_("Choose a region for the screenshot"))
        self.setCursor(Qt.CursorShape.CrossCursor)
        self._picture = picture
        self._pressed_at: QPoint | None = None  # by the mouse
        self.region = QRect()  # in screen coordinates
        keys = _("Press Enter to capture the region, or the whole screen if you chose none. Press Esc to cancel.")
        self._hint = label(_("Drag to choose a region, or use the arrow keys (with Shift to resize).") + "\n" + keys)
        self._hint.setParent(self)
        self._hint.setStyleSheet("background: rgba(0, 0, 0, 200); color: white; padding: 10px 16px; border-radius: 8px")

    def show_on(self, screen: QScreen) -> None:
        self.setGeometry(screen.geometry())
        self.showFullScreen()
        self.activateWindow()
        self.setFocus()
        self._hint.adjustSize()
        self._hint.move((self.width() - self._hint.width()) // 2, 24)
        announce(self, self._hint.text())

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            painter.drawPixmap(self.rect(), self._picture)
            painter.fillRect(self.rect(), _SHADE)
            if not self.region.isEmpty():
                ratio = self._picture.devicePixelRatio()
                source = QRect(self.region.topLeft() * ratio, self.region.size() * ratio)
                painter.drawPixmap(self.region, self._picture, source)
                painter.setPen(QPen(Qt.GlobalColor.white, 2))
                painter.drawRect(self.region)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._pressed_at = event.position().toPoint()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if (start := self._pressed_at) is not None:
            self._set(QRect(start, QSize(*(event.position().toPoint() - start).toTuple())).normalized())

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._pressed_at = None
        if min(self.region.width(), self.region.height()) >= _MIN_DRAG:
            self.finished.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        arrow = _ARROWS.get(Qt.Key(event.key()))
        if event.key() == Qt.Key.Key_Escape:
            self.close()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.region = self.rect() if self.region.isEmpty() else self.region
            self.finished.emit()
        elif arrow is None:
            super().keyPressEvent(event)
        elif self.region.isEmpty():
            self._set(QRect(self.rect().center() - QPoint(*(self.size() / 4).toTuple()), self.size() / 2))
        elif event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            size = self.region.size() + QSize(*arrow) * _STEP
            self._set(QRect(self.region.topLeft(), size.expandedTo(QSize(_STEP, _STEP))))
        else:
            self._set(self.region.translated(QPoint(*arrow) * _STEP))

    def closeEvent(self, event: QCloseEvent) -> None:
        super().closeEvent(event)
        self.region = QRect()  # canceled
        self.finished.emit()

    def _set(self, region: QRect) -> None:
        self.region = region.intersected(self.rect())
        self.update()
