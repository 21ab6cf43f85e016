"""A bug, in text that can be copied."""

from __future__ import annotations

import platform

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialog, QHBoxLayout, QLabel, QPlainTextEdit, QPushButton, QVBoxLayout, QWidget

from kvchat import __version__
from kvchat.ui.base.fonts import page_font
from kvchat.ui.base.theme import Look

_REQUEST = (
    "kvchat met something it did not expect. Your chats are safe on disk. "
    "If you report this, please add the text below, after a look at it: it may quote what you wrote."
)


class ReportDialog(QDialog):
    """Shows a traceback, and more of them while it is open."""

    def __init__(self, look: Look, text: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Something unexpected happened")
        self.resize(620, 420)
        words = QLabel(_REQUEST)
        words.setWordWrap(True)
        self.text = QPlainTextEdit(f"{_versions()}\n\n{text}")
        self.text.setProperty("kind", "log")
        self.text.setReadOnly(True)
        self.text.setFont(page_font(look.type.mono, look.type.small))
        self.text.setAccessibleName("Report")
        copy, close = QPushButton("Copy"), QPushButton("Close")
        copy.setAccessibleName("Copy the report")
        copy.setDefault(True)
        copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(self.text.toPlainText()))
        close.setAccessibleName("Close the report")
        close.clicked.connect(self.close)
        buttons = QHBoxLayout()
        buttons.addStretch(1)
        buttons.addWidget(copy)
        buttons.addWidget(close)
        column = QVBoxLayout(self)
        column.setContentsMargins(20, 18, 20, 16)
        column.setSpacing(12)
        column.addWidget(words)
        column.addWidget(self.text, 1)
        column.addLayout(buttons)

    def add(self, text: str) -> None:
        """One more, while this report is open."""
        self.text.appendPlainText("\n" + text)


def _versions() -> str:
    return f"kvchat {__version__}, {platform.platform()}, Python {platform.python_version()}"
