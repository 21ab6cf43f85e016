"""Below a reply: how it ended, its receipt, and what can be done with it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, SignalInstance
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from kvchat.chat.record.messages import Message, MessageState
from kvchat.ui.messages.receipt_view import ReceiptView
from kvchat.ui.widgets.layouts import FlowLayout

_APART = 10  # pixels between how it ended and what can be done about it

_STATE_WORDS = {
    MessageState.STOPPED: "You stopped this reply.",
    MessageState.LIMITED: "This reply reached its limit.",
    MessageState.INTERRUPTED: "This reply was interrupted.",
}


class ReplyFooter(QWidget):
    """The quiet lines under one reply that has ended."""

    retry_requested = Signal()
    go_on_requested = Signal()

    def __init__(self, message: Message, actions: QWidget, *, numbers: bool) -> None:
        super().__init__()
        self.receipt: ReceiptView | None = None
        self._go_on = _link("Continue", "Continue this reply", self.go_on_requested)
        self._go_on.hide()
        lines = QVBoxLayout()
        lines.setSpacing(2)
        if message.state in _STATE_WORDS:
            lines.addLayout(self._ending(message.state))
        if message.receipt is not None and numbers:
            self.receipt = ReceiptView(message.receipt)
            lines.addWidget(self.receipt)
        self._row = QHBoxLayout(self)
        self._row.setContentsMargins(0, 0, 0, 0)
        self._row.setSpacing(6)
        self._unfinished = message.state in _STATE_WORDS
        self._row.addLayout(lines, 1)
        self._row.addWidget(actions, 0, Qt.AlignmentFlag.AlignTop)

    def offer_to_go_on(self, last: bool) -> None:
        """Whether it is the last message: only then can it go on."""
        self._go_on.setVisible(last and self._unfinished)

    def heightForWidth(self, width: int) -> int:
        """As tall as its lines; an opened receipt wraps."""
        row = self._row
        return row.totalHeightForWidth(width) if row.hasHeightForWidth() else row.totalSizeHint().height()

    def _ending(self, state: MessageState) -> FlowLayout:
        words = QLabel(_STATE_WORDS[state])
        words.setProperty("kind", "small")
        row = FlowLayout(spacing=_APART)
        row.addWidget(words)
        if state is MessageState.INTERRUPTED:
            row.addWidget(_link("Try again", "Try this reply again", self.retry_requested))
        row.addWidget(self._go_on)
        return row


def _link(text: str, name: str, clicked: SignalInstance) -> QPushButton:
    button = QPushButton(text)
    button.setProperty("kind", "link")
    button.setAccessibleName(name)
    button.clicked.connect(clicked)
    return button
