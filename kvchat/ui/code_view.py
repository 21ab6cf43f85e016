"""A fenced code block: its language, its copy button, its colours; wide lines scroll sideways."""

from __future__ import annotations

import math

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import (
    QColor,
    QGuiApplication,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextOption,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QSizePolicy, QTextEdit, QVBoxLayout, QWidget

from kvchat.ui.highlight import coloured
from kvchat.ui.icons import icon
from kvchat.ui.text_page import code_font
from kvchat.ui.theme import Look

_COPIED_MS = 1500
_LINE_HEIGHT = 128.0  # per cent


class _CodeText(QTextEdit):
    """The text itself, as tall as its lines."""

    def __init__(self) -> None:
        super().__init__()
        self.setReadOnly(True)
        self.setAccessibleName("Code")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWordWrapMode(QTextOption.WrapMode.NoWrap)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.document().setDocumentMargin(0)
        self.document().documentLayout().documentSizeChanged.connect(self._fit)
        self.horizontalScrollBar().rangeChanged.connect(self._fit)

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Sideways is ours, up and down is the transcript's."""
        if abs(event.angleDelta().x()) > abs(event.angleDelta().y()):
            super().wheelEvent(event)
        else:
            event.ignore()

    def _fit(self) -> None:
        bar = self.horizontalScrollBar()
        extra = bar.sizeHint().height() if bar.maximum() > 0 else 0
        height = math.ceil(self.document().size().height()) + extra
        if height != self.height():
            self.setFixedHeight(height)


class CodeView(QFrame):
    """A card around code."""

    def __init__(self, look: Look, language: str, text: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "code")
        self._look = look
        self.language = language
        self.text = ""
        self._body = _CodeText()
        self._body.setFont(code_font(look.type.mono, look.type.body - 0.75))
        self._label = QLabel(language or "code")
        self._label.setProperty("kind", "small")
        self.copy_button = QPushButton("Copy")
        self.copy_button.setProperty("kind", "quiet")
        self.copy_button.setAccessibleName("Copy this code")
        self.copy_button.setCursor(Qt.CursorShape.PointingHandCursor)
        self.copy_button.clicked.connect(self._copy)
        self._copied = QTimer(self)
        self._copied.setSingleShot(True)
        self._copied.setInterval(_COPIED_MS)
        self._copied.timeout.connect(lambda: self._show_copied(False))
        self._show_copied(False)
        top = QHBoxLayout()
        top.setContentsMargins(0, 0, 0, 0)
        top.addWidget(self._label)
        top.addStretch(1)
        top.addWidget(self.copy_button)
        column = QVBoxLayout(self)
        column.setContentsMargins(14, 6, 8, 9)
        column.setSpacing(4)
        column.addLayout(top)
        column.addWidget(self._body)
        self.show_code(language, text)

    def show_code(self, language: str, text: str) -> None:
        """Show this code instead."""
        if (language, text) == (self.language, self.text):
            return
        self.language, self.text = language, text
        self._label.setText(language or "code")
        self._paint_text()

    def restyle(self) -> None:
        """The theme changed."""
        self._paint_text()
        self._show_copied(False)

    def _paint_text(self) -> None:
        self._body.clear()
        cursor = QTextCursor(self._body.document())
        cursor.beginEditBlock()
        lines = QTextBlockFormat()
        lines.setLineHeight(_LINE_HEIGHT, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        cursor.setBlockFormat(lines)
        form = QTextCharFormat()
        for piece, colour in coloured(self.text, self.language, self._look.theme):
            form.setForeground(QColor(colour))
            cursor.insertText(piece, form)
        cursor.endEditBlock()
        self._body.moveCursor(QTextCursor.MoveOperation.Start)  # else the view follows it to the longest line's end

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.text)
        self._show_copied(True)
        self._copied.start()

    def _show_copied(self, done: bool) -> None:
        theme = self._look.theme
        self.copy_button.setText("Copied" if done else "Copy")
        self.copy_button.setIcon(icon("check" if done else "copy", theme.accent if done else theme.muted))
