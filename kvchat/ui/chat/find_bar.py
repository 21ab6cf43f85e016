"""Finding words in the open chat: a line above it, and from one place that has them to the next."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QWidget

from kvchat.chat.record.messages import searched_text
from kvchat.ui.base.building import label, line_edit, row, styled, tool_button
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.transcript.transcript import Transcript
from kvchat.words.folding import has_terms, terms_of
from kvchat.words.language import _


class FindBar(QFrame):
    """What is looked for, which of the messages that have it is in sight, and the buttons to the others."""

    closed = Signal()

    def __init__(self, look: Look, page: Transcript, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look, self._page = look, page
        self._hits: list[str] = []  # ids of the messages, from above
        self._at = 0
        self._spot, self._spots = 0, 0  # which of the marks of that message, and how many it has
        styled(self, "notice")
        self.setAccessibleName(_("Find in this chat"))
        self.field, self.place = line_edit(_("Find in this chat"), _("Find in this chat")), label(kind="small")
        self.field.textEdited.connect(lambda: self._look_for(None))
        step, words = self.step, _("place found")
        self.previous_button = tool_button(
            _("Previous {words}", words=words),
            partial(step, -1),
            tip=_("Previous {words} (Shift+F3)", words=words),
        )
        self.next_button = tool_button(
            _("Next {words}", words=words), partial(step, 1), tip=_("Next {words} (F3)", words=words)
        )
        self.close_button = tool_button(_("Close"), self.close_bar, tip=_("Close (Esc)"))
        buttons = self.previous_button, self.next_button, self.close_button
        row((self.field, 1), self.place, *buttons, on=self, spacing=4, margins=(10, 6, 6, 6))
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
        self._page.marks.clear()
        self.closed.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
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
        words = (
            _("{at} of {found}", at=self._at + 1, found=found)
            if found
            else _("Not found")
            if self.field.text().strip()
            else ""
        )
        self._spots = self._page.show_message(self._hits[self._at], self._spot) if found else 0
        if self._spot < 0:
            self._spot = max(self._spots - 1, 0)
        if self._spots > 1:
            spot = _("{spot} of {spots}", spot=self._spot + 1, spots=self._spots)
            words = _("{spot} in message {words}", spot=spot, words=words) if found > 1 else spot
        self.place.setText(words)
        self.place.setToolTip(_("Messages with all these words") if found else "")
        for button in (self.previous_button, self.next_button):
            button.setEnabled(found > 1 or self._spots > 1)

    def _restyle(self) -> None:
        buttons = (self.previous_button, "chevron-up"), (self.next_button, "chevron-down"), (self.close_button, "close")
        for button, name in buttons:
            button.setIcon(icon(name, self._look.theme.muted))
