"""The formulas of one page of text: room is left for them in the document, and they are drawn over it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from PySide6.QtCore import QPointF, QRect, QRectF, Qt, QUrl
from PySide6.QtGui import QImage, QPainter, QTextBlock, QTextDocument, QTextFragment
from PySide6.QtWidgets import QTextEdit

from kvchat.ui.rendering.blocks import Formula
from kvchat.ui.rendering.formulas import Place
from kvchat.ui.rendering.page_style import PageStyle
from kvchat.words.markdown import formula_source

FORMULA = "math:"  # how formulas are named in a document
_STRUT = "\u2060"  # beside a formula: a line of nothing but pictures would not be as high as the font
_HEADINGS = {"<h1": 2.0, "<h2": 1.5, "<h3": 1.2, "<h5": 0.8}  # how much larger Qt makes their letters


class FormulaLayer:
    """Formulas in the order in which they stand in the document."""

    def __init__(self, style: PageStyle) -> None:
        self._style = style
        self.awaited: set[Formula] = set()  # they still stand there as their source
        self._formulas: list[Formula] = []
        self._places: list[Place] = []
        self._at: list[int] = []  # their positions in the document, once they are asked for
        self._images: dict[int, QImage] = {}  # of those that were seen
        self._ratio = 0.0  # pixels a point they were drawn with

    def clear(self) -> None:
        """The document will be another."""
        self.awaited, self._formulas, self._places, self._at, self._images = set(), [], [], [], {}

    def html(self, formula: Formula, tag: str) -> str:
        """What stands for one more formula in the document, in a block that begins with `tag`."""
        style = self._style
        if not style.formulas.is_known(formula):
            self.awaited.add(formula)
            return formula_source(formula.source)
        place = style.formulas.place(formula, style.font, _HEADINGS.get(tag, 1.0))
        if place is None:
            return formula_source(formula.source)
        name = f"{FORMULA}{len(self._formulas)}"
        self._formulas.append(formula)
        self._places.append(place)
        size = f'width="{place.width}" height="{place.ascent + place.descent}"'
        return f'{_STRUT}<img src="{name}" {size} style="vertical-align:middle; font-size:{place.font_size}px">'

    def enter(self, document: QTextDocument) -> None:
        """The document has been made of that HTML."""
        for number in range(len(self._formulas)):
            document.addResource(QTextDocument.ResourceType.ImageResource.value, QUrl(f"{FORMULA}{number}"), _nothing())

    def have_come(self) -> bool:
        """Whether some of those that are awaited are set now."""
        return any(map(self._style.formulas.is_known, self.awaited))

    def source(self, name: str) -> str:
        """How the formula was written that has this name in the document."""
        return self._formulas[int(name.removeprefix(FORMULA))].source

    def draw(self, page: QTextEdit, area: QRect) -> None:
        """Draw those that stand in `area`, each on the line that its text stands on."""
        if not self._formulas:
            return
        ratio = page.devicePixelRatioF()
        if self._ratio != ratio:  # another screen has other pixels
            self._ratio, self._images = ratio, {}
        painter = QPainter(page.viewport())
        for number, (corner, place) in enumerate(zip(self.corners(page), self._places, strict=False)):
            if QRectF(corner.x(), corner.y(), place.width, place.ascent + place.descent).intersects(QRectF(area)):
                if number not in self._images:
                    self._images[number] = place.drawn(self._style.theme.text, ratio)
                whole = QPointF(round(corner.x() * ratio) / ratio, round(corner.y() * ratio) / ratio)
                painter.drawImage(whole, self._images[number])
        painter.end()

    def corners(self, page: QTextEdit) -> Iterator[QPointF]:
        """Where each begins in the page's viewport, at its upper left."""
        document, left = page.document(), page.horizontalScrollBar().value()
        for position, place in zip(self._positions(document), self._places, strict=False):
            block = document.findBlock(position)
            line = block.layout().lineForTextPosition(position - block.position())
            corner = document.documentLayout().blockBoundingRect(block).topLeft()
            x: float = line.cursorToX(position - block.position())[0]  # type: ignore[index]
            yield QPointF(corner.x() + x - left, corner.y() + line.y() + line.ascent() - place.ascent)

    def _positions(self, document: QTextDocument) -> list[int]:
        if not self._at:
            block = document.begin()
            while block.isValid():
                for fragment in fragments(block):
                    form = fragment.charFormat()
                    if form.isImageFormat() and form.toImageFormat().name().startswith(FORMULA):
                        self._at.append(fragment.position())
                block = block.next()
        return self._at


@cache
def _nothing() -> QImage:
    """What QTextDocument draws for a formula."""
    image = QImage(1, 1, QImage.Format.Format_ARGB32_Premultiplied)
    image.fill(Qt.GlobalColor.transparent)
    return image


def fragments(block: QTextBlock) -> Iterator[QTextFragment]:
    """The runs of one format of a paragraph."""
    iterator = block.begin()
    while not iterator.atEnd():
        yield iterator.fragment()
        iterator += 1
