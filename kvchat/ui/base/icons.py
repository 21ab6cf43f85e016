"""Icons and the logo, drawn from SVG without reading files."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import lru_cache

from PySide6.QtCore import QByteArray, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QIcon, QIconEngine, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from kvchat.ui.base.building import is_mirrored

_DESKTOP_SIZES = (16, 22, 24, 32, 44, 48, 64, 128, 256)  # tray and window icon sizes
_DISABLED_OPACITY = 0.4

# Strokes on a 24 x 24 grid.
_GLYPHS = {
    "paperclip": "M20 11.5l-8.2 8.2a5 5 0 0 1-7.1-7.1l8.5-8.5"
    "a3.4 3.4 0 0 1 4.8 4.8l-8.4 8.4a1.7 1.7 0 0 1-2.4-2.4l7.6-7.6",
    "camera": "M4 8h3.5L9 5.5h6L16.5 8H20v11H4zM12 16.5a3.3 3.3 0 1 0 0-6.6 3.3 3.3 0 0 0 0 6.6z",
    "tools": "M20 7.5l-3 3-3.5-3.5 3-3a5 5 0 0 0-6.3 6.3L4 16.5a2.5 2.5 0 0 0 3.5 3.5l6.2-6.2A5 5 0 0 0 20 7.5z",
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

_DIRECTIONAL = {"sidebar", "go-on", "chevron-left", "chevron-right"}  # mirrored for right-to-left text
# The logo on a 32 x 32 grid; edges on even numbers stay crisp at 16 px.
_BUBBLE = "M8 2 H24 A6 6 0 0 1 30 8 V18 A6 6 0 0 1 24 24 H15 L8 30 V24 A6 6 0 0 1 2 18 V8 A6 6 0 0 1 8 2 Z"
_OUTLINE = (
    "M8.3 3.3 H23.7 A5 5 0 0 1 28.7 8.3 V17.7 A5 5 0 0 1 23.7 22.7 H14.5 L9.3 27.2 V22.7 H8.3"
    " A5 5 0 0 1 3.3 17.7 V8.3 A5 5 0 0 1 8.3 3.3 Z"
)
_LOWER_HALF = "M2 13 H30 V18 A6 6 0 0 1 24 24 H15 L8 30 V24 A6 6 0 0 1 2 18 Z"
_RIBBON = "M18 2 H24 V17 L21 14 L18 17 Z"
_DOTS = "".join(f"M{x - 2.4} 13 a2.4 2.4 0 1 0 4.8 0 a2.4 2.4 0 1 0 -4.8 0 Z" for x in (8.6, 16, 23.4))
_BANG = "M14 6 H18 L17.4 14.5 H14.6 Z M13.9 18.6 a2.1 2.1 0 1 0 4.2 0 a2.1 2.1 0 1 0 -4.2 0 Z"
# Middle tones: at least 3:1 against both a white and a near-black panel.
TEAL, GREY, RED = "#12907e", "#7c847f", "#d9483b"
_GOLD = "#f2b84b"


def icon(name: str, colour: str | Callable[[], str]) -> QIcon:
    """Return the icon with this name. `colour` is "#rrggbb" or a function called at each painting."""
    return QIcon(_IconEngine(name, colour))


class _IconEngine(QIconEngine):
    """Icon engine that renders an icon only in the sizes that are painted."""

    def __init__(self, name: str, colour: str | Callable[[], str]) -> None:
        super().__init__()
        self._name, self._colour = name, colour

    def clone(self) -> QIconEngine:
        return _IconEngine(self._name, self._colour)

    def paint(self, painter: QPainter, rect: QRect, mode: QIcon.Mode, state: QIcon.State) -> None:
        colour = self._colour if isinstance(self._colour, str) else self._colour()
        transform = ' transform="matrix(-1 0 0 1 24 0)"' if is_mirrored() and self._name in _DIRECTIONAL else ""
        width, fill = 3.2 if self._name == "dots" else 1.9, colour if self._name == "stop" else "none"
        stroke = f'stroke="{colour}" stroke-width="{width}" stroke-linecap="round" stroke-linejoin="round"'
        svg = _svg(f'<path d="{_GLYPHS[self._name]}"{transform} fill="{fill}" {stroke}/>', 24)
        painter.save()
        painter.setOpacity(painter.opacity() * (_DISABLED_OPACITY if mode is QIcon.Mode.Disabled else 1.0))
        painter.drawPixmap(rect, _render(svg, rect.width(), rect.height(), painter.device().devicePixelRatioF()))
        painter.restore()

    def pixmap(self, size: QSize, mode: QIcon.Mode, state: QIcon.State) -> QPixmap:
        """Render the icon on a transparent background, which Qt's version lacks. `size` is in physical pixels."""
        result = QPixmap(size.expandedTo(QSize(1, 1)))
        result.fill(Qt.GlobalColor.transparent)
        with QPainter(result) as painter:
            self.paint(painter, result.rect(), mode, state)
        return result


@lru_cache(maxsize=512)
def _render(svg: str, width: int, height: int, ratio: float = 1.0) -> QPixmap:
    result = QPixmap(max(round(width * ratio), 1), max(round(height * ratio), 1))
    result.fill(Qt.GlobalColor.transparent)
    with QPainter(result) as painter:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        QSvgRenderer(QByteArray(svg.encode())).render(painter, QRectF(result.rect()))
    result.setDevicePixelRatio(ratio)
    return result


def app_icon() -> QIcon:
    return _desktop_icon(app_svg())


def tray_icon(state: LogoState) -> QIcon:
    return _desktop_icon(tray_svg(state))


@lru_cache(maxsize=8)
def _desktop_icon(svg: str) -> QIcon:
    result = QIcon()
    for side in _DESKTOP_SIZES:
        result.addPixmap(_render(svg, side, side))
    return result


class LogoState(Enum):
    STOPPED = "stopped"
    LOADING = "loading"
    READY = "ready"
    BUSY = "busy"
    FAILED = "failed"


def app_svg() -> str:
    background = f'<rect width="64" height="64" rx="14" fill="{TEAL}"/>'
    bubble = f'<path d="{_BUBBLE}" fill="#fdfdfb"/><path d="{_RIBBON}" fill="{_GOLD}"/>'
    return _svg(f'{background}<g transform="translate(9.6 10) scale(1.4)">{bubble}</g>', 64)


def tray_svg(state: LogoState) -> str:
    """Return the tray icon for a state. States differ in shape as well as in color."""
    path, colour = {
        LogoState.STOPPED: (_RIBBON, GREY),
        LogoState.LOADING: (_LOWER_HALF, TEAL),
        LogoState.READY: (_BUBBLE + _RIBBON, TEAL),
        LogoState.BUSY: (_BUBBLE + _DOTS, TEAL),
        LogoState.FAILED: (_BUBBLE + _BANG, RED),
    }[state]
    outline = f'<path d="{_OUTLINE}" fill="none" stroke="{colour}" stroke-width="2.6" stroke-linejoin="round"/>'
    is_open = state in (LogoState.STOPPED, LogoState.LOADING)
    return _svg(f'{outline if is_open else ""}<path d="{path}" fill="{colour}" fill-rule="evenodd"/>')


def _svg(body: str, grid: int = 32) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {grid} {grid}">{body}</svg>\n'
