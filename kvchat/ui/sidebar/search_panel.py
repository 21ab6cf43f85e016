"""The search field of the sidebar, and the list of what was found in the place of the chats."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QAction, QKeyEvent
from PySide6.QtWidgets import QLabel, QLineEdit, QStackedWidget, QToolButton, QVBoxLayout, QWidget

from kvchat.chat.search.search import Found
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.sidebar.search_results import SearchResults


class _Field(QLineEdit):
    """Esc empties it, Down goes to what was found, Enter opens the first."""

    def __init__(self, results: SearchResults) -> None:
        super().__init__()
        self._results = results

    def event(self, event: QEvent) -> bool:
        """Esc is meant for the field here, not for what it does elsewhere in the window."""
        asked = event.type() == QEvent.Type.ShortcutOverride and isinstance(event, QKeyEvent)
        if asked and self.text() and event.key() == Qt.Key.Key_Escape:  # type: ignore[attr-defined]
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """What is not text."""
        if event.key() == Qt.Key.Key_Escape:
            self.clear()
        elif event.key() == Qt.Key.Key_Down and self._results.chats:
            self._results.setFocus()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self._results.chats:
            self._results.chosen.emit(self._results.chats[0])
        else:
            super().keyPressEvent(event)


class SearchPanel(QWidget):
    """A field above `below`; while something is looked for, what was found stands in its place."""

    def __init__(self, look: Look, below: QWidget) -> None:
        super().__init__()
        self._look = look
        self.results = SearchResults(look)
        self.field = _Field(self.results)
        self.field.setPlaceholderText("Search all chats")
        self.field.setAccessibleName("Search all chats")
        self.field.setToolTip("Ctrl+Shift+F")
        self.field.setClearButtonEnabled(True)
        self._sign = QAction(self)
        self.field.addAction(self._sign, QLineEdit.ActionPosition.LeadingPosition)
        for button, words in zip(
            self.field.findChildren(QToolButton), ("Empty the search field", "Search"), strict=True
        ):
            button.setAccessibleName(words)
        self.words = QLabel()
        self.words.setProperty("kind", "small")
        self.words.setWordWrap(True)
        self.words.setContentsMargins(10, 2, 10, 0)
        found = QWidget()
        inside = QVBoxLayout(found)
        inside.setContentsMargins(0, 0, 0, 0)
        inside.addWidget(self.words)
        inside.addWidget(self.results, 1)
        self.pages = QStackedWidget()
        self.pages.addWidget(below)
        self.pages.addWidget(found)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(6)
        column.addWidget(self.field)
        column.addWidget(self.pages, 1)
        look.changed.connect(self._restyle)
        self._restyle()

    def show_found(self, found: Found) -> None:
        """Show what was found."""
        self.results.show_chats(found.chats)
        unfinished = "" if found.complete else "Older messages are still being read."
        self.words.setText(" ".join(filter(None, ("" if found.chats else "Nothing found.", unfinished))))
        self.words.setVisible(bool(self.words.text()))
        self.pages.setCurrentIndex(1)

    def show_none(self) -> None:
        """Show the chats again."""
        self.results.show_chats(())
        self.pages.setCurrentIndex(0)

    def focus(self) -> None:
        """Let the user write what to look for."""
        self.field.setFocus()
        self.field.selectAll()

    def _restyle(self) -> None:
        self._sign.setIcon(icon("search", self._look.theme.muted))
