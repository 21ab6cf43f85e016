"""A field with a button that empties it, and one that searches a text.

Qt's own button stays small beside large letters, and dark in the dark.
"""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QKeySequence, QResizeEvent, QShortcut, QTextCursor
from PySide6.QtWidgets import QLineEdit, QPlainTextEdit, QTextEdit

from kvchat.ui.base.building import label, tool_button
from kvchat.ui.base.icons import icon
from kvchat.ui.base.text_cursors import mark
from kvchat.ui.base.theme import Look
from kvchat.words.language import _

_MOST_MARKED = 500  # places found that are marked; more would only slow it down
_ICON, _AROUND = 12, 10  # pixels at 100 % text: the cross, and what the button has around it


class ClearableField(QLineEdit):
    """The button is there as long as there is anything to empty."""

    def __init__(self, look: Look, name: str, placeholder: str) -> None:
        """`name` is what a screen reader says."""
        super().__init__(placeholderText=placeholder)
        self._look = look
        self.setAccessibleName(name)
        self.empty = tool_button(_("Empty the field"), self._empty, "quiet")
        self.empty.setParent(self)
        self.empty.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # from the keyboard there are shorter ways
        self.empty.setCursor(Qt.CursorShape.ArrowCursor)
        self.empty.hide()
        self.textChanged.connect(lambda text: self.empty.setVisible(bool(text)))
        look.changed.connect(self._restyle)
        self._restyle()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """The button stays at the right edge."""
        super().resizeEvent(event)
        self._place()

    def _empty(self) -> None:
        self.clear()
        self.setFocus()

    def _restyle(self) -> None:
        self.empty.setIcon(icon("close", self._look.theme.muted))
        self.empty.setIconSize(QSize(1, 1) * self._look.px(_ICON))
        self.empty.setFixedSize(QSize(1, 1) * self._look.px(_ICON + _AROUND))
        self.setTextMargins(0, 0, self.empty.width(), 0)
        self._place()

    def _place(self) -> None:
        side = self.empty.width()
        self.empty.move(self.width() - side - 3, (self.height() - side) // 2)


class TextSearch(ClearableField):
    """Marks every place in a text that has the words; Enter goes from one to the next. Ctrl+F leads here."""

    reached = Signal()  # a place; it is selected

    def __init__(self, look: Look, name: str, text: QTextEdit | QPlainTextEdit) -> None:
        """`found`, which says how many there are, is to be placed by its owner."""
        super().__init__(look, name, _("Search"))
        self._text, self.found = text, label(kind="small")
        self.textChanged.connect(self.mark_all)
        self.returnPressed.connect(self.find_next)
        look.changed.connect(self.mark_all)
        QShortcut(QKeySequence(QKeySequence.StandardKey.Find), self).activated.connect(self._begin)

    def find_next(self) -> None:
        """Go to the next place, from the top again after the last."""
        words = self.text()
        if words and not self._text.find(words):
            self._text.moveCursor(QTextCursor.MoveOperation.Start)
            self._text.find(words)
        if self._text.textCursor().hasSelection():
            self.reached.emit()

    def mark_all(self) -> None:
        """Mark every place and count them: the words are others, or the text is."""
        words = self.text()
        found: list[QTextCursor] = []
        cursor = QTextCursor(self._text.document())
        while words and len(found) < _MOST_MARKED:
            cursor = self._text.document().find(words, cursor)
            if cursor.isNull():
                break
            found.append(cursor)
        mark(self._text, found, self._look.theme)
        many = f"{len(found)}{'+' if len(found) == _MOST_MARKED else ''}"
        self.found.setText(_("{many} found", many=many) if words else "")

    def _begin(self) -> None:
        self.setFocus()
        self.selectAll()
