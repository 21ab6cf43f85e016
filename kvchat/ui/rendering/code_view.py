"""A fenced code block: its language, its copy button, its colours; wide lines scroll sideways."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QFrame, QLabel, QPushButton, QWidget

from kvchat.ui.base.icons import icon
from kvchat.ui.rendering.code_text import CodeText
from kvchat.ui.rendering.page_style import PageStyle
from kvchat.words.safe_text import calm

_COPIED_MS = 1500
_LEFT, _TOP, _RIGHT, _BOTTOM, _GAP = 14, 6, 8, 9, 4  # pixels around the parts


class CodeView(QFrame):
    """A card around code."""

    def __init__(self, style: PageStyle, language: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "code")
        self._theme = style.theme
        self.language = language
        self.text = ""
        self.body = CodeText(style, language)
        self.body.setParent(self)
        self._label = QLabel(calm(language)[:40] or "code", self)
        self._label.setTextFormat(Qt.TextFormat.PlainText)
        self._label.setProperty("kind", "small")
        self.copy_button = QPushButton("Copy", self)
        self.copy_button.setProperty("kind", "quiet")
        self.copy_button.setAccessibleName("Copy this code")
        self.copy_button.setCursor(Qt.CursorShape.PointingHandCursor)
        self.copy_button.clicked.connect(self._copy)
        self._copied = QTimer(self)
        self._copied.setSingleShot(True)
        self._copied.setInterval(_COPIED_MS)
        self._copied.timeout.connect(lambda: self._show_copied(False))
        self._show_copied(False)

    def show_code(self, text: str, *, ended: bool) -> None:
        """Show this code; cheap if it goes on where the last one ended. `ended`: no more will come."""
        self.text = text
        self.body.show_text(text, ended=ended)

    def heightForWidth(self, width: int) -> int:
        """How tall the card is at that width."""
        return _TOP + self._head() + _GAP + self.body.natural_height(width - _LEFT - _RIGHT) + _BOTTOM

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Put the parts in their places."""
        width, head = self.width() - _LEFT - _RIGHT, self._head()
        button = self.copy_button.sizeHint().width()
        self._label.setGeometry(_LEFT, _TOP, max(width - button, 0), head)
        self.copy_button.setGeometry(_LEFT + width - button, _TOP, button, head)
        top = _TOP + head + _GAP
        self.body.setGeometry(_LEFT, top, width, self.height() - top - _BOTTOM)

    def _head(self) -> int:
        return max(self._label.sizeHint().height(), self.copy_button.sizeHint().height())

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.text)
        self._show_copied(True)
        self._copied.start()

    def _show_copied(self, done: bool) -> None:
        self.copy_button.setText("Copied" if done else "Copy")
        self.copy_button.setIcon(icon("check" if done else "copy", self._theme.accent if done else self._theme.muted))
        self.resizeEvent(QResizeEvent(self.size(), self.size()))
