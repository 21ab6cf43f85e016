"""Under the composer: how full the context is, what is kept for the reply, and where it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import QSizePolicy, QWidget

from kvchat.ui.base.building import row
from kvchat.ui.base.theme import Look, restyle
from kvchat.ui.widgets.controls import RoundBar, mix
from kvchat.ui.widgets.elided import ElidedLabel
from kvchat.words.language import _, beside, number
from kvchat.words.wording import tokens_short

if TYPE_CHECKING:
    from kvchat.chat.context import ContextUse
    from kvchat.chat.turn.forecasts import Forecast


class ContextBar(RoundBar):
    """Used, being written, free, kept for the reply: in this order along the bar."""

    def __init__(self, look: Look) -> None:
        super().__init__(look, 120, 4)
        self._use: ContextUse | None = None
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def show_use(self, use: ContextUse) -> None:
        self._use = use
        self.update()

    def paint_inside(self, painter: QPainter, box: QRectF) -> None:
        if self._use is None:
            return
        theme, use = self._look.theme, self._use
        strong = theme.warn if use.tight else theme.accent
        width, limit = box.width(), max(use.limit, 1)
        used = width * min(use.used / limit, 1.0)
        for left, right, colour in (
            (0.0, width, QColor(theme.line)),
            (width * (limit - use.reserve) / limit, width, mix(theme.muted, theme.line, 0.45)),
            (0.0, used, QColor(strong)),
            (used, min(used + width * use.waiting / limit, width), mix(strong, theme.line, 0.55)),
        ):
            painter.fillRect(QRectF(left, 0, max(right - left, 0), box.height()), colour)


class ContextMeter(QWidget):
    """The bar and its words. Takes its room at all times, so that the composer never jumps."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.bar = ContextBar(look)
        self.words, self.wait = ElidedLabel("small"), ElidedLabel("small")
        self.wait.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        row(self.bar, (self.words, 1), self.wait, on=self, spacing=10, margins=(18, 5, 18, 2))
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.show_use(None)

    def show_use(self, use: ContextUse | None, forecast: Forecast | None = None) -> None:
        """Show another state, and what the reply would wait for; None where it is not known."""
        wait = forecast.of_message if forecast else ""
        self.wait.set_text(wait)
        self.wait.setVisible(bool(wait))
        self.bar.setVisible(use is not None)
        if use is not None:
            self.bar.show_use(use)
        words = meter_words(use) if use is not None else ""
        sent_now = _("Sent now, the first word comes after {wait}", wait=wait) if wait else ""
        self.words.set_text(words)
        restyle(self.words, "tone", "warn" if use is not None and use.tight else "")
        self.setAccessibleName(". ".join(filter(None, (_("Context: {words}", words=words) if words else "", sent_now))))
        self.setToolTip("\n".join(filter(None, (_explained(use) if use else "", sent_now))))


def meter_words(use: ContextUse) -> str:
    parts = [_("{used} of {limit} tokens used", used=tokens_short(use.used), limit=tokens_short(use.limit))]
    if use.waiting:
        parts.append(_("{waiting} in this message", waiting=tokens_short(use.waiting)))
    parts.append(_("{reserve} kept for the reply", reserve=tokens_short(use.reserve)))
    return beside(parts)


def _explained(use: ContextUse) -> str:
    return _(
        "The context holds {limit} tokens: {used} used so far, {waiting} in your message, and {reserve} reserved for "
        "the reply.",
        limit=number(use.limit),
        used=number(use.used),
        waiting=number(use.waiting),
        reserve=number(use.reserve),
    )
