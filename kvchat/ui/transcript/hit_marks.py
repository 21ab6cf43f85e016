"""Marks what was searched for on the page and in its documents, in what is there and what is still to come."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QTextEdit
from shiboken6 import isValid

from kvchat.ui.base.theme import Look
from kvchat.ui.messages.message_view import MessageView
from kvchat.ui.transcript.message_column import MessageColumn
from kvchat.ui.widgets.text_search import cursors_at, mark
from kvchat.words.folding import Term, spans


class HitMarks(QObject):
    """The marked terms of one page."""

    cleared = Signal()

    def __init__(self, page: MessageColumn, look: Look) -> None:
        super().__init__(page)
        self._page, self._look = page, look
        self._terms: tuple[Term, ...] = ()
        self._current: tuple[QTextEdit, int] | None = None  # where the reader was led: the text, and the position in it
        look.changed.connect(self._show_again)  # no lambda, which would outlive the page

    @property
    def are_shown(self) -> bool:
        return bool(self._terms)

    def show_terms(self, terms: tuple[Term, ...]) -> None:
        self._terms, self._current = terms, None
        for view in self._page.views.values():
            for text in view.texts:
                self._mark(text)
            self.watch_documents(view)

    def clear(self) -> None:
        if self._terms:
            self.show_terms(())
        self.cleared.emit()

    def watch(self, text: QTextEdit) -> None:
        text.textChanged.connect(lambda: self._mark(text))
        self._mark(text)

    def watch_documents(self, view: MessageView) -> None:
        if view.chips is not None:
            view.chips.show_terms(self._terms)

    def open_document(self, message_id: str) -> None:
        """Show the first of a message's documents that has the terms, at the first of them."""
        view = self._page.views.get(message_id)
        if view is not None and view.chips is not None:
            view.chips.open_found()

    def in_message(self, message_id: str) -> list[tuple[QTextEdit, QTextCursor]]:
        view = self._page.views.get(message_id)
        return [(text, cursor) for text in (view.texts if view else ()) for cursor in self._cursors(text)]

    def lead_to(self, text: QTextEdit, cursor: QTextCursor) -> None:
        before, self._current = self._current, (text, cursor.selectionStart())
        if before is not None and isValid(before[0]):
            self._mark(before[0])
        self._mark(text)

    def _show_again(self) -> None:
        self.show_terms(self._terms)

    def _cursors(self, text: QTextEdit) -> list[QTextCursor]:
        words = text.toPlainText()
        return cursors_at(text, words, spans(words, self._terms))

    def _mark(self, text: QTextEdit) -> None:
        if self._terms or text.property("marked"):
            cursors = self._cursors(text)
            current = self._current[1] if self._current and self._current[0] is text else None
            mark(text, cursors, self._look.theme, current)
            text.setProperty("marked", bool(cursors))
