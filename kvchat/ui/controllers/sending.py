"""Messages from a composer to their chat: drafts kept on disk, sent at once or queued."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QObject, Signal

from kvchat.chat.attachments import document_from_text
from kvchat.chat.events import Event, MessagesChanged, QuestionNotStored, ReplyFinished
from kvchat.chat.options import NewChat
from kvchat.chat.record.database import Database, Draft
from kvchat.chat.record.messages import NEW_CHAT_ID, QUEUED_PREFIX, Attachment, MessageState
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.text.language import N_, _
from kvchat.ui.chat.composer import Composer, fits_field
from kvchat.ui.chat.first_words import PAUSE
from kvchat.ui.controllers.views import Controller, Views

PASTED = N_("Pasted text.txt")
_KEEP_MS = 700  # delay that groups edits before saving
_AGAIN_MS = 10_000  # retry failed saves after this delay


class DraftController(Controller):
    """Drafts of all conversations; the open one's (see `current`) is in the composer."""

    def __init__(self, runtime: Runtime, views: Views, current: Callable[[], str | None], parent: QObject) -> None:
        super().__init__(runtime, views, parent)
        self._composer, self.current = views.composer, current
        self._run_in_database = runtime.chat.turn_context.run_in_database
        self._texts: dict[str, str] = {}
        self._attached: dict[str, tuple[Attachment, ...]] = {}
        self._unkept: dict[str, str] = {}
        self._unkept_attached: dict[str, tuple[Attachment, ...]] = {}
        self._sending: Counter[str] = Counter()  # drafts being sent to the chat
        self._told = False  # save failure was reported
        self._pause = self._timer(_KEEP_MS, self.keep, self._show_save_error)
        self._again = self._timer(_AGAIN_MS, self.keep, self._show_save_error)

    async def load(self) -> None:
        """Read the stored drafts; store changes in the composer from then on. Raises StorageFailed.

        A draft too long for the composer to lay out in time becomes an attachment.
        """
        self._texts = await self._run_in_database(Database.draft_texts)
        self._attached = await self._run_in_database(Database.draft_attachments)
        for key in [key for key, text in self._texts.items() if not fits_field(text)]:
            document = await asyncio.to_thread(document_from_text, _(PASTED), self._texts[key])
            self.set(key, "")
            self.attach(key, (*self.attached_to(key), document))
        composer, current = self._composer, self.current
        composer.editor.textChanged.connect(lambda: self.set(current(), composer.draft))
        composer.chips.changed.connect(lambda: self.attach(current(), composer.chips.attachments))

    def of(self, conversation_id: str | None) -> str:
        return self._texts.get(conversation_id or NEW_CHAT_ID, "")

    def attached_to(self, conversation_id: str | None) -> tuple[Attachment, ...]:
        return self._attached.get(conversation_id or NEW_CHAT_ID, ())

    def set(self, conversation_id: str | None, text: str) -> None:
        key = conversation_id or NEW_CHAT_ID
        if text != self._texts.get(key, ""):
            self._texts[key] = self._unkept[key] = text
            self._pause.start()

    def attach(self, conversation_id: str | None, attachments: tuple[Attachment, ...]) -> None:
        key = conversation_id or NEW_CHAT_ID
        if attachments != self._attached.get(key, ()):
            self._attached[key] = self._unkept_attached[key] = attachments
            self._pause.start()

    def put(self, conversation_id: str | None, attachments: tuple[Attachment, ...]) -> None:
        self.attach(conversation_id, attachments)
        self.show()

    def sending(self, conversation_id: str | None) -> None:
        """Keep this draft on disk until `sent`: its text is being added to the chat."""
        self._sending[conversation_id or NEW_CHAT_ID] += 1

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
        """Store this draft again: its text is in the chat, or back in the composer."""
        self._sending[conversation_id or NEW_CHAT_ID] -= 1
        self._pause.start()

    def show(self) -> None:
        current = self.current()
        if self._composer.draft != self.of(current):
            self._composer.set_draft(self.of(current))
        if self._composer.chips.attachments != self.attached_to(current):
            self._composer.set_attachments(self.attached_to(current))

    async def keep(self) -> None:
        """Write unsaved changes to disk. Raises StorageFailed and tries again later."""
        self._pause.stop()
        texts = {key: text for key, text in self._unkept.items() if self._sending[key] <= 0}
        attached = {key: files for key, files in self._unkept_attached.items() if self._sending[key] <= 0}
        if not texts and not attached:
            return
        await self._run_in_database(Database.store_drafts, texts, attached)
        self._told = False
        # drop drafts that did not change while saving
        self._unkept = {key: text for key, text in self._unkept.items() if texts.get(key) is not text}
        self._unkept_attached = {
            key: files for key, files in self._unkept_attached.items() if attached.get(key) is not files
        }

    def _show_save_error(self, error: KvchatError) -> None:
        self._again.start()
        if not self._told:
            self._told = True
            self._views.notices.show_error(error)


_LOOK_S = 0.02  # polling interval for the end of a finished reply's turn
_ENDED = (MessageState.COMPLETE, MessageState.LIMITED)  # neither stopped by the user nor failed


@dataclass(eq=False)
class Page:
    """Page the user writes on: an open conversation, or one that begins with its first message."""

    conversation_id: str | None = None


class SendController(Controller):
    """Sender of messages; those that cannot be stored return to their draft.

    A chat has at most one queued message: later text is appended to it.
    """

    begun, withdrawn = Signal(), Signal()  # open page's conversation: started; could not be stored
    changed = Signal()  # the queued messages

    def __init__(
        self,
        runtime: Runtime,
        views: Views,
        drafts: DraftController,
        page: Callable[[], Page],
        run_turn: Callable[[str, asyncio.Future[Any]], None],
        parent: QObject,
    ) -> None:
        super().__init__(runtime, views, parent)
        self._drafts, self._page, self._run_turn = drafts, page, run_turn
        self._new: set[str] = set()  # ids of chats being saved with their first message
        self._under_way: dict[str, list[str]] = {}  # by conversation id: drafts being sent there
        self._beginning = asyncio.Lock()  # two messages sent at once from the empty page share one conversation
        views.composer.sent.connect(self.send)

        def edit(text: str, attachments: tuple[Attachment, ...]) -> None:
            drafts.put_before(page().conversation_id, text, attachments)
            views.composer.focus()

        self.show_queued = self.serve(views.composer, lambda: page().conversation_id, edit)

    def send(self, text: str, attachments: tuple[Attachment, ...] = ()) -> None:
        page = self._page()
        written_on = page.conversation_id or NEW_CHAT_ID
        drafts = [written_on, QUEUED_PREFIX + written_on]
        self._hold(drafts)
        self._runner.start(self._send(text, attachments, page, drafts))

    def queued(self, conversation_id: str | None) -> tuple[str, tuple[Attachment, ...]]:
        if conversation_id is None:
            return "", ()
        return self._drafts.of(QUEUED_PREFIX + conversation_id), self._drafts.attached_to(
            QUEUED_PREFIX + conversation_id
        )

    def serve(
        self,
        composer: Composer,
        current: Callable[[], str | None],
        edit: Callable[[str, tuple[Attachment, ...]], object],
    ) -> Callable[[], None]:
        """Connect a composer's queue to the `current` chat; `edit` gets a message to edit.

        Return a function that shows the current chat's queued message.
        """

        def do(act: Callable[[str], object]) -> None:
            if (conversation_id := current()) is not None:
                act(conversation_id)

        def queue(text: str, attachments: tuple[Attachment, ...]) -> None:
            if (conversation_id := current()) is not None:
                self.queue(conversation_id, text, attachments)
            else:
                edit(text, attachments)

        composer.queued.connect(queue)
        composer.waiting.edit.clicked.connect(lambda: do(lambda id: edit(*self.take(id))))
        composer.waiting.remove.clicked.connect(lambda: do(self.take))
        composer.waiting.send.clicked.connect(lambda: do(self.send_queued))
        composer.waiting.source = lambda: self.queued(current())
        self.changed.connect(composer.waiting.refresh)  # bound method: disconnected with the widget
        return composer.waiting.refresh

    def queue(self, conversation_id: str, text: str, attachments: tuple[Attachment, ...] = ()) -> None:
        words, attached = self.queued(conversation_id)
        self._set_queued(conversation_id, PAUSE.join(filter(None, (words, text))), (*attached, *attachments))

    def take(self, conversation_id: str) -> tuple[str, tuple[Attachment, ...]]:
        taken = self.queued(conversation_id)
        self._set_queued(conversation_id, "", ())
        return taken

    def send_queued(self, conversation_id: str) -> None:
        if any(self.queued(conversation_id)):
            drafts = [QUEUED_PREFIX + conversation_id]
            self._hold(drafts)
            self._deliver(conversation_id, *self.take(conversation_id), drafts)

    def arrived(self, conversation_id: str) -> None:
        self._new.discard(conversation_id)
        for draft in self._under_way.pop(conversation_id, ()):
            self._drafts.sent(draft)

    async def _send(self, text: str, attachments: tuple[Attachment, ...], page: Page, drafts: list[str]) -> None:
        """page: where Enter was pressed, whichever is open by now"""
        new = None
        async with self._beginning:
            if page.conversation_id is None:
                try:
                    new = await self._runtime.chat.new_chat()
                except KvchatError as error:
                    self._give_back(NEW_CHAT_ID, text, attachments, error)
                    for draft in drafts:
                        self._drafts.sent(draft)
                    return
                page.conversation_id = new.id
                self._new.add(new.id)
                self._hold(more := [new.id, QUEUED_PREFIX + new.id])
                drafts += more
                self._drafts.move(QUEUED_PREFIX + NEW_CHAT_ID, QUEUED_PREFIX + new.id)
                if page is self._page():
                    self._drafts.move(NEW_CHAT_ID, new.id)
                    self.begun.emit()
        if page is self._page():
            self._views.transcript.scroll_to_end()
        self._deliver(page.conversation_id, text, attachments, drafts, new)

    def _hold(self, drafts: list[str]) -> None:
        for draft in drafts:
            self._drafts.sending(draft)

    def _deliver(
        self,
        conversation_id: str,
        text: str,
        attachments: tuple[Attachment, ...],
        drafts: list[str],
        new: NewChat | None = None,
    ) -> None:
        """Start the turn, storing the rest of these drafts in the message's transaction."""
        self._under_way.setdefault(conversation_id, []).extend(drafts)
        left, chat = self._drafts.left(*drafts), self._runtime.chat
        turn = chat.send(conversation_id, text, attachments=attachments, new=new, drafts=left)
        self._run_turn(conversation_id, turn)

    def _give_back(
        self, conversation_id: str, text: str, attachments: tuple[Attachment, ...], error: KvchatError
    ) -> None:
        if conversation_id == NEW_CHAT_ID or conversation_id in self._new:  # chat also unsaved
            later, files = self.take(conversation_id)
            text, attachments = PAUSE.join(filter(None, (text, later))), (*attachments, *files)
            if conversation_id and (page := self._page()).conversation_id == conversation_id:
                page.conversation_id = None
                self._drafts.move(conversation_id, NEW_CHAT_ID)
                self.withdrawn.emit()
            conversation_id = NEW_CHAT_ID
        self._drafts.put_before(conversation_id, text, attachments)
        self._views.notices.show_error(error)

    def _set_queued(self, conversation_id: str, text: str, attachments: tuple[Attachment, ...]) -> None:
        self._drafts.set(QUEUED_PREFIX + conversation_id, text)
        self._drafts.attach(QUEUED_PREFIX + conversation_id, attachments)
        self.changed.emit()

    def _handle_event(self, event: Event) -> None:
        match event:
            case MessagesChanged(conversation_id=id):
                self.arrived(id)
            case QuestionNotStored(conversation_id=id, text=text, error=error, attachments=attachments):
                self._give_back(id, text, attachments, error)
                self.arrived(id)
            case ReplyFinished(conversation_id=id, message_id=message_id) if any(self.queued(id)):
                self._runner.start(self._send_after(id, message_id))

    async def _send_after(self, conversation_id: str, message_id: str) -> None:
        """Send the queued message after the reply, unless it was stopped or the window closes."""
        messages = await self._runtime.chat.messages(conversation_id)
        if not any(message.id == message_id and message.state in _ENDED for message in messages):
            return
        while not self._closed and self._runtime.chat.is_answering(conversation_id):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        if not self._closed:
            self.send_queued(conversation_id)
