"""Icons, drawn from SVG in the colour asked for. No file is read, so nothing can be missing from a package."""

from __future__ import annotations

from functools import lru_cache

from PySide6.QtCore import QByteArray, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QGuiApplication, QIcon, QIconEngine, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from kvchat.ui.base.logo import LogoState, app_svg, tray_svg

_DESKTOP_SIZES = (16, 22, 24, 32, 44, 48, 64, 128, 256)  # of a tray and of a window's own icon
_PALE = 0.4

# Strokes on a 24 x 24 grid.
_GLYPHS = {
    "paperclip": "M20 11.5l-8.2 8.2a5 5 0 0 1-7.1-7.1l8.5-8.5"
    "a3.4 3.4 0 0 1 4.8 4.8l-8.4 8.4a1.7 1.7 0 0 1-2.4-2.4l7.6-7.6",
    "camera": "M4 8h3.5L9 5.5h6L16.5 8H20v11H4zM12 16.5a3.3 3.3 0 1 0 0-6.6 3.3 3.3 0 0 0 0 6.6z",
    "document": "M6.5 3.5h7.5l4.5 4.5v12.5h-12zM14 3.5v4.5h4.5",
    "menu": "M4.5 7h15M4.5 12h15M4.5 17h15",
    "sidebar": "M4 5h16v14H4zM9.5 5v14",
    "plus": "M12 5v14M5 12h14",
    "arrow-up": "M12 19V5.5M6 11l6-6 6 6",
    "arrow-down": "M12 5v13.5M6 13l6 6 6-6",
    "search": "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM15.5 15.5L20 20",
    "on-top": "M5 4.5h14M12 20V8.5M7 13l5-5 5 5",
    "chevron-up": "M7 14l5-5 5 5",
    "chevron-down": "M7 10l5 5 5-5",
    "dots": "M5.5 12h.01M12 12h.01M18.5 12h.01",
    "copy": "M9 9h10v10H9zM5 15V5h10",
    "edit": "M5 19l1-4L16 5l3 3L9 18zM14 7l3 3",
    "again": "M18.5 9.5A7 7 0 1 0 19 14M19 5v4.7h-4.7",
    "go-on": "M6 6l6.5 6L6 18M17.5 6v12",
    "chevron-left": "M14 7l-5 5 5 5",
    "chevron-right": "M10 7l5 5-5 5",
    "check": "M5 12.5l4.5 4.5L19 7.5",
    "close": "M7 7l10 10M17 7L7 17",
    "trash": "M5 7h14M10 7V4.5h4V7M7 7l1 12.5h8L17 7",
    "disk": "M4.5 7c0-1.7 3.4-3 7.5-3s7.5 1.3 7.5 3-3.4 3-7.5 3-7.5-1.3-7.5-3z"
    "M4.5 7v10c0 1.7 3.4 3 7.5 3s7.5-1.3 7.5-3V7M4.5 12c0 1.7 3.4 3 7.5 3s7.5-1.3 7.5-3",
    "disk-off": "M8.2 4.4C9.4 4.1 10.7 4 12 4c4.1 0 7.5 1.3 7.5 3v9.5"
    "M4.5 7v10c0 1.7 3.4 3 7.5 3 2.2 0 4.2-.4 5.5-1M3.5 3.5l17 17",
    "stop": "M9 7.5h6a1.5 1.5 0 0 1 1.5 1.5v6a1.5 1.5 0 0 1-1.5 1.5h-6a1.5 1.5 0 0 1-1.5-1.5v-6a1.5 1.5 0 0 1 1.5-1.5z",
    "warning": "M12 4.5L21 19.5H3zM12 10v4.5M12 17h.01",
    "pin": "M9 4h6M10 4v6l-3.5 4.5h11L14 10V4M12 14.5V20.5",
    "clock": "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17zM12 7.5V12l3 2",
    "swap": "M4.5 9H19M15 5l4 4-4 4M19.5 16H5M9 12.5L5 16l4 4",
    "fork": "M7 20V4M7 14c0-4 10-2 10-8V4.5M13.5 8L17 4.5 20.5 8",
    "info": "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17zM12 11v5M12 8h.01",
}


_SIDED = {"sidebar", "go-on", "chevron-left", "chevron-right"}  # they point to where lines begin or end


def icon(name: str, colour: str) -> QIcon:
    """A line icon, or the filled square that stops a reply, in `colour` ("#rrggbb"). Needs a QGuiApplication."""
    mirrored = QGuiApplication.layoutDirection() is Qt.LayoutDirection.RightToLeft
    return _icon(name, colour, mirrored and name in _SIDED)


@lru_cache(maxsize=256)
def _icon(name: str, colour: str, mirrored: bool) -> QIcon:
    turned = ' transform="matrix(-1 0 0 1 24 0)"' if mirrored else ""
    width, fill = 3.2 if name == "dots" else 1.9, colour if name == "stop" else "none"
    return QIcon(
        _Drawn(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><path d="{_GLYPHS[name]}"{turned} '
            f'fill="{fill}" stroke="{colour}" stroke-width="{width}" '
            'stroke-linecap="round" stroke-linejoin="round"/></svg>'
        )
    )


@lru_cache(maxsize=8)
def tray_icon(state: LogoState) -> QIcon:
    """The logo in one of the tray’s states."""
    return _of_pictures(tray_svg(state))


@lru_cache(maxsize=1)
def app_icon() -> QIcon:
    """The application's icon."""
    return _of_pictures(app_svg())


class _Drawn(QIconEngine):
    """Draws an icon in the size that is asked for, when it is: a window shows few of the sizes there are."""

    def __init__(self, svg: str) -> None:
        super().__init__()
        self._svg = svg

    def clone(self) -> QIconEngine:
        """For a copy of the icon that will be another."""
        return _Drawn(self._svg)

    def paint(self, painter: QPainter, rect: QRect, mode: QIcon.Mode, state: QIcon.State) -> None:
        """What cannot be used is paler."""
        ratio = painter.device().devicePixelRatioF()
        painter.save()
        painter.setOpacity(painter.opacity() * (_PALE if mode is QIcon.Mode.Disabled else 1.0))
        painter.drawPixmap(rect, _picture(self._svg, rect.width(), rect.height(), ratio))
        painter.restore()

    def pixmap(self, size: QSize, mode: QIcon.Mode, state: QIcon.State) -> QPixmap:
        """For who has to have one."""
        return self.scaledPixmap(size, mode, state, 1.0)

    def scaledPixmap(self, size: QSize, mode: QIcon.Mode, state: QIcon.State, scale: float) -> QPixmap:
        """`scale`: how many of the screen's own pixels are one of `size`."""
        picture = _picture(self._svg, size.width(), size.height(), scale)
        if mode is not QIcon.Mode.Disabled:
            return picture
        pale = _blank(picture.width(), picture.height())
        pale.setDevicePixelRatio(scale)
        with QPainter(pale) as painter:
            painter.setOpacity(_PALE)
            painter.drawPixmap(0, 0, picture)
        return pale


@lru_cache(maxsize=512)
def _picture(svg: str, width: int, height: int, ratio: float) -> QPixmap:
    """As large as that times the ratio."""
    result = _blank(round(width * ratio), round(height * ratio))
    with QPainter(result) as painter:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        QSvgRenderer(QByteArray(svg.encode())).render(painter, QRectF(result.rect()))
    result.setDevicePixelRatio(ratio)
    return result


def _blank(width: int, height: int) -> QPixmap:
    result = QPixmap(max(width, 1), max(height, 1))
    result.fill(Qt.GlobalColor.transparent)
    return result


def _of_pictures(svg: str) -> QIcon:
    """For the desktop, which is given all of an icon's sizes at once."""
    result = QIcon()
    for side in _DESKTOP_SIZES:
        result.addPixmap(_picture(svg, side, side, 1.0))
    return result
