"""What stands below the last message: what goes on, what failed, what can be done about it."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtWidgets import QPushButton, QVBoxLayout, QWidget

from kvchat.ui.widgets.cards import FailureCard, PendingLine, UnansweredLine


class TranscriptTail(QWidget):
    """Takes no room while there is nothing to say."""

    retry_requested = Signal()
    first_requested = Signal()
    changed = Signal()  # it may be taller or shorter

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.pending = PendingLine()
        self.first = QPushButton("Answer this chat first")
        self.first.setProperty("kind", "link")
        self.failure = FailureCard()
        self.unanswered = UnansweredLine()
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(22)
        for widget in (self.pending, self.first, self.failure, self.unanswered):
            widget.hide()
            self._column.addWidget(widget)
        self._column.setAlignment(self.first, Qt.AlignmentFlag.AlignLeft)
        self.first.clicked.connect(self.first_requested)
        self.failure.retry_requested.connect(self.retry_requested)
        self.unanswered.retry_requested.connect(self.retry_requested)

    def event(self, event: QEvent) -> bool:
        """Notice that what it says takes another height."""
        done = super().event(event)
        if event.type() == QEvent.Type.LayoutRequest:
            self.changed.emit()
        return done

    def needed_height(self, width: int) -> int:
        """How tall it is at that width."""
        if all(widget.isHidden() for widget in (self.pending, self.failure, self.unanswered)):
            return 0
        if self._column.hasHeightForWidth():
            return self._column.totalHeightForWidth(width)
        return self._column.totalSizeHint().height()
