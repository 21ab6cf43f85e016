"""The picture of what sharing saves: what is on disk, inside what whole files would take."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from kvchat.kvstore.savepoint import StoreUsage
from kvchat.ui.theme import Look
from kvchat.ui.usage_words import sharing, spared_bytes
from kvchat.wording import size

_HEIGHT = 14


def shared_colour(look: Look) -> QColor:
    """The accent's quiet sister: bytes that others keep as well."""
    return mix(look.theme.accent, look.theme.page, 0.4)


def mix(a: str, b: str, share: float) -> QColor:
    """A colour between two "#rrggbb": `share` of the first."""
    first, second = QColor(a), QColor(b)
    pairs = ((first.red(), second.red()), (first.green(), second.green()), (first.blue(), second.blue()))
    return QColor(*(round(x * share + y * (1 - share)) for x, y in pairs))


class SavingsBar(QWidget):
    """A bar as long as whole slot files would be; the strong part is what the disk really holds."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look = look
        self.share = 1.0  # of the bar that is on disk
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        look.changed.connect(self.update)

    def show_usage(self, usage: StoreUsage) -> None:
        """Draw these figures."""
        whole = usage.physical_bytes + spared_bytes(usage)
        self.share = usage.physical_bytes / whole if whole else 0.0
        self.setAccessibleName(f"{size(usage.physical_bytes)} on disk. {sharing(usage)}")
        self.update()

    def sizeHint(self) -> QSize:
        """As wide as there is room, and of one height."""
        return QSize(200, _HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        """The ground is what is spared; on it, what is there."""
        theme = self._look.theme
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        box = QRectF(self.rect())
        path = QPainterPath()
        path.addRoundedRect(box, _HEIGHT / 2, _HEIGHT / 2)
        painter.setClipPath(path)
        painter.fillRect(box, mix(theme.accent, theme.page, 0.18) if self.share else QColor(theme.line))
        if self.share:
            width = max(box.width() * self.share, 4.0)
            painter.fillRect(QRectF(0, 0, width, box.height()), QColor(theme.accent))
        painter.end()
