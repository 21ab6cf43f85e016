"""Below a reply: how it ended, its receipt with the timeline, and what can be done with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import QBoxLayout, QFrame, QGridLayout, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from kvchat.chat.record.messages import UNFINISHED, Message, MessageState, Receipt
from kvchat.chat.turn.receipts import Phase, Span, model_of, receipt_details, receipt_line, receipt_sentence, timeline
from kvchat.ui.base.building import beginning, button, column, label, row, styled
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.controls import RoundBar, mix
from kvchat.ui.widgets.elided import ElidedButton, ElidedLabel
from kvchat.ui.widgets.layouts import FlowLayout, height_for_width
from kvchat.words.language import N_, _, listed
from kvchat.words.wording import duration

_LEAST, _GAP, _MARK = 3.0, 1.0, 8  # pixels: the shortest step, between two, and the side of what stands for one


class TimelineBar(RoundBar):
    """The steps side by side, each as wide as it was long; what was before Send is paler."""

    def __init__(self, look: Look, steps: Sequence[Span], width: int = 200, height: int = 10) -> None:
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

    def _colour(self, step: Span) -> QColor:
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

    def __init__(self, look: Look, steps: Sequence[Span]) -> None:
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


_BETWEEN = 6  # pixels between those lines and the buttons
_APART = 10  # pixels between how it ended and what can be done about it

_STATE_WORDS = {
    MessageState.EDITED: N_("You edited this reply."),
    MessageState.STOPPED: N_("You stopped this reply."),
    MessageState.LIMITED: N_("This reply reached its limit."),
    MessageState.INTERRUPTED: N_("This reply was interrupted."),
}


class ReceiptView(QWidget):
    """Shows one receipt."""

    def __init__(self, receipt: Receipt, look: Look, below: QVBoxLayout | None = None) -> None:
        """`below`: where the details go if there is more room than beneath the line."""
        super().__init__()
        self.receipt, self._look = receipt, look
        line = receipt_line(receipt)
        self._text = ("⚠ " if line.fault else "") + line.text
        self.line = ElidedButton(kind="quiet")
        self.line.setProperty("tone", "warn" if line.fault else "")
        self.line.setCursor(Qt.CursorShape.PointingHandCursor)
        self.line.clicked.connect(self.toggle)
        self.details: QFrame | None = None
        self._column = column(self.line, on=self, spacing=4, margins=0)
        self._below = below or self._column
        self._show_arrow(False)

    @property
    def text(self) -> str:
        return self._text

    @property
    def is_open(self) -> bool:
        return self.details is not None and not self.details.isHidden()

    def toggle(self) -> None:
        """Open it, or fold it."""
        if self.details is None:
            self.details = _details(self.receipt, self._look)
            self._below.addWidget(self.details)
            self.details.show()
        else:
            self.details.setVisible(self.details.isHidden())
        self._show_arrow(self.is_open)

    def _show_arrow(self, is_open: bool) -> None:
        self.line.set_text(
            self._text, "▾" if is_open else "◂" if self.isRightToLeft() else "▸", receipt_sentence(self.receipt)
        )
        folded = _("Receipt: {text}, details folded", text=self._text)
        self.line.setAccessibleName(_("Receipt: {text}, details open", text=self._text) if is_open else folded)


class ReplyFooter(QWidget):
    """The quiet lines under one reply that has ended."""

    def __init__(self, message: Message, actions: QWidget, look: Look, *, retry: Any, go_on: Any) -> None:
        """`retry` and `go_on` are called, or emitted, when that is asked for."""
        super().__init__()
        self.receipt: ReceiptView | None = None
        self._go_on: QPushButton | None = None  # where it has not come to its end
        lines, self._column = column(spacing=2), column(on=self, spacing=4, margins=0)
        if message.state in _STATE_WORDS:
            lines.addLayout(self._ending(message.state, retry, go_on))
        if message.receipt is not None and look.numbers:
            self.receipt = ReceiptView(message.receipt, look, self._column)
            lines.addWidget(self.receipt)
        elif message.receipt is not None and message.receipt.model_name:
            model = ElidedLabel("small")
            model.set_text(model_of(message.receipt))
            lines.addWidget(model)
        self._lines, self._actions = lines, actions
        end = Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignRight
        self._row = row((lines, 1), (actions, 0, end), spacing=_BETWEEN, margins=0)
        self._column.addLayout(self._row)

    def offer_to_go_on(self, last: bool) -> None:
        """Whether it is the last message: only then can it go on."""
        if self._go_on is not None:
            self._go_on.setVisible(last)

    def heightForWidth(self, width: int) -> int:
        """As tall as its lines; an opened receipt wraps. Where it is narrow the buttons stand below."""
        directions = QBoxLayout.Direction.LeftToRight, QBoxLayout.Direction.TopToBottom
        beside = self._lines.minimumSize().width() + _BETWEEN + self._actions.minimumSizeHint().width()
        self._row.setDirection(directions[width < beside])
        return height_for_width(self._column, width)

    def _ending(self, state: MessageState, retry: Any, go_on: Any) -> FlowLayout:
        line = FlowLayout(spacing=_APART)
        line.addWidget(label(_(_STATE_WORDS[state]), "small"))
        if state is MessageState.INTERRUPTED:
            line.addWidget(button(_("Try again"), retry, "link", name=_("Try this reply again")))
        if state in UNFINISHED:
            self._go_on = button(_("Continue"), go_on, "link", name=_("Continue this reply"))
            self._go_on.hide()
            line.addWidget(self._go_on)
        return line


def _details(receipt: Receipt, look: Look) -> QFrame:
    frame = styled(QFrame(), "details")
    grid = QGridLayout(frame)
    grid.setHorizontalSpacing(18)  # and so far from the first, empty column begins what is a part of the line above
    grid.setVerticalSpacing(4)
    grid.setContentsMargins(14, 10, 14, 10)
    grid.setColumnStretch(2, 1)
    if steps := timeline(receipt):
        grid.addWidget(Timeline(look, steps), 0, 0, 1, 3)
    for line, (what, how_much) in enumerate(receipt_details(receipt), 1):
        name, indented = label(what.strip(), "small", wraps=True), what.startswith(" ")
        value = label(how_much, "small", wraps=True, selectable=True)
        value.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        for one in (name, value):
            one.setAlignment(beginning() | Qt.AlignmentFlag.AlignTop)  # of several lines beside the first
        grid.addWidget(name, line, int(indented), 1, 1 if indented else 2)
        grid.addWidget(value, line, 2)
    return frame
