"""Search and highlighting in texts. Qt counts positions in UTF-16 units: an emoji counts as 2 but is 1 in Python."""

from collections.abc import Iterable

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QColor, QKeySequence, QResizeEvent, QShortcut, QTextCharFormat, QTextCursor, QTextLayout
from PySide6.QtWidgets import QLineEdit, QPlainTextEdit, QTextEdit

from kvchat.text.language import _
from kvchat.ui.base.building import label, tool_button
from kvchat.ui.base.theme import Look, Theme

_MAX_MARKED = 500  # highlighted matches; more would be slow
_ICON, _MARGIN = 12, 10  # pixels at 100 % text: the cross and the button's margin


def utf16_slice(text: str, start: int, end: int) -> str:
    if text.isascii():
        return text[start:end]
    return text.encode("utf-16-le", "surrogatepass")[2 * start : 2 * end].decode("utf-16-le", "replace")


def utf16_position(text: str, index: int) -> int:
    """Return the position in UTF-16 units, as used by Qt, of `text[index]`."""
    return index if text.isascii() else len(text[:index].encode("utf-16-le", "surrogatepass")) // 2


def format_range(text: str, start: int, end: int, format: QTextCharFormat) -> QTextLayout.FormatRange:
    result = QTextLayout.FormatRange()
    result.start, result.format = utf16_position(text, start), format
    result.length = utf16_position(text, end) - result.start
    return result


def select_range(text: QTextEdit, anchor: int, position: int) -> None:
    end = text.document().characterCount() - 1
    cursor = text.textCursor()
    cursor.setPosition(min(anchor, end))
    cursor.setPosition(min(position, end), QTextCursor.MoveMode.KeepAnchor)
    text.setTextCursor(cursor)


def make_cursors(text: QTextEdit | QPlainTextEdit, content: str, spans: Iterable[tuple[int, int]]) -> list[QTextCursor]:
    """Return a cursor for each span, which is a start and an end in `content`, the document's text."""
    cursors = []
    for start, end in spans:
        cursor = QTextCursor(text.document())
        cursor.setPosition(utf16_position(content, start))
        cursor.setPosition(utf16_position(content, end), QTextCursor.MoveMode.KeepAnchor)
        cursors.append(cursor)
    return cursors


def highlight(
    text: QTextEdit | QPlainTextEdit, cursors: Iterable[QTextCursor], theme: Theme, current: int | None = None
) -> None:
    """Highlight the places of `cursors` and no others, and emphasize the one that starts at Qt's position `current`."""
    marks = []
    for cursor in cursors:
        selection = QTextEdit.ExtraSelection()
        selection.cursor = cursor
        is_current = cursor.selectionStart() == current
        selection.format.setBackground(QColor(theme.accent if is_current else theme.mark))
        if is_current:
            selection.format.setForeground(QColor(theme.on_accent))
        marks.append(selection)
    text.setExtraSelections(marks)


class ClearableField(QLineEdit):
    """Field with a Clear button. Qt's own button does not scale with the text and is dark in dark themes."""

    def __init__(self, look: Look, name: str, placeholder: str) -> None:
        super().__init__(placeholderText=placeholder)
        self._look = look
        self.setAccessibleName(name)
        self.clear_button = tool_button(_("Clear the field"), self.clear, "quiet", icon=look.icon("close"))
        self.clear_button.clicked.connect(self.setFocus)
        self.clear_button.setParent(self)
        self.clear_button.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # keyboard users have shorter ways
        self.clear_button.setCursor(Qt.CursorShape.ArrowCursor)
        self.clear_button.hide()
        self.textChanged.connect(lambda text: self.clear_button.setVisible(bool(text)))
        look.changed.connect(self._restyle)
        self._restyle()

    def resizeEvent(self, event: QResizeEvent | None) -> None:
        if event is not None:
            super().resizeEvent(event)
        side = self.clear_button.width()
        self.clear_button.move(self.width() - side - 3, (self.height() - side) // 2)

    def _restyle(self) -> None:
        self.clear_button.setIconSize(QSize(1, 1) * self._look.px(_ICON))
        self.clear_button.setFixedSize(QSize(1, 1) * self._look.px(_ICON + _MARGIN))
        self.setTextMargins(0, 0, self.clear_button.width(), 0)
        self.resizeEvent(None)


class TextSearch(ClearableField):
    """Field that highlights all matches in a text. Enter goes to the next match; Ctrl+F focuses the field."""

    match_selected = Signal()

    def __init__(self, look: Look, name: str, text: QTextEdit | QPlainTextEdit) -> None:
        super().__init__(look, name, _("Search"))
        self._text, self.count = text, label(kind="small")
        self.textChanged.connect(self.mark_all)
        self.returnPressed.connect(self.find_next)
        look.changed.connect(self.mark_all)
        shortcut = QShortcut(QKeySequence(QKeySequence.StandardKey.Find), self)
        shortcut.activated.connect(self.setFocus)
        shortcut.activated.connect(self.selectAll)

    def find_next(self) -> None:
        query = self.text()
        if query and not self._text.find(query):
            self._text.moveCursor(QTextCursor.MoveOperation.Start)
            self._text.find(query)
        if self._text.textCursor().hasSelection():
            self.match_selected.emit()

    def mark_all(self) -> None:
        query = self.text()
        hits: list[QTextCursor] = []
        cursor = QTextCursor(self._text.document())
        while query and len(hits) < _MAX_MARKED:
            cursor = self._text.document().find(query, cursor)
            if cursor.isNull():
                break
            hits.append(cursor)
        highlight(self._text, hits, self._look.theme)
        many = f"{len(hits)}{'+' if len(hits) == _MAX_MARKED else ''}"
        self.count.setText(_("{count} found", count=many) if query else "")
