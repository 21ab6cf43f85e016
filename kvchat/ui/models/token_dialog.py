"""Asks for the access token for Hugging Face, and says where it is kept."""

from __future__ import annotations

import asyncio

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QLineEdit, QPushButton, QVBoxLayout, QWidget

from kvchat.library.remote.hub_token import AccessToken, TokenPlace, TokenStore
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.panel import Panel, fit_height

_WORDS = (
    "Some models are open only to those who have accepted their terms. Make a token with the right to read on "
    "huggingface.co/settings/tokens and paste it here. It goes to Hugging Face alone."
)


_LETTERS = 72  # wide


class TokenDialog(Panel):
    """One field. The token is not shown again."""

    saved = Signal()

    def __init__(self, store: TokenStore, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(look, runner, parent)
        self._store = store
        self.setWindowTitle("Access token")
        self.setAccessibleName("Access token for Hugging Face")
        self.field, self.place = QLineEdit(), QLabel()
        self.field.setEchoMode(QLineEdit.EchoMode.Password)
        self.field.setPlaceholderText("hf_…")
        self.field.setAccessibleName("Access token")
        self.field.returnPressed.connect(self._save)
        self.forget, self.save, leave = QPushButton("Forget it"), QPushButton("Save"), QPushButton("Close")
        self.save.setProperty("kind", "primary")
        self.forget.setProperty("kind", "danger")
        for button, run in ((self.forget, self._forget), (self.save, self._save), (leave, self.close)):
            button.setAccessibleName(button.text())
            button.clicked.connect(run)
        words = QLabel(_WORDS)
        for label in (words, self.place):
            label.setProperty("kind", "muted")
            label.setWordWrap(True)
            label.setTextFormat(Qt.TextFormat.PlainText)
        row = QHBoxLayout()
        row.addWidget(self.forget)
        row.addStretch(1)
        row.addWidget(leave)
        row.addWidget(self.save)
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 18)
        column.setSpacing(10)
        for widget in (self.notices, words, self.field, self.place):
            column.addWidget(widget)
        column.addLayout(row)

    def showEvent(self, event: QShowEvent) -> None:
        """Say what is kept already."""
        super().showEvent(event)
        fit_height(self, _LETTERS)
        self.field.setFocus()
        self.run(self._load())

    def _save(self) -> None:
        self.run(self._keep(self.field.text()))

    def _forget(self) -> None:
        self.run(self._drop())

    async def _load(self) -> None:
        self._show(await asyncio.to_thread(self._store.load))

    async def _keep(self, value: str) -> None:
        await asyncio.to_thread(self._store.save, value)
        self.field.clear()
        await self._load()
        self.saved.emit()

    async def _drop(self) -> None:
        await asyncio.to_thread(self._store.forget)
        await self._load()

    def _show(self, token: AccessToken | None) -> None:
        self.forget.setVisible(token is not None and token.place is not TokenPlace.ELSEWHERE)
        if token is None:
            self.place.setText("No token is kept.")
        elif token.place is TokenPlace.ELSEWHERE:
            self.place.setText(f"One was found in {token.place.value}; it is used unless you give another.")
        else:
            self.place.setText(f"One is kept in {token.place.value}.")
        fit_height(self, _LETTERS)
