"""Formulas for the page, set in a thread. Until one is ready, or if it cannot be, its source shows."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from PySide6.QtCore import QByteArray, QObject, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFont, QFontInfo, QFontMetricsF, QImage, QPainter
from PySide6.QtSvg import QSvgRenderer

from kvchat.ui.rendering.blocks import Formula
from kvchat.ui.rendering.latex import Outline, outline

_MOST = 500  # formulas that are remembered beside those on show
_SCALE = 1.12  # STIX letters are smaller than an interface font's of the same size


@dataclass(frozen=True)
class Place:
    """The room a formula takes in a line of text, in device-independent pixels from the line the text stands on."""

    outline: Outline
    em: float
    width: int
    ascent: int
    descent: int
    font_size: int  # for an image of that size with vertical-align: middle: the line then leaves room above and below

    def drawn(self, colour: str, ratio: float) -> QImage:
        """The formula itself, `ratio` pixels a point on the screen."""
        size = QSize(round(self.width * ratio), round((self.ascent + self.descent) * ratio))
        image = QImage(size, QImage.Format.Format_ARGB32_Premultiplied)
        image.setDevicePixelRatio(ratio)
        image.fill(Qt.GlobalColor.transparent)
        painter = QPainter(image)
        outline, em = self.outline, self.em
        top, height = self.ascent - outline.ascent * em, (outline.ascent + outline.descent) * em
        renderer = QSvgRenderer(QByteArray(outline.in_colour(colour).encode()))
        renderer.render(painter, QRectF(0, top, outline.width * em, height))
        painter.end()
        return image


class Formulas(QObject):
    """The formulas shown lately, each set once."""

    ready = Signal()  # some of those asked for are set now, or known to be undrawable

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._outlines: dict[tuple[str, bool], Outline | None] = {}
        self._asked: set[tuple[str, bool]] = set()
        self._thread = thread = ThreadPoolExecutor(1, thread_name_prefix="formulas")
        self.destroyed.connect(lambda: thread.shutdown(wait=False, cancel_futures=True))

    def is_known(self, formula: Formula) -> bool:
        """Whether it is settled how the formula looks; asks for it if not."""
        key = (formula.tex, formula.display)
        if key in self._outlines:
            return True
        if key not in self._asked:
            self._asked.add(key)
            self._thread.submit(self._set, key)
        return False

    def place(self, formula: Formula, font: QFont, scale: float = 1.0) -> Place | None:
        """The room it takes beside text in `font`, `scale` times as large; None: show its source."""
        outline = self._outlines.get((formula.tex, formula.display))
        return _place(outline, font, scale) if outline is not None else None

    def _set(self, key: tuple[str, bool]) -> None:
        """In the thread. The dict's one assignment is atomic."""
        self._outlines[key] = outline(*key)
        for oldest in list(self._outlines)[:-_MOST]:
            self._outlines.pop(oldest, None)  # a page keeps those that it shows
        self._asked.discard(key)
        with suppress(RuntimeError):  # the window has gone meanwhile
            self.ready.emit()


def _place(outline: Outline, font: QFont, scale: float) -> Place:
    """QTextDocument leaves room for a "middle" image on the base line but for (height - x-height / 2) / 2 of it.

    That is the x-height of the image's own font, which shows nowhere else: a font size is chosen that fits. Then it
    draws the image in the middle of the line, wherever that is; so formulas are drawn by the page.
    """
    metrics = QFontMetricsF(font)
    em = metrics.fontDpi() / 72 * font.pointSizeF() * _SCALE * scale
    ascent, descent = math.ceil(outline.ascent * em), max(math.ceil(outline.descent * em), 0)
    x_share = metrics.xHeight() / QFontInfo(font).pixelSize()
    font_size = max(round(2 * max(ascent - descent, 0) / x_share), 1)
    return Place(outline, em, math.ceil(outline.width * em), ascent, descent, font_size)
