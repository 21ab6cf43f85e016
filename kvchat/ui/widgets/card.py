"""A card: what is going on or failed, and what can be done about it."""

from __future__ import annotations

from PySide6.QtCore import Qt, SignalInstance
from PySide6.QtWidgets import QFrame, QLabel, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from kvchat.ui.widgets.layouts import FlowLayout


class Card(QFrame):
    """Title, detail, advice, and a row of buttons."""

    def __init__(self, kind: str = "card") -> None:
        super().__init__()
        self.setProperty("kind", kind)
        self.title, self.detail, self.advice = QLabel(), QLabel(), QLabel()
        self.title.setProperty("kind", "strong")
        self.advice.setProperty("kind", "muted")
        column = QVBoxLayout(self)
        column.setContentsMargins(18, 14, 18, 14)
        column.setSpacing(5)
        for label in (self.title, self.detail, self.advice):
            label.setWordWrap(True)
            label.setTextFormat(Qt.TextFormat.PlainText)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            label.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
            column.addWidget(label)
        self._button_row = QWidget()
        self.buttons = FlowLayout(self._button_row)
        self.buttons.setContentsMargins(0, 6, 0, 0)
        column.addWidget(self._button_row)

    def say(self, title: str, detail: str, advice: str) -> None:
        """Fill in the words; empty ones take no room."""
        for label, words in ((self.title, title), (self.detail, detail), (self.advice, advice)):
            label.setText(words)
            label.setVisible(bool(words))
        self.setAccessibleName(" ".join(words for words in (title, detail, advice) if words))

    def add_button(self, words: str, kind: str = "", clicked: SignalInstance | None = None) -> QPushButton:
        """One more button, which emits `clicked`."""
        button = QPushButton(words)
        button.setProperty("kind", kind)
        button.setAccessibleName(words)
        if clicked is not None:
            button.clicked.connect(clicked)
        self.buttons.addWidget(button)
        return button
