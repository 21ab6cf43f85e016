"""A button that copies a text."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QPushButton

from kvchat.words.language import _

_SAID_MS = 1500


class CopyButton(QPushButton):
    """Copies something, and says so for a moment."""

    def __init__(self, what: str, text: Callable[[], str]) -> None:
        super().__init__(_("Copy"))
        self.setAccessibleName(_("Copy {what}", what=what))
        self._text = text
        self._back = QTimer(self, singleShot=True, interval=_SAID_MS)
        self._back.timeout.connect(lambda: self.setText(_("Copy")))
        self.clicked.connect(self._copy)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._text())
        self.setText(_("Copied"))
        self._back.start()
