"""Attachments in windows of their own: a picture, and what the model is given of a document."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QKeySequence, QPixmap, QShortcut, QTextCursor
from PySide6.QtWidgets import (
    QDialog,
    QFrame,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QScrollArea,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from kvchat.chat.record.messages import Attachment
from kvchat.ui.attachments.pictures import decoded
from kvchat.ui.base.icons import icon
from kvchat.ui.base.text_cursors import cursors_at, mark
from kvchat.ui.base.theme import Look, code_font
from kvchat.words.folding import Term, spans
from kvchat.words.safe_text import calm, shown_document

_MOST_MARKS = 1000
_AROUND, _SMALLEST, _LARGE = QSize(32, 32), QSize(320, 240), QSize(960, 680)


class AttachmentView(QDialog):
    """The text of a document, at the first of the terms; F3 goes on to the next."""

    def __init__(self, look: Look, attachment: Attachment, terms: Sequence[Term], parent: QWidget) -> None:
        super().__init__(parent)
        self._look = look
        self.setWindowTitle(calm(attachment.name))
        words = shown_document(attachment.name, attachment.text)
        self.text = QPlainTextEdit(words)
        self.text.setReadOnly(True)
        self.text.setProperty("kind", "log")
        self.text.setFont(code_font(look.type.mono, look.type.small))
        self.text.setAccessibleName(f"Text of {calm(attachment.name)}")
        column = QVBoxLayout(self)
        column.addWidget(self.text)
        self.place = QLabel()
        self.place.setProperty("kind", "small")
        self._hits = cursors_at(self.text, words, spans(words, terms)[:_MOST_MARKS])
        self._at = 0
        if self._hits:
            column.addLayout(self._steps())
            mark(self.text, self._hits, look.theme)
            self._show_place()
        self.resize(720, 520)
        self.finished.connect(self.deleteLater)

    def step(self, by: int) -> None:
        """Go to another hit; after the last comes the first."""
        self._at = (self._at + by) % len(self._hits)
        self._show_place()

    def _steps(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.addStretch(1)
        row.addWidget(self.place)
        several = len(self._hits) > 1
        for words, keys, picture, by in (
            ("Previous place found", "Shift+F3", "chevron-up", -1),
            ("Next place found", "F3", "chevron-down", 1),
        ):
            button = QToolButton()
            button.setIcon(icon(picture, self._look.theme.muted))
            button.setAccessibleName(words)
            button.setToolTip(f"{words} ({keys})")
            button.setEnabled(several)
            button.clicked.connect(lambda _=False, by=by: self.step(by))
            shortcut = QShortcut(QKeySequence(keys), self, context=Qt.ShortcutContext.WindowShortcut)
            shortcut.activated.connect(lambda by=by: self.step(by))
            row.addWidget(button)
        return row

    def _show_place(self) -> None:
        self.place.setText(f"{self._at + 1} of {len(self._hits)}")
        at = QTextCursor(self._hits[self._at])
        at.setPosition(at.selectionStart())  # not selected: the mark's colour is to be seen
        self.text.setTextCursor(at)
        self.text.centerCursor()


class PictureView(QDialog):
    """A picture in a window of its own."""

    def __init__(self, attachment: Attachment, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle(attachment.name)
        self.picture = QLabel("This picture cannot be shown.")
        self.picture.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.picture.setAccessibleName(f"Picture {attachment.name}")
        ratio = self.devicePixelRatioF()
        image = decoded(attachment.data, _LARGE * ratio)
        if image is not None:
            image.setDevicePixelRatio(ratio)
            self.picture.setPixmap(QPixmap.fromImage(image))
        area = QScrollArea()
        area.setWidget(self.picture)
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        column = QVBoxLayout(self)
        column.addWidget(area)
        self.resize((self.picture.sizeHint() + _AROUND).expandedTo(_SMALLEST))
        self.finished.connect(self.deleteLater)
