"""The page of a conversation: header, transcript or welcome with notices over its end, cards, composer, meter."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import QHBoxLayout, QLabel, QStackedWidget, QVBoxLayout, QWidget

from kvchat.ui.chat.composer import Composer
from kvchat.ui.chat.context_meter import ContextMeter
from kvchat.ui.chat.find_bar import FindBar
from kvchat.ui.chat.header import Header
from kvchat.ui.dialogs.notices import Notices
from kvchat.ui.rendering.page_style import COLUMN_WIDTH
from kvchat.ui.transcript.tail import JUMP_ROOM
from kvchat.ui.transcript.transcript import Transcript
from kvchat.ui.widgets.card import Card

_LEAST_LETTERS, _MOST_LETTERS = 40, 64  # of a notice, about so many to a line
_GAP, _SCROLL_BAR = 10, 10  # pixels


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
        self._notices = notices
        notices.setParent(self)
        notices.changed.connect(self._place_notices)
        for widget in (self._middle, notices):
            widget.installEventFilter(self)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(header)
        column.addLayout(_centred(find_bar, 4))
        column.addWidget(self._middle, 1)
        for card in cards:
            column.addLayout(_centred(card, 10))
        column.addLayout(_centred(composer, 0))
        column.addLayout(_centred(meter, 6))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """The notices stay at the end of the page."""
        moved = watched is self._middle and event.type() in (QEvent.Type.Resize, QEvent.Type.Move, QEvent.Type.Show)
        if moved or (watched is self._notices and event.type() == QEvent.Type.LayoutRequest):
            self._place_notices()
        return super().eventFilter(watched, event)

    def _place_notices(self) -> None:
        """Over the page's lower end, so that nothing moves; beside the button that leads there where that has room."""
        notices, page = self._notices, self._middle.geometry()
        notices.setVisible(bool(notices.on_show))
        letter, beside = notices.fontMetrics().averageCharWidth(), (page.width() - JUMP_ROOM) // 2 - _GAP - _SCROLL_BAR
        fits = beside >= letter * _LEAST_LETTERS
        wide = min(beside if fits else page.width() - 2 * _GAP - _SCROLL_BAR, letter * _MOST_LETTERS)
        high = notices.heightForWidth(wide)
        left, below = page.right() - wide - _SCROLL_BAR - _GAP, _GAP if fits else JUMP_ROOM
        notices.setGeometry(left, page.bottom() - high - below, wide, high)
        notices.raise_()

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
