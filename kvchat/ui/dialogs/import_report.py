"""What an import could not take in, line by line, to read and to copy."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialog, QHBoxLayout, QLabel, QPlainTextEdit, QPushButton, QVBoxLayout, QWidget

from kvchat.ui.base.fonts import page_font
from kvchat.ui.base.theme import Look


class ImportReportDialog(QDialog):
    """What was imported, what was known, and each problem."""

    def __init__(self, look: Look, title: str, known: str, problems: Sequence[str], parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Import")
        self.setAccessibleName(title)
        self.resize(620, 380)
        heading = QLabel(title)
        heading.setProperty("kind", "title")
        failed = "One was not taken in:" if len(problems) == 1 else f"{len(problems):,} were not taken in:"
        words = QLabel(" ".join(part for part in (known, failed) if part))
        words.setWordWrap(True)
        self.text = QPlainTextEdit("\n".join(problems))
        self.text.setProperty("kind", "log")
        self.text.setReadOnly(True)
        self.text.setFont(page_font(look.type.family, look.type.base))
        self.text.setAccessibleName("What was not taken in")
        self.copy, close = QPushButton("Copy"), QPushButton("Close")
        self.copy.setAccessibleName("Copy the problems")
        self.copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(self.text.toPlainText()))
        close.setAccessibleName("Close the report")
        close.setDefault(True)
        close.clicked.connect(self.close)
        buttons = QHBoxLayout()
        buttons.addStretch(1)
        for button in (self.copy, close):
            buttons.addWidget(button)
        column = QVBoxLayout(self)
        column.setContentsMargins(20, 18, 20, 16)
        column.setSpacing(12)
        for widget in (heading, words):
            column.addWidget(widget)
        column.addWidget(self.text, 1)
        column.addLayout(buttons)
