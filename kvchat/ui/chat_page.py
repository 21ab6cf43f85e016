"""The page of a conversation: header, notices, transcript or welcome, cards, composer, context meter."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QLabel, QStackedWidget, QVBoxLayout, QWidget

from kvchat.ui.cards import Card
from kvchat.ui.composer import Composer
from kvchat.ui.context_meter import ContextMeter
from kvchat.ui.find_bar import FindBar
from kvchat.ui.header import Header
from kvchat.ui.message_column import COLUMN_WIDTH
from kvchat.ui.notices import Notices
from kvchat.ui.transcript import Transcript


class ChatPage(QWidget):
    """Puts the parts below each other, as wide as the transcript's column."""

    def __init__(
        self,
        header: Header,
        notices: Notices,
        find_bar: FindBar,
        transcript: Transcript,
        cards: Sequence[Card],
        composer: Composer,
        meter: ContextMeter,
    ) -> None:
        super().__init__()
        self.setObjectName("page")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._transcript, self._welcome = transcript, _welcome()
        self._middle = QStackedWidget()
        self._middle.addWidget(self._welcome)
        self._middle.addWidget(transcript)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(header)
        column.addLayout(_centred(notices, 4))
        column.addLayout(_centred(find_bar, 4))
        column.addWidget(self._middle, 1)
        for card in cards:
            column.addLayout(_centred(card, 10))
        column.addLayout(_centred(composer, 0))
        column.addLayout(_centred(meter, 6))

    def show_messages(self, has_messages: bool) -> None:
        """The transcript, or the welcome where there is nothing to read yet."""
        self._middle.setCurrentWidget(self._transcript if has_messages else self._welcome)


def _centred(widget: QWidget, below: int) -> QHBoxLayout:
    """A row that keeps `widget` as wide as the transcript's column."""
    widget.setMaximumWidth(COLUMN_WIDTH + 32)
    row = QHBoxLayout()
    row.setContentsMargins(16, 0, 26, below)  # the transcript's scroll bar takes 10
    row.addStretch(1)
    row.addWidget(widget, 1000)
    row.addStretch(1)
    return row


def _welcome() -> QWidget:
    page = QWidget()
    title = QLabel("What is on your mind?")
    title.setProperty("kind", "hero")
    words = QLabel("Come back to it any day: kvchat keeps what the model has already read.")
    words.setProperty("kind", "muted")
    words.setWordWrap(True)
    column = QVBoxLayout(page)
    column.setContentsMargins(24, 24, 24, 24)
    column.setSpacing(8)
    column.addStretch(2)
    for label in (title, words):
        label.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        column.addWidget(label)
    column.addStretch(3)
    return page
