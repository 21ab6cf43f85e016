"""Screenshots: the user chooses a part of the screen, in the desktop's own dialog on Wayland and here elsewhere."""

from __future__ import annotations

import asyncio
import os

from PySide6.QtCore import QPoint, QRect, QSize, Qt, QUrl, Signal
from PySide6.QtGui import (
    QCloseEvent,
    QColor,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPixmap,
    QScreen,
)
from PySide6.QtWidgets import QWidget

from kvchat.errors import KvchatError
from kvchat.system.session_bus import NoAnswer, SessionBus
from kvchat.ui.base.building import label
from kvchat.ui.base.speaking import announce
from kvchat.ui.desktop.activation import on_wayland
from kvchat.ui.desktop.portal import Declined, request
from kvchat.words.language import _

_REDRAW_S = 0.3  # until the desktop has drawn what was behind the window
_PATIENCE_S = 120.0  # for the desktop's dialog; then the window comes back in any case
_LEAST = 4  # pixels; a shorter drag is a click
_STEP = 10  # pixels by which an arrow key moves or resizes the region
_SHADE = QColor(0, 0, 0, 110)
_ARROWS = {
    Qt.Key.Key_Left: QPoint(-_STEP, 0),
    Qt.Key.Key_Right: QPoint(_STEP, 0),
    Qt.Key.Key_Up: QPoint(0, -_STEP),
    Qt.Key.Key_Down: QPoint(0, _STEP),
}


class NoScreenshot(KvchatError):
    """The desktop gives applications no picture of the screen."""

    def __init__(self) -> None:
        super().__init__(
            _("The screenshot could not be taken"),
            _("Your desktop does not let applications take screenshots."),
            _("Take one with your desktop’s own key, and paste it here."),
        )


async def take_screenshot(window: QWidget) -> QImage | None:
    """Let the user choose what to take, with `window` out of the way; None if nothing. Raises NoScreenshot."""
    screen = window.screen()
    window.hide()
    try:
        await asyncio.sleep(_REDRAW_S)
        if on_wayland() or os.environ.get("XDG_SESSION_TYPE") == "wayland":
            return await _by_desktop()
        return await _by_picker(screen)
    finally:
        window.show()
        window.raise_()
        window.activateWindow()


async def _by_desktop() -> QImage | None:
    """https://flatpak.github.io/xdg-desktop-portal/docs/doc-org.freedesktop.portal.Screenshot.html"""
    bus = SessionBus()
    options = {"interactive": ("b", True)}
    try:
        async with asyncio.timeout(_PATIENCE_S):
            results = await request(bus, "Screenshot", "Screenshot", "sa{sv}", ("",), options)
    except (Declined, TimeoutError):
        return None
    except NoAnswer as error:
        raise NoScreenshot from error
    finally:
        await bus.close()
    path = QUrl(str(results.get("uri", ("s", ""))[1])).toLocalFile()
    image = await asyncio.to_thread(QImage, path)
    if image.isNull():
        raise NoScreenshot
    return image


async def _by_picker(screen: QScreen) -> QImage | None:
    whole = screen.grabWindow(0)
    if whole.isNull():
        raise NoScreenshot
    picker, over = RegionPicker(whole), asyncio.Event()
    picker.chosen.connect(over.set)
    try:
        picker.show_on(screen)
        await over.wait()
        region = picker.region
    finally:
        picker.close()
        picker.deleteLater()
    if region.isEmpty():
        return None
    ratio = whole.devicePixelRatio()
    return whole.copy(QRect(region.topLeft() * ratio, region.size() * ratio)).toImage()


class RegionPicker(QWidget):
    """Covers a screen with its picture and lets a part of it be chosen, by mouse or keys."""

    chosen = Signal()  # the `region`, which is empty if the user gave up

    def __init__(self, picture: QPixmap) -> None:
        super().__init__(None, Qt.WindowType.FramelessWindowHint | Qt.WindowType.WindowStaysOnTopHint)
        self.setAccessibleName(_("Choose what to take a screenshot of"))
        self.setCursor(Qt.CursorShape.CrossCursor)
        self._picture = picture
        self._begun: QPoint | None = None  # where the mouse was pressed
        self.region = QRect()  # in the coordinates of the screen
        keys = _("Enter takes it, or all of the screen. Esc cancels.")
        self._hint = label(_("Drag to choose a region, or use the arrow keys, with Shift to resize.") + "\n" + keys)
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
        painter = QPainter(self)
        painter.drawPixmap(self.rect(), self._picture)
        painter.fillRect(self.rect(), _SHADE)
        if not self.region.isEmpty():
            ratio = self._picture.devicePixelRatio()
            there = QRect(self.region.topLeft() * ratio, self.region.size() * ratio)
            painter.drawPixmap(self.region, self._picture, there)
            painter.setPen(QPen(Qt.GlobalColor.white, 2))
            painter.drawRect(self.region)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._begun = event.position().toPoint()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._begun is not None:
            drawn = QRect(self._begun, QSize(*(event.position().toPoint() - self._begun).toTuple()))
            self._set(drawn.normalized())

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._begun = None
        if min(self.region.width(), self.region.height()) >= _LEAST:
            self.chosen.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        by = _ARROWS.get(Qt.Key(event.key()))
        if event.key() == Qt.Key.Key_Escape:
            self.close()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.region = self.rect() if self.region.isEmpty() else self.region
            self.chosen.emit()
        elif by is None:
            super().keyPressEvent(event)
        elif self.region.isEmpty():
            self._set(QRect(self.rect().center() - QPoint(*(self.size() / 4).toTuple()), self.size() / 2))
        elif event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            size = self.region.size() + QSize(by.x(), by.y())
            self._set(QRect(self.region.topLeft(), size.expandedTo(QSize(_STEP, _STEP))))
        else:
            self._set(self.region.translated(by))

    def closeEvent(self, event: QCloseEvent) -> None:
        super().closeEvent(event)
        self.region = QRect()
        self.chosen.emit()

    def _set(self, region: QRect) -> None:
        self.region = region.intersected(self.rect())
        self.update()
