"""Under the composer: how full the context is, what is kept for the reply, and where it ends."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QWidget

from kvchat.chat.context.context import ContextUse
from kvchat.ui.base.theme import Look, restyle
from kvchat.ui.widgets.elided import ElidedLabel
from kvchat.words.wording import tokens_short


class ContextBar(QWidget):
    """Used, being written, free, kept for the reply: in this order along the bar."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._use: ContextUse | None = None
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        """A thin line."""
        return QSize(120, 4)

    def show_use(self, use: ContextUse) -> None:
        """Draw another state."""
        self._use = use
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """The parts, cut off at round ends."""
        if self._use is None:
            return
        theme, use = self._look.theme, self._use
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        whole = QPainterPath()
        whole.addRoundedRect(QRectF(self.rect()), 2, 2)
        painter.setClipPath(whole)
        painter.fillRect(self.rect(), QColor(theme.line))
        reserve = QColor(theme.muted)
        reserve.setAlphaF(0.45)
        waiting = QColor(theme.warn if use.tight else theme.accent)
        waiting.setAlphaF(0.55)
        width, limit = self.width(), max(use.limit, 1)
        self._part(painter, width * (limit - use.reserve) / limit, width, reserve)
        used = width * min(use.used / limit, 1.0)
        self._part(painter, 0, used, QColor(theme.warn if use.tight else theme.accent))
        self._part(painter, used, min(used + width * use.waiting / limit, width), waiting)
        painter.end()

    def _part(self, painter: QPainter, left: float, right: float, colour: QColor) -> None:
        painter.fillRect(QRectF(left, 0, max(right - left, 0), self.height()), colour)


class ContextMeter(QWidget):
    """The bar and its words. Takes its room at all times, so that the composer never jumps."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.bar = ContextBar(look)
        self.words = ElidedLabel("small")
        row = QHBoxLayout(self)
        row.setContentsMargins(18, 5, 18, 2)
        row.setSpacing(10)
        row.addWidget(self.bar)
        row.addWidget(self.words, 1)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        look.changed.connect(self.bar.update)
        self.show_use(None)

    def show_use(self, use: ContextUse | None) -> None:
        """Show another state; None where it is not known."""
        self.bar.setVisible(use is not None)
        if use is not None:
            self.bar.show_use(use)
        words = meter_words(use) if use is not None else ""
        self.words.set_text(words)
        restyle(self.words, "tone", "warn" if use is not None and use.tight else "")
        self.setAccessibleName(f"Context: {words}" if words else "")
        self.setToolTip(_explained(use) if use is not None else "")


def meter_words(use: ContextUse) -> str:
    """The meter in one line."""
    parts = [f"{tokens_short(use.used)} of {tokens_short(use.limit)} tokens used"]
    if use.waiting:
        parts.append(f"{tokens_short(use.waiting)} in this message")
    parts.append(f"{tokens_short(use.reserve)} kept for the reply")
    return " · ".join(parts)


def _explained(use: ContextUse) -> str:
    return (
        f"The model reads {use.limit:,} tokens at most: {use.used:,} said so far, {use.waiting:,} in the message being "
        f"written, and {use.reserve:,} kept for the reply."
    )
