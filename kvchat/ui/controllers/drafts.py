"""Drafts outlive the window: what is written and attached is on disk soon after, and in the composer the next time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from PySide6.QtCore import QObject

from kvchat.chat.input.documents import document_of_text
from kvchat.chat.record.drafts import NOT_BEGUN, Draft
from kvchat.chat.record.messages import Attachment
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.ui.chat.message_field import fits_field
from kvchat.ui.controllers.controller import Controller
from kvchat.ui.controllers.views import Views
from kvchat.words.language import N_, _

T = TypeVar("T")

PASTED = N_("Pasted text.txt")
_KEEP_MS = 700  # what is written is gathered so long before it is put on disk
_AGAIN_MS = 10_000  # after so long what could not be put there is tried again


class DraftController(Controller):
    """Holds every conversation's draft; that of the open one, which `current` names, is in the composer."""

    def __init__(self, runtime: Runtime, views: Views, current: Callable[[], str | None], parent: QObject) -> None:
        super().__init__(runtime, views, parent)
        self._drafts, self._composer, self.current = runtime.chat.drafts, views.composer, current
        self._texts: dict[str, str] = {}
        self._attached: dict[str, tuple[Attachment, ...]] = {}
        self._unkept: dict[str, str] = {}
        self._unkept_attached: dict[str, tuple[Attachment, ...]] = {}
        self._sending: Counter[str] = Counter()  # drafts whose words are on their way into the chat
        self._told = False  # that they cannot be put on disk
        self._pause = self._timer(_KEEP_MS, self.keep, self._tell)
        self._again = self._timer(_AGAIN_MS, self.keep, self._tell)

    async def load(self) -> None:
        """Read the stored drafts; from then on changes in the composer are stored. Raises StorageFailed."""
        self._texts, self._attached = await self._drafts.all(), await self._drafts.attached()
        for key in [key for key, text in self._texts.items() if not fits_field(text)]:
            await self._attach_text(key)
        composer, current = self._composer, self.current
        composer.editor.textChanged.connect(lambda: self.set(current(), composer.draft))
        composer.chips.changed.connect(lambda: self.attach(current(), composer.chips.attachments))

    async def _attach_text(self, key: str) -> None:
        """Turn a draft too long for the composer to lay out in time into an attachment."""
        text = self._texts.pop(key)
        attachment = await asyncio.to_thread(document_of_text, _(PASTED), text)
        self._unkept[key] = ""
        self._attached[key] = self._unkept_attached[key] = (*self._attached.get(key, ()), attachment)
        self._pause.start()

    def of(self, conversation_id: str | None) -> str:
        return self._texts.get(conversation_id or NOT_BEGUN, "")

    def attached_to(self, conversation_id: str | None) -> tuple[Attachment, ...]:
        return self._attached.get(conversation_id or NOT_BEGUN, ())

    def set(self, conversation_id: str | None, text: str) -> None:
        key = conversation_id or NOT_BEGUN
        if text != self._texts.get(key, ""):
            self._texts[key] = self._unkept[key] = text
            self._pause.start()

    def attach(self, conversation_id: str | None, attachments: tuple[Attachment, ...]) -> None:
        key = conversation_id or NOT_BEGUN
        if attachments != self._attached.get(key, ()):
            self._attached[key] = self._unkept_attached[key] = attachments
            self._pause.start()

    def put(self, conversation_id: str | None, attachments: tuple[Attachment, ...]) -> None:
        """Change the attachments of a draft, and show them if it is open."""
        self.attach(conversation_id, attachments)
        self.show()

    def sending(self, conversation_id: str | None) -> None:
        """Leave this draft on disk as it is until `sent`: its words are on their way into the chat."""
        self._sending[conversation_id or NOT_BEGUN] += 1

    def left(self, *conversation_ids: str) -> tuple[Draft, ...]:
        return tuple(Draft(id, self.of(id), self.attached_to(id)) for id in conversation_ids)

    def put_before(self, conversation_id: str | None, text: str, attachments: tuple[Attachment, ...]) -> None:
        self.set(conversation_id, "\n".join(filter(None, (text, self.of(conversation_id)))))
        self.attach(conversation_id, (*attachments, *self.attached_to(conversation_id)))
        self.show()

    def move(self, source: str, target: str) -> None:
        self.set(target, self.of(source))
        self.attach(target, self.attached_to(source))
        self.set(source, "")
        self.attach(source, ())

    def sent(self, conversation_id: str | None) -> None:
        """The words are in the chat, or back in the composer."""
        self._sending[conversation_id or NOT_BEGUN] -= 1
        self._pause.start()

    def show(self) -> None:
        current = self.current()
        if self._composer.draft != self.of(current):
            self._composer.set_draft(self.of(current))
        if self._composer.chips.attachments != self.attached_to(current):
            self._composer.set_attachments(self.attached_to(current))

    async def keep(self) -> None:
        """Write what is not on disk yet. Raises StorageFailed; it is then tried again."""
        self._pause.stop()
        texts, attached = self._not_sending(self._unkept), self._not_sending(self._unkept_attached)
        if not texts and not attached:
            return
        await self._drafts.keep(texts, attached)
        self._told = False
        _forget(self._unkept, texts)
        _forget(self._unkept_attached, attached)

    def _tell(self, error: KvchatError) -> None:
        self._again.start()
        if not self._told:
            self._told = True
            self._views.notices.show_error(error)

    def _not_sending(self, drafts: dict[str, T]) -> dict[str, T]:
        return {key: draft for key, draft in drafts.items() if self._sending[key] <= 0}


def _forget(unkept: dict[str, T], kept: dict[str, T]) -> None:
    """Drop entries that did not change while they were written."""
    for key, draft in kept.items():
        if unkept.get(key) is draft:
            del unkept[key]
