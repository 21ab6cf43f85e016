"""The context meter and its card, and the documents that a chat started with."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QObject, Signal

from kvchat.chat import events
from kvchat.chat.attachments import document_from_text
from kvchat.chat.context import ContextUsage
from kvchat.chat.events import Event, MessagesChanged, Notice, ReadAheadProgress, ReplyFinished
from kvchat.chat.prepared.library import ChatDocuments, PreparedStatus
from kvchat.chat.record.messages import Attachment, Role
from kvchat.chat.turn.forecasts import Forecast
from kvchat.library.memory.context_size import ContextChoice
from kvchat.runtime import Runtime
from kvchat.session.events import Restored
from kvchat.session.exchange import PromptTooLong
from kvchat.text.language import _, join_parts, plural
from kvchat.ui.chat.cards import TOO_LONG
from kvchat.ui.chat.composer import LONG_PASTE
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.controllers.sending import PASTED_TEXT_NAME
from kvchat.ui.controllers.views import Controller, Views

_GATHER_MS = 250  # delay that groups keystrokes and events before the tokens are counted again
Attachments = tuple[Attachment, ...]
_DOCUMENTS_MS = 60  # changes this close together cause one request


class ContextController(Controller):
    """Updates the context meter and its card. Counting uses the tokenizer and never a slot."""

    def __init__(self, runtime: Runtime, views: Views, chat: ChatController) -> None:
        super().__init__(runtime, views, chat)
        self._chat, self._card, self._composer = chat, views.context_card, views.composer
        self._usage: ContextUsage | None = None
        self._forecast: Forecast | None = None  # for the reply to the current draft
        self._larger: ContextChoice | None = None  # larger context that could be chosen
        self._last_started = self._last_shown = 0  # counts overlap: an earlier one's late result is stale
        self._larger_requested = False  # since the card appeared
        self._dismissed: set[str | None] = set()  # chats whose card the user dismissed
        self._summaries: dict[str, asyncio.Task[Any]] = {}  # in progress, by conversation id
        self._gather = self._timer(_GATHER_MS, self._count, lambda error: None)  # turns report errors
        card, composer = self._card, self._composer
        for changed in (composer.editor.textChanged, composer.chips.changed, chat.conversation_changed):
            changed.connect(self._count_soon)
        chat.conversation_changed.connect(lambda: self._show(self._usage, None))
        card.dismiss_button.clicked.connect(lambda: self._set_dismissed(True))
        composer.refused.connect(lambda: self._set_dismissed(False))
        card.increase_button.clicked.connect(self._enlarge)
        card.drop_button.clicked.connect(lambda: self._runner.start(self._shorten(chat.current or "")))
        card.summarize_button.clicked.connect(self._summarise)
        context = runtime.chat.context
        card.attach_part_button.clicked.connect(lambda: self._runner.start(self._fit(context.truncate_longest)))
        card.quote_button.clicked.connect(lambda: self._runner.start(self._fit(context.quote_longest)))
        card.stop_button.clicked.connect(lambda: (task := self._summaries.get(chat.current or "")) and task.cancel())
        self._count_soon()

    def _count_soon(self) -> None:
        if not self._gather.isActive():
            self._gather.start()

    async def _count(self) -> None:
        id, draft, attachments = self._chat.current, self._composer.draft, self._composer.chips.attachments
        chat = self._runtime.chat
        self._last_started = number = self._last_started + 1
        usage = await chat.context.usage(id, draft, attachments)
        if id != self._chat.current or number < self._last_shown:
            return
        self._last_shown = number
        self._show(usage, self._forecast)
        fits = bool(draft.strip() or attachments) and not (usage and usage.is_over_limit)
        forecast = await chat.forecasts.forecast_message(id, draft, attachments) if fits else None
        if id == self._chat.current and number == self._last_shown:
            self._show(self._usage, forecast)

    def _show(self, usage: ContextUsage | None, forecast: Forecast | None) -> None:
        self._usage, self._forecast = usage, forecast
        self._views.context_meter.show_usage(usage, None if self._chat.is_answering else forecast)
        self._show_card()

    def _show_card(self) -> None:
        chat_id, failure, usage = self._chat.current, self._chat.turn_of().failure, self._usage
        too_long, is_answering = isinstance(failure, PromptTooLong), self._chat.is_answering
        if usage is None and isinstance(failure, PromptTooLong):
            usage = ContextUsage(failure.prompt_tokens, 0, 0, failure.context_size)
        self._composer.block_sending(_(TOO_LONG) if usage and usage.is_over_limit and not is_answering else "")
        if chat_id in self._summaries:
            self._card.show_summarising()
        elif (
            usage
            and (usage.is_tight or usage.is_over_limit or too_long)
            and not (chat_id in self._dismissed or is_answering)
        ):
            turns = sum(message.role is Role.USER for message in self._views.transcript.messages)
            has_text = not all(a.data or a.whole for a in self._composer.chips.attachments)
            is_long = has_text or len(self._composer.draft) >= LONG_PASTE
            self._card.show_choice(usage, self._larger, can_shorten=turns > 1, can_attach_part=is_long)
            if not self._larger_requested:
                self._larger_requested = True

                async def find_larger() -> None:
                    self._larger = await self._runtime.engine.larger_context()
                    self._show_card()

                self._runner.start(find_larger())
        else:
            self._larger_requested = False
            self._card.hide()

    def _handle_event(self, event: Event) -> None:
        match event:
            case events.Speed(conversation_id=id, context_used=used) if id == self._chat.current and self._usage:
                self._show(replace(self._usage, used=used), self._forecast)
            case events.EngineChanged():
                self._larger, self._larger_requested = None, False
                self._count_soon()
            case MessagesChanged() | ReplyFinished() | ReadAheadProgress() | Restored():
                if event.conversation_id == self._chat.current and not self._chat.is_answering:
                    self._count_soon()
            case events.TurnFailed(conversation_id=id, error=error):
                if isinstance(error, PromptTooLong):
                    self._dismissed.discard(id)
                self._count_soon()

    async def _fit(self, fit: Callable[[str | None, str, Sequence[Attachment]], Awaitable[Attachments]]) -> None:
        """Replace the draft's attachments by those that `fit` returns, unless the user has changed them meanwhile."""
        composer, chat_id = self._composer, self._chat.current
        draft, attachments = composer.draft, composer.chips.attachments
        if attaches_draft := all(attached.data or attached.whole for attached in attachments):
            fitting = await fit(chat_id, "", (*attachments, document_from_text(_(PASTED_TEXT_NAME), draft)))
        else:
            fitting = await fit(chat_id, draft, attachments)
        is_changed = composer.chips.attachments != attachments or (attaches_draft and composer.draft != draft)
        if chat_id == self._chat.current and not is_changed:
            if attaches_draft:
                composer.set_draft("")
            composer.set_attachments(fitting)
            composer.focus()

    def _set_dismissed(self, dismissed: bool) -> None:
        (self._dismissed.add if dismissed else self._dismissed.discard)(self._chat.current)
        self._show_card()

    def _enlarge(self) -> None:
        self._card.hide()
        if self._larger is not None:
            self._runner.start(self._runtime.increase_context(self._larger.tokens))

    def _summarise(self) -> None:
        chat_id = self._chat.current
        if chat_id is not None and chat_id not in self._summaries:
            self._summaries[chat_id] = task = self._runner.start(self._shorten(chat_id, summarise=True))
            task.add_done_callback(lambda _: self._summaries.pop(chat_id))
            task.add_done_callback(lambda _: self._show_card())
            self._show_card()

    async def _shorten(self, chat_id: str, *, summarise: bool = False) -> None:
        """Continue a conversation in a new branch that omits or summarizes its middle."""
        context = self._runtime.chat.context
        messages = await self._runtime.chat.messages(chat_id)
        count = await (context.summarise if summarise else context.drop_middle)(chat_id)
        title = plural(count, "{count} message was left out", "{count} messages were left out")
        if summarise:
            title = plural(count, "{count} message was summarized", "{count} messages were summarized")
        detail = _("This is a new branch of the chat. The previous branch still has every message.")
        self._runtime.events.publish(Notice(title, detail))
        if messages and messages[-1].role is Role.USER and chat_id == self._chat.current:
            self._chat.retry()
        self._count_soon()


class ChatDocumentsController(Controller):
    library_requested = Signal(str)  # entry id; empty: no entry

    def __init__(self, runtime: Runtime, views: Views, chat: ChatController, parent: QObject) -> None:
        super().__init__(runtime, views, parent)
        self._chat, self._line = chat, views.documents
        self._documents: ChatDocuments | None = None
        self._pause = self._timer(_DOCUMENTS_MS, self._load)
        chat.conversation_changed.connect(self._clear)
        self._line.clicked.connect(self._open)

    def _clear(self) -> None:
        self._line.hide()
        self._documents = None
        self._pause.start()

    def _open(self) -> None:
        entry = self._documents.prepared if self._documents else None
        self.library_requested.emit(entry.id if entry else "")

    def _handle_event(self, event: events.Event) -> None:
        match event:
            case events.LibraryChanged(progress_only=False) | events.EngineChanged() | events.SettingsChanged():
                self._pause.start()
            case events.ReplyFinished(conversation_id=id) if id == self._chat.current and self._documents:
                self._pause.start()  # the chat now has its own memory

    async def _load(self) -> None:
        id, runtime = self._chat.current, self._runtime
        documents = await runtime.chat.library.chat_documents(id) if id else None
        status = None
        if documents and documents.prepared:
            usage, now = (
                await runtime.save_points.usage(),
                await runtime.engine.fingerprint_and_limit(runtime.settings.model_path),
            )
            [status] = await runtime.chat.library.statuses(now, usage.conversations, documents.prepared)
        if id != self._chat.current:
            return
        self._documents = documents
        self._line.setVisible(documents is not None)
        if documents is not None:
            usage_here = self._chat.conversations.usage_of(id)
            has_memory = usage_here is not None and bool(usage_here.save_points)
            self._line.show_documents(*describe_documents(documents, status, has_memory=has_memory))


def describe_documents(documents: ChatDocuments, status: PreparedStatus | None, *, has_memory: bool) -> tuple[str, str]:
    """Return the documents a chat started with, and a remark. `has_memory`: the chat has saved memory of its own."""
    count = plural(len(documents.documents), "{count} document", "{count} documents")
    if status is None:
        return count, _("no longer in the library")
    text = join_parts((status.prepared.name, count))
    if not documents.is_current:
        return text, _("updated since; this chat keeps the version it started with")
    if status.reprocess_reason and not has_memory:
        return text, _("needs processing: {why_not}", why_not=status.reprocess_reason)
    return text, _("changes since processing: {changes}", changes=status.changes.text) if status.changes else ""
