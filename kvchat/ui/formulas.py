"""Formulas as pictures for documents, set in a thread. Until one is ready, or if it cannot be, its source shows."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from PySide6.QtCore import QByteArray, QObject, QRectF, Qt, Signal
from PySide6.QtGui import QFont, QFontInfo, QFontMetricsF, QImage, QPainter
from PySide6.QtSvg import QSvgRenderer

from kvchat.ui.blocks import Formula
from kvchat.ui.latex import Outline, outline

_SCALE = 1.12  # STIX letters are smaller than an interface font's of the same size


@dataclass(frozen=True)
class Picture:
    """A formula to be put in a line with vertical-align: middle. Measures in device-independent pixels."""

    image: QImage
    width: int
    height: int
    font_size: int  # for the image itself: brings it to the right height


class Formulas(QObject):
    """All formulas on show, each set once."""

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

    def picture(self, formula: Formula, font: QFont, colour: str, ratio: float) -> Picture | None:
        """The formula beside text in `font`, `ratio` pixels a point on the screen; None: show its source."""
        drawn = self._outlines.get((formula.tex, formula.display))
        return _picture(drawn, font, colour, ratio) if drawn is not None else None

    def _set(self, key: tuple[str, bool]) -> None:
        """In the thread. The dict's one assignment is atomic."""
        self._outlines[key] = outline(*key)
        self._asked.discard(key)
        with suppress(RuntimeError):  # the window has gone meanwhile
            self.ready.emit()


def _picture(drawn: Outline, font: QFont, colour: str, ratio: float) -> Picture:
    """QTextDocument stands a "middle" image on the base line but for (height - x-height / 2) / 2 of it.

    That is the x-height of the image's own font, which shows nowhere else: a font size is chosen that fits.
    """
    metrics = QFontMetricsF(font)
    em = metrics.fontDpi() / 72 * font.pointSizeF() * _SCALE
    descent = math.ceil(drawn.descent * em)
    ascent = max(math.ceil(drawn.ascent * em), descent)
    width, height = math.ceil(drawn.width * em), ascent + descent
    x_share = metrics.xHeight() / QFontInfo(font).pixelSize()
    image = QImage(round(width * ratio), round(height * ratio), QImage.Format.Format_ARGB32_Premultiplied)
    image.setDevicePixelRatio(ratio)
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    renderer = QSvgRenderer(QByteArray(drawn.in_colour(colour).encode()))
    top = ascent - drawn.ascent * em
    renderer.render(painter, QRectF(0, top, drawn.width * em, (drawn.ascent + drawn.descent) * em))
    painter.end()
    return Picture(image, width, height, max(round(2 * (ascent - descent) / x_share), 1))
