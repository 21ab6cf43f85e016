"""Formulas for the page, set in a thread by ziamath. Until one is ready, or if it cannot be, its source shows.

ziamath is slow: a quarter of a second to import, then milliseconds per formula.
"""

from __future__ import annotations

import math
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from xml.etree import ElementTree

from PySide6.QtCore import QByteArray, QObject, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFont, QFontInfo, QFontMetricsF, QImage, QPainter
from PySide6.QtSvg import QSvgRenderer

from kvchat.ui.rendering.blocks import Formula

_MOST = 500  # formulas that are remembered beside those on show
_EM = 100.0  # the size formulas are set at; outlines scale
_INK = "#010203"  # stands for the colour until it is known
_LONGEST = 1_500  # characters; what is longer is no formula to be read
_DEEPEST = 30  # braces inside braces, far below Python's recursion limit
_UNBRACED = re.compile(r"(\\math(?:bb|cal|frak|bf|rm|sf|tt|it|scr))\s+([A-Za-z0-9])")  # latex2mathml overlooks them
_LOST = ("\\mathop",)  # what it leaves out without a word
# Scripts the mathematical font has no letters for: everything from Hebrew on but symbols and mathematical letters.
_NO_GLYPHS = re.compile("[\u0590-\u1fff\u2c00-\U0001d3ff\U0001d800-\U0010ffff]")
_SCALE = 1.12  # STIX letters are smaller than an interface font's of the same size


@dataclass(frozen=True)
class Outline:
    """A drawn formula. Measures in em; `ascent` and `descent` from the line the text stands on."""

    svg: str
    width: float
    ascent: float
    descent: float

    def in_colour(self, colour: str) -> str:
        """The SVG in `colour` ("#rrggbb")."""
        return self.svg.replace(_INK, colour)


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


def outline(tex: str, display: bool) -> Outline | None:
    """The formula drawn; None for one that cannot be drawn in full, which is better shown as it was written."""
    if len(tex) > _LONGEST or _depth(tex) > _DEEPEST or _NO_GLYPHS.search(tex) or any(word in tex for word in _LOST):
        return None
    try:
        from ziamath.config import config  # not at the top: most replies have no formula
        from ziamath.tex import tex2mml
        from ziamath.zmath import Math

        config.svg2 = False  # QtSvg knows SVG 1.2 Tiny
        root = ElementTree.fromstring(tex2mml(_UNBRACED.sub(r"\1{\2}", tex), inline=not display))
        if "\\" in "".join(root.itertext()):
            return None  # a command it does not know stands there as text
        root.set("mathcolor", _INK)
        drawn = Math(root, size=_EM, margin=0.02 * _EM)
        box = drawn.node.bbox
        svg = drawn.svg()
    except Exception:  # a parser of other people's text: whatever it raises means the same
        return None
    margin = drawn.margin
    width, ascent, descent = box.xmax - box.xmin + 2 * margin, box.ymax + margin, margin - box.ymin
    return Outline(svg, width / _EM, ascent / _EM, descent / _EM)


def _depth(tex: str) -> int:
    depth = deepest = 0
    for letter in tex:
        depth += (letter == "{") - (letter == "}")
        deepest = max(deepest, depth)
    return deepest
