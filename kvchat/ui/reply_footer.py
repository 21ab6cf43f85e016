"""Below a reply: how it ended, its receipt, and the button that copies it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QToolButton, QVBoxLayout, QWidget

from kvchat.chat.messages import Message, MessageState
from kvchat.ui.icons import icon
from kvchat.ui.receipt_view import ReceiptView
from kvchat.ui.theme import Look

_STATE_WORDS = {
    MessageState.STOPPED: "You stopped this reply.",
    MessageState.INTERRUPTED: "This reply was interrupted.",
}


class ReplyFooter(QWidget):
    """The quiet lines under one reply that has ended."""

    retry_requested = Signal()

    def __init__(self, look: Look, message: Message) -> None:
        super().__init__()
        self.receipt: ReceiptView | None = None
        lines = QVBoxLayout()
        lines.setSpacing(2)
        if message.state in _STATE_WORDS:
            lines.addLayout(self._ending(message.state))
        if message.receipt is not None:
            self.receipt = ReceiptView(message.receipt)
            lines.addWidget(self.receipt)
        copy = QToolButton()
        copy.setProperty("kind", "quiet")
        copy.setIcon(icon("copy", look.theme.muted))
        copy.setToolTip("Copy the reply")
        copy.setAccessibleName("Copy the reply")
        copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(message.content))
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(6)
        row.addLayout(lines, 1)
        row.addWidget(copy, 0, Qt.AlignmentFlag.AlignTop)

    def _ending(self, state: MessageState) -> QHBoxLayout:
        words = QLabel(_STATE_WORDS[state])
        words.setProperty("kind", "small")
        row = QHBoxLayout()
        row.addWidget(words)
        if state is MessageState.INTERRUPTED:
            again = QPushButton("Try again")
            again.setProperty("kind", "link")
            again.setAccessibleName("Try this reply again")
            again.clicked.connect(self.retry_requested)
            row.addWidget(again)
        row.addStretch(1)
        return row
