"""Bars over days, painted. Pointer and arrow keys point at a day."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date

from PySide6.QtCore import QEvent, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QAccessible, QColor, QFocusEvent, QFontMetricsF, QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from kvchat.ui.base.theme import Look, page_font
from kvchat.words.language import _
from kvchat.words.wording import day_short

_HEIGHT, _WIDEST = 116, 26  # pixels at 100 % text: of the plot, of a bar
_STEPS = (2, 4, 6, 8, 10)  # times a power of ten: where the scale may end, so that its middle is a round number


class DayBars(QWidget):
    """One plot. `describe` it for those who do not see it."""

    accessible_role = QAccessible.Role.Chart
    pointed = Signal(int)  # at the day of that number; -1: at none

    def __init__(self, look: Look, name: str, in_words: Callable[[float], str]) -> None:
        """in_words: formats a value beside the scale"""
        super().__init__()
        self._look, self._in_words = look, in_words
        self._days: Sequence[date] = ()
        self._values: Sequence[float] = ()
        self._top, self.day = 2.0, -1
        self.setAccessibleName(name)
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        look.changed.connect(self._resize)

    def show_days(self, days: Sequence[date], values: Sequence[float], unit: float = 1) -> None:
        """Draw each day's value. The scale ends at a round number of units."""
        self._days, self._values = days, values
        most = max(values) / unit
        power = 10 ** max(0, math.ceil(math.log10(max(most, 1))) - 1)
        self._top = next(step * power for step in _STEPS if most <= step * power) * unit
        self.update()

    def point(self, day: int) -> None:
        """Mark the day of that number; -1: none."""
        self.day = day
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(200, round(self._look.px(_HEIGHT) + 2.6 * self._metrics().height()))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(page_font(self._look.type.family, self._look.type.small))
        box, theme = self._plot(), self._look.theme
        if self.hasFocus():
            painter.setPen(QColor(theme.accent))
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 5, 5)
        if 0 <= self.day < len(self._days):
            painter.fillRect(self._slot(box, self.day), QColor(theme.selected))
        for share in (0.0, 0.5, 1.0):
            y = round(box.bottom() - share * box.height())
            painter.fillRect(QRectF(box.left(), y, box.width(), 1), QColor(theme.muted if not share else theme.line))
            painter.setPen(QColor(theme.muted))
            beside = QRectF(0, y - 20, box.left() - 8, 40)
            right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            painter.drawText(beside, right, self._in_words(share * self._top))
        for day in range(len(self._days)):
            self._paint_bar(painter, box, day)
        self._paint_days(painter, box)
        painter.end()

    def _paint_bar(self, painter: QPainter, box: QRectF, day: int) -> None:
        slot = self._slot(box, day)
        wide = min(max(slot.width() * 0.78, slot.width() - 6, 1.0), self._look.px(_WIDEST))
        high = box.height() * self._values[day] / self._top
        bar = QRectF(slot.center().x() - wide / 2, box.bottom() - high, wide, high)
        painter.fillRect(bar, QColor(self._look.theme.accent))

    def _paint_days(self, painter: QPainter, box: QRectF) -> None:
        metrics, last = self._metrics(), len(self._days) - 1
        step = max(
            1, math.ceil(2.2 * metrics.horizontalAdvance(day_short(date(2000, 11, 30))) / box.width() * len(self._days))
        )
        for day in range(last, -1, -step):
            words = _("today") if day == last else day_short(self._days[day])
            wide = metrics.horizontalAdvance(words) + 2
            left = min(max(self._slot(box, day).center().x() - wide / 2, box.left()), box.right() - wide)
            painter.drawText(
                QRectF(left, box.bottom() + 4, wide, metrics.height()), Qt.AlignmentFlag.AlignCenter, words
            )

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        box, x = self._plot(), event.position().x()
        inside = box.left() <= x < box.right() and self._days
        self.pointed.emit(int((x - box.left()) / box.width() * len(self._days)) if inside else -1)

    def leaveEvent(self, event: QEvent) -> None:
        self.pointed.emit(-1)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.pointed.emit(-1)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        last = len(self._days) - 1
        before = self.day if self.day >= 0 else last + 1
        to = {Qt.Key.Key_Left: before - 1, Qt.Key.Key_Right: before + 1, Qt.Key.Key_Home: 0, Qt.Key.Key_End: last}
        if event.key() not in to or last < 0:
            super().keyPressEvent(event)
            return
        self.pointed.emit(min(max(to[Qt.Key(event.key())], 0), last))

    def _metrics(self) -> QFontMetricsF:
        return QFontMetricsF(page_font(self._look.type.family, self._look.type.small))

    def _plot(self) -> QRectF:
        metrics = self._metrics()
        left, above, below = (
            metrics.horizontalAdvance(_("{minutes} min", minutes="00")) + 14,
            metrics.height() * 0.7,
            metrics.height() * 1.7,
        )
        return QRectF(left, above, self.width() - left - 8, self.height() - above - below)

    def _slot(self, box: QRectF, day: int) -> QRectF:
        wide = box.width() / max(len(self._days), 1)
        return QRectF(box.left() + day * wide, box.top(), wide, box.height())

    def _resize(self) -> None:
        self.updateGeometry()
        self.update()
