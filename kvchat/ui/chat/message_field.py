"""The text field of a composer: how much it holds, what is pasted and dropped in it, and which keys it answers to."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QMimeData, Qt, Signal
from PySide6.QtGui import QImage, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QPlainTextEdit

LONG_PASTE = 4000  # characters; from so many on a paste may as well be a document
ATTACHED_FROM = 20_000  # characters; what is longer is attached unless the user wants it in the message
# What the field can lay out at each key without holding up the window: 50,000 characters without a space took 70 ms.
MOST_TEXT, MOST_LINE = 100_000, 8_000


class MessageField(QPlainTextEdit):
    """A plain text field that sends on Enter."""

    send_pressed = Signal()
    files_given = Signal(list)  # of paths
    picture_given = Signal(QImage)
    long_pasted = Signal(str)
    too_long_pasted = Signal(str)  # and not inserted
    up_from_empty = Signal()
    slash_typed = Signal()  # as the first character
    rewrapped = Signal()  # its lines are broken anew, which Qt does not tell

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        return bool(local_files(source)) or source.hasImage() or super().canInsertFromMimeData(source)

    def insertFromMimeData(self, source: QMimeData) -> None:
        """Pasted or dropped: files are attached, text is inserted, and a long one may be attached instead."""
        files = local_files(source)
        if files:
            self.files_given.emit(files)
        elif source.hasImage() and not source.hasText():
            self.picture_given.emit(QImage(source.imageData()))
        elif len(text := source.text()) > ATTACHED_FROM or not self.holds(text):
            self.too_long_pasted.emit(text)
        else:
            super().insertFromMimeData(source)
            if len(text) >= LONG_PASTE:
                self.long_pasted.emit(text)

    def holds(self, more: str) -> bool:
        line = self.textCursor().block().length()
        return self.document().characterCount() + len(more) <= MOST_TEXT and line + _longest_line(more) <= MOST_LINE

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self.rewrapped.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter sends; with Shift (or Alt) it is a new line. Up in an empty field goes back to the last question."""
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and not event.modifiers() & (Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.AltModifier):
            self.send_pressed.emit()
        elif event.key() == Qt.Key.Key_Up and self.document().isEmpty():
            self.up_from_empty.emit()
        else:
            super().keyPressEvent(event)
            if event.text() == "/" and self.document().characterCount() == 2:  # with the paragraph's end
                self.slash_typed.emit()


def fits_field(text: str) -> bool:
    return len(text) < MOST_TEXT and _longest_line(text) < MOST_LINE


def _longest_line(text: str) -> int:
    """Return its length; of a text longer than `MOST_TEXT`, which is too long anyway, its whole length."""
    return max(map(len, text.splitlines()), default=0) if len(text) <= MOST_TEXT else len(text)


def local_files(data: QMimeData) -> list[Path]:
    return [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()]
