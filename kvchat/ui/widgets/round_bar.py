"""A bar with round ends, as wide as there is room; what stands in it is drawn by whoever has it."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from kvchat.ui.base.theme import Look

HEIGHT = 14  # pixels, unless a subclass says otherwise


class RoundBar(QWidget):
    """Subclasses paint inside the shape, from the left; it is turned round where lines begin at the right."""

    def __init__(self, look: Look, width: int = 200, height: int = HEIGHT) -> None:
        super().__init__()
        self._look, self._size = look, QSize(width, height)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        look.changed.connect(self.update)

    def sizeHint(self) -> QSize:
        """As wide as there is room, and of one height."""
        return self._size

    def paintEvent(self, event: QPaintEvent) -> None:
        """Clip to the shape and have it painted."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        box, path = QRectF(self.rect()), QPainterPath()
        path.addRoundedRect(box, box.height() / 2, box.height() / 2)
        painter.setClipPath(path)
        if self.isRightToLeft():
            painter.translate(box.width(), 0)
            painter.scale(-1, 1)
        self.paint_inside(painter, box)
        painter.end()

    def paint_inside(self, painter: QPainter, box: QRectF) -> None:
        """Fill the box; what lies outside the shape is cut off."""
        raise NotImplementedError


def mix(a: str, b: str, share: float) -> QColor:
    """A colour between two "#rrggbb": `share` of the first."""
    first, second = QColor(a), QColor(b)
    pairs = ((first.red(), second.red()), (first.green(), second.green()), (first.blue(), second.blue()))
    return QColor(*(round(x * share + y * (1 - share)) for x, y in pairs))
