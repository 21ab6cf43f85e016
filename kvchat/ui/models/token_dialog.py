"""Asks for the access token for Hugging Face, and says where it is kept."""

from __future__ import annotations

import asyncio

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QLineEdit, QWidget

from kvchat.library.remote.hub_token import ELSEWHERE, AccessToken, TokenStore
from kvchat.ui.base.building import STRETCH, button, column, label, line_edit, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import fit_height
from kvchat.ui.dialogs.panel import Panel
from kvchat.words.language import N_, _

_WORDS = N_(
    "Some models are open only to those who have accepted their terms. Make a token with the right to read on "
    "huggingface.co/settings/tokens and paste it here. It goes to Hugging Face alone."
)
_LETTERS = 72  # wide


class TokenDialog(Panel):
    """One field. The token is not shown again."""

    saved = Signal()

    def __init__(self, store: TokenStore, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(look, runner, _("Access token for Hugging Face"), parent)
        self._store = store
        self.field, self.place = line_edit(_("Access token"), "hf_…"), label(kind="muted", wraps=True)
        self.field.setEchoMode(QLineEdit.EchoMode.Password)
        self.field.returnPressed.connect(self._save)
        self.forget = button(_("Forget it"), lambda: self.run(self._drop()), "danger")
        self.save = button(_("Save"), self._save, "primary")
        below = row(self.forget, STRETCH, button(_("Close"), self.close), self.save)
        parts = self.notices, label(_(_WORDS), "muted", wraps=True), self.field, self.place, below
        column(*parts, on=self, spacing=10, margins=(24, 20, 24, 18))

    def showEvent(self, event: QShowEvent) -> None:
        """Say what is kept already."""
        super().showEvent(event)
        fit_height(self, _LETTERS)
        self.field.setFocus()
        self.run(self._load())

    def _save(self) -> None:
        self.run(self._keep(self.field.text()))

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
        self.forget.setVisible(token is not None and token.place != ELSEWHERE)
        if token is None:
            self.place.setText(_("No token is kept."))
        elif token.place == ELSEWHERE:
            self.place.setText(_("One was found in {place}; it is used unless you give another.", place=_(token.place)))
        else:
            self.place.setText(_("One is kept in {place}.", place=_(token.place)))
        fit_height(self, _LETTERS)
