"""Search in the open chat: the find bar, and highlighting of matches in messages and attachments."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent, QTextCursor
from PySide6.QtWidgets import QFrame, QTextEdit
from shiboken6 import isValid

from kvchat.chat.record.messages import searchable_text
from kvchat.text.language import _
from kvchat.text.search import Term, find_matches, matches_all, parse_query
from kvchat.ui.base.building import label, line_edit, row, styled, tool_button
from kvchat.ui.base.theme import Look
from kvchat.ui.transcript.message_column import MessageColumn
from kvchat.ui.transcript.message_view import MessageView
from kvchat.ui.transcript.parts import Row
from kvchat.ui.widgets.text_search import highlight, make_cursors

if TYPE_CHECKING:
    from kvchat.ui.transcript.transcript import Transcript


class HitMarks(QObject):
    cleared = Signal()

    def __init__(self, page: MessageColumn, look: Look) -> None:
        super().__init__(page)
        self._page, self._look = page, look
        self.terms: tuple[Term, ...] = ()
        self._current: tuple[QTextEdit, int] | None = None  # text and position of the current hit
        look.changed.connect(self._restyle)  # unlike a lambda, disconnected with this object

    def show_terms(self, terms: tuple[Term, ...]) -> None:
        self.terms, self._current = terms, None
        for shown in self._page.shown_rows:
            if shown.text is not None:
                self._mark(shown.text)
        for view in self._page.views.values():
            self.mark_attachments(view)

    def clear(self) -> None:
        if self.terms:
            self.show_terms(())
        self.cleared.emit()

    def keep_marked(self, text: QTextEdit) -> None:
        text.textChanged.connect(lambda: self._mark(text))
        self._mark(text)

    def mark_attachments(self, view: MessageView) -> None:
        if view.chips is not None:
            view.chips.show_terms(self.terms)

    def open_matching_attachment(self, message_id: str) -> None:
        view = self._page.views.get(message_id)
        if view is not None and view.chips is not None:
            view.chips.open_first_match()

    def hits_in_message(self, message_id: str) -> list[tuple[Row, int]]:
        """Return the row and the number within it of each hit in the text of a message that is parsed."""
        view = self._page.views.get(message_id)
        return [
            (hit_row, number)
            for hit_row in (view.rows if view else ())
            for number in range(len(find_matches(hit_row.part.text, self.terms)))
        ]

    def set_current(self, text: QTextEdit, number: int) -> QTextCursor:
        """Emphasize a text's hit and return its place, or the start of the text if it does not have so many."""
        before, cursors = self._current, [*self._hit_cursors(text)[number:], QTextCursor(text.document())]
        self._current = (text, cursors[0].selectionStart())
        if before is not None and isValid(before[0]):
            self._mark(before[0])
        self._mark(text)
        return cursors[0]

    def _restyle(self) -> None:
        self.show_terms(self.terms)

    def _hit_cursors(self, text: QTextEdit) -> list[QTextCursor]:
        content = text.toPlainText()
        return make_cursors(text, content, find_matches(content, self.terms))

    def _mark(self, text: QTextEdit) -> None:
        if self.terms or text.property("marked"):
            cursors = self._hit_cursors(text)
            current = self._current[1] if self._current and self._current[0] is text else None
            highlight(text, cursors, self._look.theme, current)
            text.setProperty("marked", bool(cursors))


class FindBar(QFrame):
    closed = Signal()

    def __init__(self, look: Look, page: Transcript) -> None:
        super().__init__()
        self._page = page
        self._hits: list[str] = []  # message ids, top to bottom
        self._hit = 0  # index of the current message
        self._mark, self._mark_count = 0, 0  # index of the current hit within that message, and their number
        styled(self, "notice")
        self.setAccessibleName(_("Find in this chat"))
        self.field, self.position_label = line_edit(_("Find in this chat"), _("Find in this chat")), label(kind="small")
        self.field.textEdited.connect(lambda: self._search(None))
        previous, tip, icon = partial(self.step, -1), _("Previous match (Shift+F3)"), look.icon("chevron-up")
        self.previous_button = tool_button(_("Previous match"), previous, tip=tip, icon=icon)
        following, tip, icon = partial(self.step, 1), _("Next match (F3)"), look.icon("chevron-down")
        self.next_button = tool_button(_("Next match"), following, tip=tip, icon=icon)
        tip = _("Close (Esc)")
        self.close_button = tool_button(_("Close"), self.close_bar, tip=tip, icon=look.icon("close"))
        buttons = self.previous_button, self.next_button, self.close_button
        row((self.field, 1), self.position_label, *buttons, on=self, spacing=4, margins=(10, 6, 6, 6))
        page.marks.cleared.connect(self.hide)
        self.hide()

    def start_search(self, query: str | None = None, message_id: str | None = None) -> None:
        self.show()
        if query is None:
            self.field.setFocus()
            self.field.selectAll()
        else:
            self.field.setText(query)
        self._search(message_id)

    def step(self, offset: int) -> None:
        if not self._hits:
            return
        self._mark_count = len(self._page.marks.hits_in_message(self._hits[self._hit]))  # it may have grown
        self._mark += offset
        if not 0 <= self._mark < self._mark_count:
            self._hit = (self._hit + offset) % len(self._hits)
            self._mark = 0 if offset > 0 else -1
        self._show_hit()

    def close_bar(self) -> None:
        self._page.marks.clear()
        self.closed.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.step(-1 if event.modifiers() & Qt.KeyboardModifier.ShiftModifier else 1)
        else:
            super().keyPressEvent(event)

    def _search(self, message_id: str | None) -> None:
        terms = parse_query(self.field.text())
        self._hits = [m.id for m in self._page.messages if terms and matches_all(searchable_text(m), terms)]
        self._hit = self._hits.index(message_id) if message_id in self._hits else len(self._hits) - 1
        self._page.marks.show_terms(terms)
        self._mark = 0
        self._show_hit()

    def _show_hit(self) -> None:
        hits = len(self._hits)
        self._mark_count = self._page.show_message(self._hits[self._hit], self._mark) if hits else 0
        if self._mark < 0:
            self._mark = max(self._mark_count - 1, 0)
        place = _("Not found") if self.field.text().strip() else ""
        if hits:
            place = _("{number} of {count}", number=self._hit + 1, count=hits)
        if self._mark_count > 1:
            spot = _("{number} of {count}", number=self._mark + 1, count=self._mark_count)
            place = _("{position} in message {message}", position=spot, message=place) if hits > 1 else spot
        self.position_label.setText(place)
        self.position_label.setToolTip(_("Messages that contain all these words") if hits else "")
        for button in (self.previous_button, self.next_button):
            button.setEnabled(hits > 1 or self._mark_count > 1)
