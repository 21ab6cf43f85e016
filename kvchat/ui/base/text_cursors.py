"""Places in a text of Qt's, which counts UTF-16 units; Python counts characters: an emoji is two here and one there."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtGui import QColor, QTextCursor
from PySide6.QtWidgets import QPlainTextEdit, QTextEdit

from kvchat.ui.base.colors import Theme


def part(text: str, start: int, end: int) -> str:
    """The part of `text` between two positions of Qt's."""
    if text.isascii():
        return text[start:end]
    return text.encode("utf-16-le", "surrogatepass")[2 * start : 2 * end].decode("utf-16-le", "replace")


def position(text: str, index: int) -> int:
    """Qt's position of the character at `index`."""
    return index if text.isascii() else len(text[:index].encode("utf-16-le", "surrogatepass")) // 2


def select(text: QTextEdit, anchor: int, position: int) -> None:
    """Select from one place in a text to another, as far as there are such places."""
    end = text.document().characterCount() - 1
    cursor = text.textCursor()
    cursor.setPosition(min(anchor, end))
    cursor.setPosition(min(position, end), QTextCursor.MoveMode.KeepAnchor)
    text.setTextCursor(cursor)


def cursors_at(text: QTextEdit | QPlainTextEdit, words: str, spans: Iterable[tuple[int, int]]) -> list[QTextCursor]:
    """Cursors over the spans, in characters, of `words`, which is what the text says."""
    cursors = []
    for start, end in spans:
        cursor = QTextCursor(text.document())
        cursor.setPosition(position(words, start))
        cursor.setPosition(position(words, end), QTextCursor.MoveMode.KeepAnchor)
        cursors.append(cursor)
    return cursors


def mark(
    text: QTextEdit | QPlainTextEdit, cursors: Iterable[QTextCursor], theme: Theme, current: int | None = None
) -> None:
    """Mark what was searched for in a text, there and nowhere else; what begins at `current` stands out."""
    marks = []
    for cursor in cursors:
        one = QTextEdit.ExtraSelection()
        one.cursor = cursor
        here = cursor.selectionStart() == current
        one.format.setBackground(QColor(theme.accent if here else theme.mark))
        if here:
            one.format.setForeground(QColor(theme.on_accent))
        marks.append(one)
    text.setExtraSelections(marks)
