"""Text typed while kvchat starts: on disk from the first key, sent once the window is complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from PySide6.QtCore import QObject

from kvchat.ui.chat.composer import Composer, fits_field

PAUSE = "\n\n"  # between messages kept as one draft


class DraftWriter(Protocol):
    """Draft storage before a runtime exists."""

    def keep(self, conversation_id: str, text: str) -> None:
        """Start saving this draft to disk."""

    async def close(self) -> None:
        """Finish pending writes; write nothing more."""


class FirstWords(QObject):
    """Drafts typed while kvchat starts, by conversation id; "" for a chat not yet begun."""

    def __init__(self, composer: Composer, parent: QObject) -> None:
        super().__init__(parent)
        self.page = ""  # conversation whose draft is in the composer
        self.shown = False  # the last page and draft have been restored
        self.sent: list[tuple[str, str]] = []  # conversation id and message that could not be sent yet
        self._composer = composer
        self._drafts: dict[str, str] = {}
        self._kept: dict[str, str] = {}
        self._writer: DraftWriter | None = None
        composer.held.connect(self._hold)
        composer.editor.textChanged.connect(self._keep)

    def show(self, page: str, drafts: Mapping[str, str], writer: DraftWriter | None = None) -> None:
        """Insert the page's draft before what was already typed."""
        self.page, self.shown, self._writer = page, True, writer
        self._drafts = {where: text for where, text in drafts.items() if fits_field(text)}
        self._kept = dict(drafts)
        self.sent = [(page, text) for _before, text in self.sent]
        if before := self._drafts.get(page):
            self._composer.set_draft(before + self._composer.draft)
        self._keep()

    def turn_to(self, page: str) -> None:
        self._drafts[self.page], self.page = self._composer.draft, page
        self._composer.set_draft(self._drafts.get(page, ""))

    async def end(self) -> None:
        self._composer.editor.textChanged.disconnect(self._keep)
        if self._writer is not None:
            await self._writer.close()

    @property
    def drafts(self) -> dict[str, str]:
        return self._drafts | {self.page: self._composer.draft}

    def sent_from(self, page: str) -> list[str]:
        return [text for where, text in self.sent if where == page]

    def _hold(self, text: str) -> None:
        self.sent.append((self.page, text))  # clearing the composer writes it, exactly once

    def _keep(self) -> None:
        if self._writer is not None:
            draft = [*self.sent_from(self.page), self._composer.draft]
            text = PAUSE.join(filter(None, draft))
            before = self._kept.get(self.page, "")
            if text != before and fits_field(before):  # else it becomes an attachment
                self._kept[self.page] = text
                self._writer.keep(self.page, text)
