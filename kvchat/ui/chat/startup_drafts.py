"""Text typed while kvchat starts: on disk from the first key, sent once the window is complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from PySide6.QtCore import QObject

from kvchat.ui.chat.composer import Composer, fits_field

SEPARATOR = "\n\n"  # between messages kept as one draft


class DraftWriter(Protocol):
    """Draft storage before a runtime exists."""

    def keep(self, conversation_id: str, text: str) -> None:
        """Start saving this draft to disk."""

    async def close(self) -> None:
        """Finish pending writes; write nothing more."""


class StartupDrafts(QObject):
    """Drafts typed while kvchat starts, by conversation id; "" for a chat not yet begun."""

    def __init__(self, composer: Composer, parent: QObject) -> None:
        super().__init__(parent)
        self.conversation_id = ""  # of the draft in the composer
        self.is_restored = False  # the last page and draft
        self.sent: list[tuple[str, str]] = []  # conversation id and message that could not be sent yet
        self._composer = composer
        self._drafts: dict[str, str] = {}
        self._saved: dict[str, str] = {}
        self._writer: DraftWriter | None = None
        # Clearing the composer writes what was sent, exactly once.
        composer.sent_early.connect(lambda text: self.sent.append((self.conversation_id, text)))
        composer.editor.textChanged.connect(self._save)

    def restore(self, conversation_id: str, drafts: Mapping[str, str], writer: DraftWriter | None = None) -> None:
        """Insert the page's draft before what was already typed."""
        self.conversation_id, self.is_restored, self._writer = conversation_id, True, writer
        self._drafts = {id: text for id, text in drafts.items() if fits_field(text)}
        self._saved = dict(drafts)
        self.sent = [(conversation_id, text) for _before, text in self.sent]
        if draft := self._drafts.get(conversation_id):
            self._composer.set_draft(draft + self._composer.draft)
        self._save()

    def switch_to(self, conversation_id: str) -> None:
        self._drafts[self.conversation_id], self.conversation_id = self._composer.draft, conversation_id
        self._composer.set_draft(self._drafts.get(conversation_id, ""))

    async def end(self) -> None:
        self._composer.editor.textChanged.disconnect(self._save)
        if self._writer is not None:
            await self._writer.close()

    @property
    def drafts(self) -> dict[str, str]:
        return self._drafts | {self.conversation_id: self._composer.draft}

    def sent_from(self, conversation_id: str) -> list[str]:
        return [text for id, text in self.sent if id == conversation_id]

    def _save(self) -> None:
        if self._writer is None:
            return
        id = self.conversation_id
        text = SEPARATOR.join(filter(None, [*self.sent_from(id), self._composer.draft]))
        before = self._saved.get(id, "")
        if text != before and fits_field(before):  # else it becomes an attachment
            self._saved[id] = text
            self._writer.keep(id, text)
