"""LaTeX formulas, rendered by ziamath in a thread because it is slow.

A page shows a formula's source until it is rendered, or if rendering fails. A rendered formula is an image in the
page's document; `FormulaLayer` draws it on the text's baseline at the screen's resolution.
"""

import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from xml.etree import ElementTree

from PySide6.QtCore import QByteArray, QObject, QPointF, QRect, QRectF, QSize, QSizeF, Qt, Signal
from PySide6.QtGui import QFont, QFontInfo, QFontMetricsF, QImage, QPainter, QPyTextObject, QTextDocument, QTextFormat
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QTextEdit

from kvchat.text.markdown import formula_source
from kvchat.ui.rendering.markdown import Formula

FORMULA_PREFIX = "math:"  # name prefix of formulas in documents
_STRUT = "\u2060"  # word joiner before a formula: a line of images alone would be too low
_HEADINGS = {"<h1": 2.0, "<h2": 1.5, "<h3": 1.2, "<h5": 0.8}  # Qt's enlargement of heading text
_MAX_CACHED = 500  # formulas
_EM = 100.0  # font size for rendering; outlines are scaled when drawn
_COLOUR = "#010203"  # placeholder in outlines, replaced by the text color
_MAX_LENGTH = 1_500  # characters; longer formulas are unreadable
_MAX_DEPTH = 30  # brace nesting, far below Python's recursion limit
_UNBRACED = re.compile(r"(\\math(?:bb|cal|frak|bf|rm|sf|tt|it|scr))\s+([A-Za-z0-9])")  # latex2mathml needs braces
_UNSUPPORTED = "\\mathop"  # latex2mathml drops it silently
# Scripts missing in the math font: all from Hebrew on, except symbols and mathematical letters.
_NO_GLYPHS = re.compile("[\u0590-\u1fff\u2c00-\U0001d3ff\U0001d800-\U0010ffff]")
_SCALE = 1.12  # STIX letters are smaller than interface fonts at the same size


@dataclass(frozen=True)
class Outline:
    """Rendered formula. Lengths are in em; `ascent` and `descent` are the heights above and below the baseline."""

    svg: str  # drawn in _COLOUR
    width: float
    ascent: float
    descent: float


@dataclass(frozen=True)
class FormulaBox:
    """Size of a formula in a text, in device-independent pixels; `ascent` and `descent` are from the baseline."""

    outline: Outline
    em: float
    width: int
    ascent: int
    descent: int
    font_size: int  # pixels; aligns the image with the baseline, see FormulaRenderer.measure

    def draw(self, colour: str, ratio: float) -> QImage:
        size = QSize(round(self.width * ratio), round((self.ascent + self.descent) * ratio))
        image = QImage(size, QImage.Format.Format_ARGB32_Premultiplied)
        image.setDevicePixelRatio(ratio)
        image.fill(Qt.GlobalColor.transparent)
        outline, em = self.outline, self.em
        top, height = self.ascent - outline.ascent * em, (outline.ascent + outline.descent) * em
        with QPainter(image) as painter:
            renderer = QSvgRenderer(QByteArray(outline.svg.replace(_COLOUR, colour).encode()))
            renderer.render(painter, QRectF(0, top, outline.width * em, height))
        return image


class FormulaRenderer(QObject):
    """Renders formulas in a thread. There is only one, never deleted: emitting from a deleted object crashes."""

    ready = Signal()  # a requested formula was rendered or failed

    def __init__(self) -> None:
        super().__init__()
        self._outlines: dict[tuple[str, bool], Outline | None] = {}
        self._requested: set[tuple[str, bool]] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="formulas")

    def request(self, formula: Formula) -> bool:
        """Return True if rendering has ended, with or without success. Otherwise start it if necessary."""
        key = (formula.tex, formula.is_display)
        if key in self._outlines:
            return True
        if key not in self._requested:
            self._requested.add(key)
            self._thread.submit(self._render, key)
        return False

    def measure(self, formula: Formula, font: QFont, scale: float = 1.0) -> FormulaBox | None:
        """Return the formula's size beside text in `font`, enlarged by `scale`, or None if it is not rendered.

        QTextDocument places the bottom of an image with vertical-align: middle (height - x-height / 2) / 2 below the
        baseline. The x-height is that of the image's own font, whose size has no other effect. `font_size` is chosen so
        that the image ends at the formula's descent.
        """
        outline = self._outlines.get((formula.tex, formula.is_display))
        if outline is None:
            return None
        metrics = QFontMetricsF(font)
        em = metrics.fontDpi() / 72 * font.pointSizeF() * _SCALE * scale
        ascent, descent = math.ceil(outline.ascent * em), max(math.ceil(outline.descent * em), 0)
        x_share = metrics.xHeight() / QFontInfo(font).pixelSize()
        font_size = max(round(2 * max(ascent - descent, 0) / x_share), 1)
        return FormulaBox(outline, em, math.ceil(outline.width * em), ascent, descent, font_size)

    def _render(self, key: tuple[str, bool]) -> None:
        """Render a formula in the thread and store it; assignment to a dict is atomic."""
        self._outlines[key] = render_outline(*key)
        for oldest in list(self._outlines)[:-_MAX_CACHED]:
            self._outlines.pop(oldest, None)  # pages hold references to the formulas they show
        self._requested.discard(key)
        self.ready.emit()


@cache
def formula_renderer() -> FormulaRenderer:
    return FormulaRenderer()


def render_outline(tex: str, is_display: bool) -> Outline | None:
    """Render a formula. Return None if any part is unsupported, because its source is easier to read then."""
    depths = accumulate((letter == "{") - (letter == "}") for letter in tex[:_MAX_LENGTH])
    if len(tex) > _MAX_LENGTH or max(depths, default=0) > _MAX_DEPTH or _NO_GLYPHS.search(tex) or _UNSUPPORTED in tex:
        return None
    try:
        from ziamath.config import config  # imported late, because most replies have no formula
        from ziamath.tex import tex2mml
        from ziamath.zmath import Math

        config.svg2 = False  # QtSvg reads SVG 1.2 Tiny
        root = ElementTree.fromstring(tex2mml(_UNBRACED.sub(r"\1{\2}", tex), inline=not is_display))
        if "\\" in "".join(root.itertext()):
            return None  # an unknown command was left as text
        root.set("mathcolor", _COLOUR)
        drawn = Math(root, size=_EM, margin=0.02 * _EM)
        box = drawn.node.bbox
        svg = drawn.svg()
    except Exception:  # ziamath and latex2mathml raise anything on bad input
        return None
    width, margin = box.xmax - box.xmin + 2 * drawn.margin, drawn.margin
    return Outline(svg, width / _EM, (box.ymax + margin) / _EM, (margin - box.ymin) / _EM)


class FormulaLayer(QPyTextObject):
    def __init__(self, page: QTextEdit, font: QFont, colour: str) -> None:
        super().__init__(page)
        self._page, self._renderer, self._font, self._colour = page, formula_renderer(), font, colour
        self._ratio = 0.0  # screen pixels per device-independent pixel of the images
        page.document().documentLayout().registerHandler(QTextFormat.ObjectTypes.ImageObject.value, self)
        self.clear()

    def clear(self) -> None:
        self.pending: set[Formula] = set()  # still shown as source
        self._formulas: list[tuple[Formula, FormulaBox]] = []
        self._images: dict[int, QImage] = {}  # by formula number

    def formula_html(self, formula: Formula, tag: str) -> str:
        if not self._renderer.request(formula):
            self.pending.add(formula)
            return formula_source(formula.source)
        place = self._renderer.measure(formula, self._font, _HEADINGS.get(tag, 1.0))
        if place is None:
            return formula_source(formula.source)
        name = f"{FORMULA_PREFIX}{len(self._formulas)}"
        self._formulas.append((formula, place))
        size = f'width="{place.width}" height="{place.ascent + place.descent}"'
        return f'{_STRUT}<img src="{name}" {size} style="vertical-align:middle; font-size:{place.font_size}px">'

    def source(self, name: str) -> str:
        return self._formulas[int(name.removeprefix(FORMULA_PREFIX))][0].source

    def intrinsicSize(self, document: QTextDocument, position: int, format: QTextFormat) -> QSizeF:
        image = format.toImageFormat()
        return QSizeF(image.width(), image.height())

    def drawObject(
        self, painter: QPainter, rect: QRectF | QRect, document: QTextDocument, position: int, format: QTextFormat
    ) -> None:
        """Draw a formula on its line's baseline, because Qt's rectangle is centered in the line."""
        ratio = self._page.devicePixelRatioF()
        if self._ratio != ratio:
            self._ratio, self._images = ratio, {}
        number = int(format.toImageFormat().name().removeprefix(FORMULA_PREFIX))
        place, block = self._formulas[number][1], document.findBlock(position)
        if number not in self._images:
            self._images[number] = place.draw(self._colour, ratio)
        line = block.layout().lineForTextPosition(position - block.position())
        top = document.documentLayout().blockBoundingRect(block).y() + line.y() + line.ascent() - place.ascent
        painter.drawImage(QPointF(round(rect.x() * ratio) / ratio, round(top * ratio) / ratio), self._images[number])
