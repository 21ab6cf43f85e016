"""Finding words in the open chat: a line above it, and from one place that has them to the next."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QLineEdit, QToolButton, QWidget

from kvchat.chat.record.prompt import searched_text
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.transcript.transcript import Transcript
from kvchat.words.folding import has_terms, terms_of


class FindBar(QFrame):
    """What is looked for, which of the messages that have it is in sight, and the buttons to the others."""

    closed = Signal()

    def __init__(self, look: Look, page: Transcript, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look, self._page = look, page
        self._hits: list[str] = []  # ids of the messages, from above
        self._at = 0
        self._spot, self._spots = 0, 0  # which of the marks of that message, and how many it has
        self.setProperty("kind", "notice")
        self.setAccessibleName("Find in this chat")
        self.field = QLineEdit()
        self.field.setPlaceholderText("Find in this chat")
        self.field.setAccessibleName("Find in this chat")
        self.field.textEdited.connect(lambda: self._look_for(None))
        self.place = QLabel()
        self.place.setProperty("kind", "small")
        row = QHBoxLayout(self)
        row.setContentsMargins(10, 6, 6, 6)
        row.setSpacing(4)
        row.addWidget(self.field, 1)
        row.addWidget(self.place)
        self.previous_button = self._button("Previous place found", "Shift+F3", lambda: self.step(-1))
        self.next_button = self._button("Next place found", "F3", lambda: self.step(1))
        self.close_button = self._button("Close", "Esc", self.close_bar)
        for button in (self.previous_button, self.next_button, self.close_button):
            row.addWidget(button)
        page.marks.cleared.connect(self.hide)
        look.changed.connect(self._restyle)
        self._restyle()
        self.hide()

    def begin(self, query: str | None = None, message_id: str | None = None) -> None:
        """Look for the query, first in this message; without one, let the user write it."""
        self.show()
        if query is None:
            self.field.setFocus()
            self.field.selectAll()
        else:
            self.field.setText(query)
        self._look_for(message_id)

    def show_document(self, message_id: str) -> None:
        """Open what has the words of what is attached to a message."""
        self._page.marks.open_document(message_id)

    def step(self, by: int) -> None:
        """Go to another place that has the words; after the last comes the first."""
        if not self._hits:
            return
        self._spots = len(self._page.marks.in_message(self._hits[self._at]))  # it may be there in full only now
        self._spot += by
        if not 0 <= self._spot < self._spots:
            self._at = (self._at + by) % len(self._hits)
            self._spot = 0 if by > 0 else -1
        self._show_place()

    def close_bar(self) -> None:
        """Look for nothing any more."""
        self._page.marks.clear()
        self.closed.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter goes on, Shift+Enter back."""
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.step(-1 if event.modifiers() & Qt.KeyboardModifier.ShiftModifier else 1)
        else:
            super().keyPressEvent(event)

    def _look_for(self, message_id: str | None) -> None:
        """The last message that has all words comes first, unless another is named."""
        terms = terms_of(self.field.text())
        self._hits = [m.id for m in self._page.messages if terms and has_terms(searched_text(m), terms)]
        self._at = self._hits.index(message_id) if message_id in self._hits else len(self._hits) - 1
        self._page.marks.show_terms(terms)
        self._spot = 0
        self._show_place()

    def _show_place(self) -> None:
        found = len(self._hits)
        words = f"{self._at + 1} of {found}" if found else "Not found" if self.field.text().strip() else ""
        self._spots = self._page.show_message(self._hits[self._at], self._spot) if found else 0
        if self._spot < 0:
            self._spot = max(self._spots - 1, 0)
        if self._spots > 1:
            spot = f"{self._spot + 1} of {self._spots}"
            words = f"{spot} in message {words}" if found > 1 else spot
        self.place.setText(words)
        self.place.setToolTip("Messages that have all these words" if found else "")
        for button in (self.previous_button, self.next_button):
            button.setEnabled(found > 1 or self._spots > 1)

    def _button(self, words: str, keys: str, run: object) -> QToolButton:
        button = QToolButton()
        button.setAccessibleName(words)
        button.setToolTip(f"{words} ({keys})")
        button.clicked.connect(run)
        return button

    def _restyle(self) -> None:
        buttons = (self.previous_button, "chevron-up"), (self.next_button, "chevron-down"), (self.close_button, "close")
        for button, name in buttons:
            button.setIcon(icon(name, self._look.theme.muted))
