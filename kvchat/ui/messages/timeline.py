"""A receipt's timeline: one bar from what was done before Send to what was done after the reply, and what is what."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import QSizePolicy, QWidget

from kvchat.chat.turn.receipts import Phase, Step
from kvchat.ui.base.building import column, label, row
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.layouts import FlowLayout
from kvchat.ui.widgets.round_bar import RoundBar, mix
from kvchat.words.language import _, listed
from kvchat.words.wording import duration

_LEAST, _GAP, _MARK = 3.0, 1.0, 8  # pixels: the shortest step, between two, and the side of what stands for one


class TimelineBar(RoundBar):
    """The steps side by side, each as wide as it was long; what was before Send is paler."""

    def __init__(self, look: Look, steps: Sequence[Step], width: int = 200, height: int = 10) -> None:
        super().__init__(look, width, height)
        self._steps = steps

    def paint_inside(self, painter: QPainter, box: QRectF) -> None:
        """One after the other."""
        room = box.width() - (_LEAST + _GAP) * len(self._steps)
        whole, left = sum(step.ms for step in self._steps) or 1.0, box.left()
        for number, step in enumerate(self._steps):
            width = _LEAST + max(room, 0.0) * step.ms / whole
            end = box.right() if number == len(self._steps) - 1 else left + width
            painter.fillRect(QRectF(left, box.top(), end - left, box.height()), self._colour(step))
            left = end + _GAP

    def _colour(self, step: Step) -> QColor:
        theme = self._look.theme
        strong = {
            Phase.LOADING: theme.code_name,
            Phase.READING: theme.warn,
            Phase.FIRST_TOKEN: theme.code_keyword,
            Phase.WRITING: theme.accent,
            Phase.SETTLING: theme.muted,
            Phase.SAVING: theme.muted,
        }[step.phase]
        paler = step.before_send or step.phase is Phase.SAVING
        return mix(strong, theme.code, 0.5) if paler else QColor(strong)


class Timeline(QWidget):
    """The bar and, below it, its legend."""

    def __init__(self, look: Look, steps: Sequence[Step]) -> None:
        super().__init__()
        self.words = [f"{step.words} {duration(step.ms)}" for step in steps]
        legend = FlowLayout(spacing=3)
        for step, words in zip(steps, self.words, strict=True):
            mark = TimelineBar(look, [step], _MARK, _MARK)
            mark.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
            one = QWidget()
            row(
                (mark, 0, Qt.AlignmentFlag.AlignVCenter), label(words, "small"), on=one, spacing=5, margins=(0, 0, 9, 0)
            )
            legend.addWidget(one)
        column(TimelineBar(look, steps), legend, on=self, spacing=6, margins=(0, 0, 0, 6))
        self.setAccessibleName(_("Timeline: {steps}", steps=listed(self.words)))
