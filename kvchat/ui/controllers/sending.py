"""Drafts and their storage, and sending: a message goes to its chat at once or waits in a queue."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from PySide6.QtCore import QObject, Signal

from kvchat.chat.attachments import document_from_text
from kvchat.chat.events import Event, MessagesChanged, QuestionNotStored, ReplyFinished
from kvchat.chat.options import NewChat
from kvchat.chat.record.database import Database, Draft
from kvchat.chat.record.messages import NEW_CHAT_ID, QUEUED_PREFIX, Attachment, MessageState, Role
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.text.language import N_, _
from kvchat.ui.chat.composer import SEPARATOR, Composer, fits_field
from kvchat.ui.controllers.views import Controller, Views

PASTED_TEXT_NAME = N_("Pasted text.txt")
_SAVE_MS = 700  # delay that groups edits before saving
_RETRY_MS = 10_000  # retry failed saves after this delay
_MAX_HOLD_S = 5.0  # on quitting, wait for messages being stored

Attachments = tuple[Attachment, ...]


class DraftController(Controller):
    """Drafts of all conversations by id. The composer shows that of the conversation `current`."""

    def __init__(self, runtime: Runtime, views: Views, current: Callable[[], str | None], parent: QObject) -> None:
        super().__init__(runtime, views, parent)
        self._composer, self.current_chat = views.composer, current
        self._run = runtime.chat.turn_context.run
        self._drafts: dict[str, Draft] = {}
        self._unsaved: dict[str, Draft] = {}
        self._saved_attachments: dict[str, Attachments] = {}  # known to be on disk: not rewritten
        self._hold_counts: Counter[str] = Counter()
        self._all_released = asyncio.Event()
        self._all_released.set()
        self._error_shown = False
        self._pause = self._timer(_SAVE_MS, self.save, self._show_save_error)
        self._retry = self._timer(_RETRY_MS, self.save, self._show_save_error)

    async def load(self) -> None:
        """Read the stored drafts, and store changes in the composer from then on. Raises StorageFailed.

        A draft that is too long for the composer becomes an attachment.
        """
        texts = await self._run(Database.draft_texts)
        attachments = await self._run(Database.draft_attachments)
        self._saved_attachments, attached = dict(attachments), self._drafts
        self._drafts = {id: Draft(id, texts.get(id, ""), attachments.get(id, ())) for id in texts | attachments}
        for id, draft in attached.items():  # while this was loading
            self.set(id, attachments=(*self.attachments_of(id), *draft.attachments))
        for id, draft in list(self._drafts.items()):
            if not fits_field(draft.text):
                document = await asyncio.to_thread(document_from_text, _(PASTED_TEXT_NAME), draft.text)
                self.set(id, "", (*self.attachments_of(id), document))
        composer, current = self._composer, self.current_chat
        composer.editor.textChanged.connect(lambda: self.set(current(), composer.draft))
        composer.chips.changed.connect(lambda: self.set(current(), attachments=composer.chips.attachments))

    def get(self, conversation_id: str | None) -> Draft:
        id = conversation_id or NEW_CHAT_ID
        return self._drafts.get(id) or Draft(id)

    def set(self, conversation_id: str | None, text: str | None = None, attachments: Attachments | None = None) -> None:
        """Replace the draft's text, its attachments, or both. None leaves them as they are."""
        old = self.get(conversation_id)
        text, attachments = old.text if text is None else text, old.attachments if attachments is None else attachments
        if (text, attachments) != (old.text, old.attachments):
            id = old.conversation_id
            self._drafts[id] = self._unsaved[id] = Draft(id, text, attachments)
            self._pause.start()

    def attachments_of(self, conversation_id: str | None) -> Attachments:
        return self.get(conversation_id).attachments

    def attach(self, conversation_id: str | None, attachments: Attachments) -> None:
        self.set(conversation_id, attachments=attachments)
        self._show_attachments()

    def prepend(self, conversation_id: str | None, text: str, attachments: Attachments) -> None:
        old = self.get(conversation_id)
        self.set(conversation_id, "\n".join(filter(None, (text, old.text))), (*attachments, *old.attachments))
        self.show()

    def move(self, source: str, target: str) -> None:
        draft = self.get(source)
        self.set(target, draft.text, draft.attachments)
        self.set(source, "", ())

    def show(self) -> None:
        draft = self.get(self.current_chat())
        if self._composer.draft != draft.text:
            self._composer.set_draft(draft.text)
        self._show_attachments()

    def _show_attachments(self) -> None:
        attachments = self.attachments_of(self.current_chat())
        if self._composer.chips.attachments != attachments:
            self._composer.set_attachments(attachments)

    def hold(self, *ids: str) -> list[str]:
        """Keep these drafts on disk until `release`, while their text is being stored as a message. Return the ids."""
        self._hold_counts.update(ids)
        self._all_released.clear()
        return list(ids)

    def release(self, ids: list[str]) -> None:
        """Save these drafts again, because their text is in the chat or back in the composer."""
        self._hold_counts.subtract(ids)
        if not any(count > 0 for count in self._hold_counts.values()):
            self._all_released.set()
        for id in ids:
            self._saved_attachments.pop(id, None)
            self._unsaved[id] = self.get(id)
            self._pause.start()

    async def wait_until_released(self) -> None:
        """Wait until no draft is held, for a limited time, because messages are never stored if the disk hangs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MAX_HOLD_S):
                await self._all_released.wait()

    async def save(self) -> None:
        """Write unsaved changes to disk. Raises StorageFailed, and then tries again later."""
        self._pause.stop()
        drafts = {id: draft for id, draft in self._unsaved.items() if self._hold_counts[id] <= 0}
        if not drafts:
            return
        saved = self._saved_attachments
        attached = {id: draft.attachments for id, draft in drafts.items() if saved.get(id) != draft.attachments}
        texts = {id: draft.text for id, draft in drafts.items()}
        await self._run(Database.store_drafts, texts, attached)
        self._error_shown = False
        self._saved_attachments |= attached
        # Drop only drafts that did not change while they were saved.
        self._unsaved = {id: draft for id, draft in self._unsaved.items() if drafts.get(id) is not draft}

    def _show_save_error(self, error: KvchatError) -> None:
        self._retry.start()
        if not self._error_shown:
            self._error_shown = True
            self._views.notices.show_error(error)


_POLL_S = 0.02  # interval for the end of a turn
_ENDED = (MessageState.COMPLETE, MessageState.LIMITED)  # neither stopped by the user nor failed


@dataclass(eq=False)
class ComposeTarget:
    """Conversation that a message is sent to. None is a new one, which gets its id when the message is sent."""

    conversation_id: str | None = None


class SendController(Controller):
    """Sends messages. A message that cannot be stored becomes a draft again.

    A chat has at most one queued message; a further one is appended to its text.
    """

    chat_started, withdrawn = Signal(), Signal()  # open page's chat: begun; could not be stored
    changed = Signal()  # queue changed

    def __init__(
        self,
        runtime: Runtime,
        views: Views,
        drafts: DraftController,
        page: Callable[[], ComposeTarget],
        run_turn: Callable[[str, asyncio.Future[Any]], None],
        parent: QObject,
    ) -> None:
        super().__init__(runtime, views, parent)
        self._drafts, self._page, self._run_turn = drafts, page, run_turn
        self._unsaved_chats: set[str] = set()  # ids of chats being saved with their first message
        self._held_drafts: dict[str, list[str]] = {}  # by conversation id: drafts being sent there
        self._new_chat_lock = asyncio.Lock()  # two messages sent at once from the empty page share one conversation
        views.composer.sent.connect(self.send)

        def edit(text: str, attachments: Attachments) -> None:
            drafts.prepend(page().conversation_id, text, attachments)
            views.composer.focus()

        self.show_queued = self.connect_queue(views.composer, lambda: page().conversation_id, edit)

    def connect_queue(
        self, composer: Composer, current: Callable[[], str | None], edit: Callable[[str, Attachments], object]
    ) -> Callable[[], None]:
        """Connect a composer's queue of messages to the chat `current`. `edit` puts a queued message into the composer.

        Return a function that shows the current chat's queued message.
        """

        def queue(text: str, attachments: Attachments) -> None:
            if (conversation_id := current()) is not None:
                self.queue(conversation_id, text, attachments)
            else:
                edit(text, attachments)

        waiting = composer.queued_message
        composer.queued.connect(queue)
        waiting.edit_button.clicked.connect(lambda: edit(*self._pop_queued(current())))
        waiting.remove_button.clicked.connect(lambda: self._pop_queued(current()))
        waiting.send_button.clicked.connect(lambda: self._send_queued(current()))
        waiting.source = lambda: self.queued(current())
        self.changed.connect(waiting.refresh)  # bound method: disconnected with the widget
        return waiting.refresh

    def queued(self, conversation_id: str | None) -> tuple[str, Attachments]:
        if conversation_id is None:
            return "", ()
        draft = self._drafts.get(QUEUED_PREFIX + conversation_id)
        return draft.text, draft.attachments

    def queue(self, conversation_id: str, text: str, attachments: Attachments = ()) -> None:
        before, attached = self.queued(conversation_id)
        text = SEPARATOR.join(filter(None, (before, text)))
        self._drafts.set(QUEUED_PREFIX + conversation_id, text, (*attached, *attachments))
        self.changed.emit()

    def send(self, text: str, attachments: Attachments = ()) -> None:
        page = self._page()
        written_on = page.conversation_id or NEW_CHAT_ID
        held_ids = self._drafts.hold(written_on, QUEUED_PREFIX + written_on)
        self._runner.start(self._send(text, attachments, page, held_ids))

    def release_drafts(self, conversation_id: str) -> None:
        """Release the conversation's drafts once its message is stored or is a draft again."""
        self._unsaved_chats.discard(conversation_id)
        self._drafts.release(self._held_drafts.pop(conversation_id, []))

    async def _send(self, text: str, attachments: Attachments, page: ComposeTarget, held: list[str]) -> None:
        """Send a message to `page`, where the user pressed Enter. Another page may be open by now."""
        new = None
        async with self._new_chat_lock:
            if page.conversation_id is None:
                try:
                    new, choice = await self._runtime.chat.new_chat(), self._runtime.chat.tool_choice
                    new = replace(new, options=await choice.for_new_chat(new.options, new.model))
                    choice.forget_choice()
                except KvchatError as error:
                    self._return_to_draft(NEW_CHAT_ID, text, attachments, error)
                    self._drafts.release(held)
                    return
                page.conversation_id = new.id
                self._unsaved_chats.add(new.id)
                held += self._drafts.hold(new.id, QUEUED_PREFIX + new.id)
                self._drafts.move(QUEUED_PREFIX + NEW_CHAT_ID, QUEUED_PREFIX + new.id)
                if page is self._page():
                    self._drafts.move(NEW_CHAT_ID, new.id)
                    self.chat_started.emit()
        if self._runtime.chat.is_answering(page.conversation_id):  # a message sent just before
            self.queue(page.conversation_id, text, attachments)
            self._drafts.release(held)
            return
        if page is self._page():
            self._views.transcript.scroll_to_end()
        self._start_turn(page.conversation_id, text, attachments, held, new)

    def _start_turn(
        self, conversation_id: str, text: str, attachments: Attachments, held: list[str], new: NewChat | None = None
    ) -> None:
        """Start the turn. What is left of the held drafts is stored in the same transaction as the message."""
        self._held_drafts.setdefault(conversation_id, []).extend(held)
        rest = tuple(map(self._drafts.get, held))
        send = self._runtime.chat.send
        self._run_turn(conversation_id, send(conversation_id, text, attachments=attachments, new=new, drafts=rest))

    def _return_to_draft(self, conversation_id: str, text: str, attachments: Attachments, error: KvchatError) -> None:
        if conversation_id == NEW_CHAT_ID or conversation_id in self._unsaved_chats:  # chat also unsaved
            later, files = self._pop_queued(conversation_id)
            text, attachments = SEPARATOR.join(filter(None, (text, later))), (*attachments, *files)
            if conversation_id and (page := self._page()).conversation_id == conversation_id:
                page.conversation_id = None
                self._drafts.move(conversation_id, NEW_CHAT_ID)
                self.withdrawn.emit()
            conversation_id = NEW_CHAT_ID
        self._drafts.prepend(conversation_id, text, attachments)
        self._views.notices.show_error(error)

    def _pop_queued(self, conversation_id: str | None) -> tuple[str, Attachments]:
        """Return the queued message and remove it from the queue."""
        queued = self.queued(conversation_id)
        if conversation_id is not None:
            self._drafts.set(QUEUED_PREFIX + conversation_id, "", ())
            self.changed.emit()
        return queued

    def _send_queued(self, conversation_id: str | None) -> None:
        if conversation_id is not None and any(self.queued(conversation_id)):
            held_ids = self._drafts.hold(QUEUED_PREFIX + conversation_id)
            self._start_turn(conversation_id, *self._pop_queued(conversation_id), held_ids)

    def _handle_event(self, event: Event) -> None:
        match event:
            case MessagesChanged(conversation_id=id):
                self.release_drafts(id)
            case QuestionNotStored(conversation_id=id, text=text, error=error, attachments=attachments):
                self._return_to_draft(id, text, attachments, error)
                self.release_drafts(id)
            case ReplyFinished(conversation_id=id) if any(self.queued(id)):
                self._runner.start(self._send_after_turn(id))

    async def _send_after_turn(self, conversation_id: str) -> None:
        """Send the queued message after the current turn, unless the turn was stopped or the window closes."""
        chat = self._runtime.chat
        while not self._closed and chat.is_answering(conversation_id):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        last = (await chat.messages(conversation_id))[-1:]  # none if the chat was deleted
        is_complete = any(it.role is Role.ASSISTANT and it.state in _ENDED and not it.calls for it in last)
        if is_complete and not (self._closed or chat.is_answering(conversation_id)):
            self._send_queued(conversation_id)
