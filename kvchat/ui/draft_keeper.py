"""Drafts outlive the window: what is written is on disk soon after, and again in the composer the next time."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, QTimer

from kvchat.chat.drafts import NOT_BEGUN, Drafts
from kvchat.ui.composer import Composer
from kvchat.ui.tasks import Wishes

_KEEP_MS = 700  # what is written is gathered so long before it is put on disk


class DraftKeeper(QObject):
    """Holds every conversation's draft; that of the open one, which `current` names, is in the composer."""

    def __init__(
        self, drafts: Drafts, composer: Composer, wishes: Wishes, current: Callable[[], str | None], parent: QObject
    ) -> None:
        super().__init__(parent)
        self._drafts, self._composer, self._wishes, self._current = drafts, composer, wishes, current
        self._texts: dict[str, str] = {}
        self._unkept: dict[str, str] = {}
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(_KEEP_MS)
        self._timer.timeout.connect(lambda: wishes.start(self.keep()))
        composer.editor.textChanged.connect(lambda: self.set(current(), composer.draft))

    async def load(self) -> None:
        """Read what was left the last time. Raises StorageFailed."""
        self._texts = await self._drafts.all() | self._texts

    def of(self, conversation_id: str | None) -> str:
        """A conversation's draft; None: that of the one that has not begun."""
        return self._texts.get(conversation_id or NOT_BEGUN, "")

    def set(self, conversation_id: str | None, text: str) -> None:
        """Change a draft, wherever it is on show."""
        key = conversation_id or NOT_BEGUN
        if text != self._texts.get(key, ""):
            self._texts[key] = self._unkept[key] = text
            self._timer.start()

    def show(self) -> None:
        """Put the open conversation's draft into the composer."""
        if self._composer.draft != self.of(self._current()):
            self._composer.set_draft(self.of(self._current()))

    async def keep(self) -> None:
        """Put on disk what is not there yet. Raises StorageFailed."""
        self._timer.stop()
        unkept, self._unkept = self._unkept, {}
        if unkept:
            await self._drafts.keep(unkept)
