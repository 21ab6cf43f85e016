"""The page: a calm, centred column of messages that follows the reply while the reader is at its end."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QScrollArea, QVBoxLayout, QWidget

from kvchat.chat.messages import Message, Role
from kvchat.errors import KvchatError
from kvchat.ui.cards import FailureCard, PendingLine, UnansweredLine
from kvchat.ui.icons import icon
from kvchat.ui.markdown import MarkdownReader
from kvchat.ui.message_view import ReplyView, UserView
from kvchat.ui.scroll_ground import ScrollGround
from kvchat.ui.theme import Look

COLUMN_WIDTH = 760
_FIRST_SHOWN = 60  # messages drawn at once; older ones on request, so that long conversations open at once
_AT_END = 40  # pixels from the end that still count as being there


class Transcript(QScrollArea):
    """Shows one conversation's messages."""

    retry_requested = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("transcript")
        self.setAccessibleName("Conversation")
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._look = look
        self._reader = MarkdownReader(look.theme, look.type.mono)
        self._messages: list[Message] = []
        self._shown_from = 0
        self.views: dict[str, UserView | ReplyView] = {}
        self._follow = True
        self._build_column()
        self._build_tail()
        self._jump = self._jump_button()
        bar = self.verticalScrollBar()
        bar.valueChanged.connect(self._note_position)
        bar.rangeChanged.connect(self._follow_end)
        look.changed.connect(self._restyle)

    def show_conversation(self, messages: Sequence[Message]) -> None:
        """Show another conversation, from its end."""
        for view in self.views.values():
            view.setParent(None)
            view.deleteLater()
        self.views = {}
        self._messages = []
        self._follow = True
        self._shown_from = max(0, len(messages) - _FIRST_SHOWN)
        self.update_messages(messages)

    def update_messages(self, messages: Sequence[Message]) -> None:
        """The same conversation, some messages new or changed."""
        self._messages = [m for m in messages if m.role is not Role.SYSTEM]
        self._shown_from = min(self._shown_from, len(self._messages))
        shown = self._messages[self._shown_from :]
        wanted = {m.id for m in shown}
        for gone in [id for id in self.views if id not in wanted]:
            view = self.views.pop(gone)
            view.setParent(None)
            view.deleteLater()
        for position, message in enumerate(shown):
            self._show_message(position, message)
        self.earlier.setVisible(self._shown_from > 0)

    def set_live(self, message_id: str, text: str, thinking: str) -> None:
        """The running reply's text so far; ignored when that message is not on this page."""
        view = self.views.get(message_id)
        if isinstance(view, ReplyView):
            view.set_live(text, thinking)

    def show_pending(self, words: str) -> None:
        """What happens before the first token; empty hides it."""
        self.pending.set_words(words)

    def show_failure(self, error: KvchatError | None) -> None:
        """The card of a turn that failed, or none."""
        self.failure.show_error(error)

    def show_unanswered(self, unanswered: bool) -> None:
        """The quiet offer to answer a last message that has no reply."""
        self.unanswered.setVisible(unanswered)

    def scroll_to_end(self) -> None:
        """Follow the reply again."""
        self._follow = True
        self._follow_end()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fit bubbles to the column and put the jump button where it belongs."""
        super().resizeEvent(event)
        for view in self.views.values():
            self._fit(view)
        self._place_jump()

    def _show_message(self, position: int, message: Message) -> None:
        view = self.views.get(message.id)
        if view is None:
            view = self._new_view(message)
            self.views[message.id] = view
            self._rows.insertWidget(position, view)
            self._fit(view)
        elif isinstance(view, ReplyView) and view.message != message:
            view.show_message(message)

    def _new_view(self, message: Message) -> UserView | ReplyView:
        if message.role is Role.USER:
            return UserView(self._look, message)
        view = ReplyView(self._look, self._reader, message)
        view.retry_requested.connect(self.retry_requested)
        return view

    def _fit(self, view: UserView | ReplyView) -> None:
        if isinstance(view, UserView):
            view.set_column_width(min(COLUMN_WIDTH, self.viewport().width() - 48))

    def _build_column(self) -> None:
        ground = ScrollGround("transcriptColumn")
        across = QHBoxLayout(ground)
        self._across = across
        column = QWidget()
        column.setMaximumWidth(COLUMN_WIDTH)
        across.addStretch(1)
        across.addWidget(column, 1000)
        across.addStretch(1)
        self._column = QVBoxLayout(column)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(22)
        self.earlier = QPushButton("Show earlier messages")
        self.earlier.setProperty("kind", "quiet")
        self.earlier.setAccessibleName("Show earlier messages")
        self.earlier.clicked.connect(self._show_earlier)
        self.earlier.hide()
        self._column.addWidget(self.earlier, 0, Qt.AlignmentFlag.AlignHCenter)
        self._rows = QVBoxLayout()
        self._rows.setSpacing(22)
        self._column.addLayout(self._rows)
        self.setWidget(ground)

    def _build_tail(self) -> None:
        self.pending = PendingLine()
        self.failure = FailureCard()
        self.failure.retry_requested.connect(self.retry_requested)
        self.unanswered = UnansweredLine()
        self.unanswered.retry_requested.connect(self.retry_requested)
        for widget in (self.pending, self.failure, self.unanswered):
            widget.hide()
            self._column.addWidget(widget)
        self._column.addStretch(1)

    def _jump_button(self) -> QPushButton:
        button = QPushButton(self)
        button.setProperty("kind", "jump")
        button.setFixedSize(32, 32)
        button.setIconSize(QSize(18, 18))
        button.setIcon(icon("arrow-down", self._look.theme.text))
        button.setAccessibleName("Go to the newest message")
        button.clicked.connect(self.scroll_to_end)
        button.hide()
        return button

    def _place_jump(self) -> None:
        self._jump.move((self.width() - self._jump.width()) // 2, self.height() - self._jump.height() - 14)

    def _show_earlier(self) -> None:
        bar = self.verticalScrollBar()
        from_end = bar.maximum() - bar.value()
        self._follow = False
        self._shown_from = max(0, self._shown_from - _FIRST_SHOWN)
        self.update_messages(self._messages)
        QTimer.singleShot(0, self, lambda: bar.setValue(bar.maximum() - from_end))

    def _note_position(self, value: int) -> None:
        self._follow = value >= self.verticalScrollBar().maximum() - _AT_END
        self._jump.setVisible(not self._follow)

    def _follow_end(self) -> None:
        bar = self.verticalScrollBar()
        free = 0 if bar.maximum() > 0 else bar.sizeHint().width()  # the column must not jump when the bar comes
        self._across.setContentsMargins(24, 20, 24 + free, 28)
        if self._follow:
            bar.setValue(bar.maximum())
        self._jump.setVisible(not self._follow and bar.maximum() > 0)

    def _restyle(self) -> None:
        self._reader = MarkdownReader(self._look.theme, self._look.type.mono)
        self._jump.setIcon(icon("arrow-down", self._look.theme.text))
        for view in self.views.values():
            if isinstance(view, ReplyView):
                view.restyle(self._reader)
