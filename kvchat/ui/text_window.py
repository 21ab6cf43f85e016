"""A window around a long text: read it, copy it, close it."""

from __future__ import annotations

from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialog, QHBoxLayout, QLabel, QPlainTextEdit, QPushButton, QVBoxLayout, QWidget

from kvchat.ui.text_page import page_font
from kvchat.ui.theme import Look


class TextWindow(QDialog):
    """Shows `text` in a fixed-width face. `noun` is what it is called, as in "Copy the report"."""

    def __init__(self, look: Look, title: str, noun: str, *, words: str = "", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(title)
        self.text = QPlainTextEdit()
        self.text.setProperty("kind", "log")
        self.text.setReadOnly(True)
        self.text.setFont(page_font(look.type.mono, look.type.small))
        self.text.setAccessibleName(noun[:1].upper() + noun[1:])
        self.copy, self.leave = QPushButton("Copy"), QPushButton("Close")
        self.copy.setAccessibleName(f"Copy the {noun}")
        self.copy.setAutoDefault(False)
        self.copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(self.text.toPlainText()))
        self.leave.setAccessibleName(f"Close the {noun}")
        self.leave.clicked.connect(self.close)
        buttons = QHBoxLayout()
        buttons.addStretch(1)
        buttons.addWidget(self.copy)
        buttons.addWidget(self.leave)
        column = QVBoxLayout(self)
        column.setContentsMargins(20, 18, 20, 16)
        column.setSpacing(12)
        if words:
            above = QLabel(words)
            above.setWordWrap(True)
            column.addWidget(above)
        column.addWidget(self.text, 1)
        column.addLayout(buttons)
