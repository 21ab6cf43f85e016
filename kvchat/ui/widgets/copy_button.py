"""A button that copies a text."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QPushButton

_SAID_MS = 1500


class CopyButton(QPushButton):
    """Copies something, and says so for a moment."""

    def __init__(self, what: str, text: Callable[[], str]) -> None:
        super().__init__("Copy")
        self.setAccessibleName(f"Copy {what}")
        self._text = text
        self._back = QTimer(self, singleShot=True, interval=_SAID_MS)
        self._back.timeout.connect(lambda: self.setText("Copy"))
        self.clicked.connect(self._copy)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._text())
        self.setText("Copied")
        self._back.start()
