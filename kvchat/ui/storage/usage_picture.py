"""The picture of what sharing saves: what is on disk, inside what whole files would take."""

from __future__ import annotations

from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import QWidget

from kvchat.kvstore.savepoint import StoreUsage
from kvchat.ui.base.theme import Look
from kvchat.ui.storage.usage_words import sharing, spared_bytes
from kvchat.ui.widgets.round_bar import RoundBar, mix
from kvchat.words.wording import size


def shared_colour(look: Look) -> QColor:
    """The accent's quiet sister: bytes that others keep as well."""
    return mix(look.theme.accent, look.theme.page, 0.4)


class SavingsBar(RoundBar):
    """A bar as long as whole slot files would be; the strong part is what the disk really holds."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look = look
        self.share = 1.0  # of the bar that is on disk
        look.changed.connect(self.update)

    def show_usage(self, usage: StoreUsage) -> None:
        """Draw these figures."""
        whole = usage.physical_bytes + spared_bytes(usage)
        self.share = usage.physical_bytes / whole if whole else 0.0
        self.setAccessibleName(f"{size(usage.physical_bytes)} on disk. {sharing(usage)}")
        self.update()

    def paint_inside(self, painter: QPainter, box: QRectF) -> None:
        """The ground is what is spared; on it, what is there."""
        theme = self._look.theme
        painter.fillRect(box, mix(theme.accent, theme.page, 0.18) if self.share else QColor(theme.line))
        if self.share:
            width = max(box.width() * self.share, 4.0)
            painter.fillRect(QRectF(0, 0, width, box.height()), QColor(theme.accent))
