"""The context of the next request: its meter and card, and documents a chat began with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QObject, Signal

from kvchat.chat import events
from kvchat.chat.attachments import document_from_text
from kvchat.chat.context import ContextUsage
from kvchat.chat.events import Event, MessagesChanged, Notice, ReadAheadProgress, ReplyFinished
from kvchat.chat.prepared.library import ChatDocuments, PreparedStatus
from kvchat.chat.record.messages import Role
from kvchat.chat.turn.forecasts import Forecast
from kvchat.library.memory.context_size import ContextChoice
from kvchat.runtime import Runtime
from kvchat.session.events import Restored
from kvchat.session.exchange import PromptTooLong
from kvchat.text.language import _, join_parts, plural
from kvchat.ui.chat.cards import TOO_LONG
from kvchat.ui.chat.composer import LONG_PASTE
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.controllers.sending import PASTED
from kvchat.ui.controllers.views import Controller, Views

_GATHER_MS = 250  # delay that groups keystrokes and events before the tokens are counted again
_DOCUMENTS_MS = 60  # changes this close together cause one request


class ContextController(Controller):
    """Context meter updates. Counting uses only the tokenizer, never the slot."""

    def __init__(self, runtime: Runtime, views: Views, chat: ChatController) -> None:
        super().__init__(runtime, views, chat)
        self._chat, self._card, self._composer = chat, views.context_card, views.composer
        self._use: ContextUsage | None = None
        self._forecast: Forecast | None = None  # for the reply to the current draft
        self._larger: ContextChoice | None = None  # larger context that could be chosen
        self._begun = self._shown = 0  # counts overlap: an earlier one's late result is stale
        self._asked = False  # asked since the card appeared
        self._put_off: set[str | None] = set()  # conversations whose card the user dismissed
        self._summarising: dict[str, asyncio.Task[Any]] = {}
        self._gather = self._timer(_GATHER_MS, self._count, lambda error: None)  # a turn reports it
        card, composer = self._card, self._composer
        for changed in (composer.editor.textChanged, composer.chips.changed, chat.left):
            changed.connect(self._count_soon)
        chat.left.connect(self._leave)
        card.later.clicked.connect(self._later)
        card.larger.clicked.connect(self._raise)
        card.drop.clicked.connect(
            lambda: self._shorten(
                runtime.chat.context.drop_middle,
                lambda count: plural(count, "{count} message was left out", "{count} messages were left out"),
            )
        )
        card.summarise.clicked.connect(self._summarise)
        card.part.clicked.connect(lambda: self._runner.start(self._attach_part()))
        card.stop.clicked.connect(self._stop)
        composer.refused.connect(self._insist)
        self._count_soon()

    def _leave(self) -> None:
        self._forecast = None
        self._show(self._use)

    def _count_soon(self) -> None:
        if not self._gather.isActive():
            self._gather.start()

    async def _count(self) -> None:
        conversation_id = self._chat.current
        draft, attachments = self._composer.draft, self._composer.chips.attachments
        chat, written = self._runtime.chat, bool(draft.strip() or attachments)
        self._begun = number = self._begun + 1
        use = await chat.context.usage(conversation_id, draft, attachments)
        if conversation_id != self._chat.current or number < self._shown:
            return
        self._shown = number
        self._show(use)
        fits = written and not (use and use.is_over_limit)
        forecast = await chat.forecasts.forecast_message(conversation_id, draft, attachments) if fits else None
        if conversation_id == self._chat.current and number == self._shown:
            self._forecast = forecast
            self._show(self._use)

    def _show(self, use: ContextUsage | None) -> None:
        self._use = use
        self._views.context_meter.show_use(use, None if self._answering() else self._forecast)
        self._show_card()

    def _show_card(self) -> None:
        here, failure, use = self._chat.current, self._chat.failure, self._use
        if use is None and isinstance(failure, PromptTooLong):
            use = ContextUsage(failure.prompt_tokens, 0, 0, failure.context_size)
        refused = use is not None and (use.is_over_limit or isinstance(failure, PromptTooLong))
        answering = self._answering()
        self._composer.refuse(_(TOO_LONG) if use is not None and use.is_over_limit and not answering else "")
        if here in self._summarising:
            self._card.show_summarising()
        elif use is not None and (use.is_tight or refused) and here not in self._put_off and not answering:
            turns = sum(message.role is Role.USER for message in self._views.transcript.messages)
            texts = [attached for attached in self._composer.chips.attachments if not attached.data]
            long = bool(texts) or len(self._composer.draft) >= LONG_PASTE
            self._card.show_choice(use, self._larger, can_shorten=turns > 1, can_part=long)
            if not self._asked:
                self._asked = True

                async def ask() -> None:
                    self._larger = await self._runtime.engine.larger_context()
                    self._show_card()

                self._runner.start(ask())
        else:
            self._asked = False
            self._card.hide()

    def _answering(self) -> bool:
        return self._chat.current is not None and self._runtime.chat.is_answering(self._chat.current)

    def _handle_event(self, event: Event) -> None:
        match event:
            case events.Speed(conversation_id=id, context_used=used) if id == self._chat.current and self._use:
                self._show(replace(self._use, used=used))
            case events.EngineChanged():
                self._larger, self._asked = None, False
                self._count_soon()
            case MessagesChanged() | ReplyFinished() | ReadAheadProgress() | Restored():
                if event.conversation_id == self._chat.current and not self._answering():
                    self._count_soon()
            case events.TurnFailed(conversation_id=id, error=error):
                if isinstance(error, PromptTooLong):
                    self._put_off.discard(id)
                self._count_soon()

    async def _attach_part(self) -> None:
        here, draft, attachments = self._chat.current, self._composer.draft, self._composer.chips.attachments
        if all(attached.data for attached in attachments):
            draft, attachments = "", (*attachments, document_from_text(_(PASTED), draft))
        fitting = await self._runtime.chat.context.truncate_longest(here, draft, attachments)
        if here == self._chat.current:
            self._composer.set_draft(draft)
            self._composer.set_attachments(fitting)
            self._composer.focus()

    def _insist(self) -> None:
        self._put_off.discard(self._chat.current)
        self._show_card()

    def _later(self) -> None:
        self._put_off.add(self._chat.current)
        self._show_card()

    def _raise(self) -> None:
        self._card.hide()
        if self._larger is not None:
            self._runner.start(self._runtime.increase_context(self._larger.tokens))

    def _summarise(self) -> None:
        here = self._chat.current
        if here is not None and here not in self._summarising:
            self._summarising[here] = task = self._shorten(
                self._runtime.chat.context.summarise,
                lambda count: plural(count, "{count} message was summarized", "{count} messages were summarized"),
            )
            task.add_done_callback(lambda _: self._summarising.pop(here))
            task.add_done_callback(lambda _: self._show_card())
            self._show_card()

    def _stop(self) -> None:
        if (task := self._summarising.get(self._chat.current or "")) is not None:
            task.cancel()

    def _shorten(self, way: Callable[[str], Coroutine[Any, Any, int]], done: Callable[[int], str]) -> asyncio.Task[Any]:
        here = self._chat.current or ""

        async def shorten() -> None:
            waiting = await self._runtime.chat.messages(here)
            count = await way(here)
            detail = _("This is a new branch of the chat. The previous branch still has every message.")
            self._runtime.events.publish(Notice(done(count), detail))
            if waiting and waiting[-1].role is Role.USER and here == self._chat.current:
                self._chat.retry()
            self._count_soon()

        return self._runner.start(shorten())


class ChatDocumentsController(Controller):
    library_requested = Signal(str)  # entry id; empty: no entry

    def __init__(self, runtime: Runtime, views: Views, chat: ChatController, parent: QObject) -> None:
        super().__init__(runtime, views, parent)
        self._chat, self._line = chat, views.documents
        self._ground: ChatDocuments | None = None
        self._soon = self._timer(_DOCUMENTS_MS, self._load)
        chat.left.connect(self._another_chat)
        self._line.clicked.connect(self._open)

    def _another_chat(self) -> None:
        self._line.hide()
        self._ground = None
        self._soon.start()

    def _handle_event(self, event: events.Event) -> None:
        match event:
            case events.LibraryChanged(progress=False) | events.EngineChanged() | events.SettingsChanged():
                self._soon.start()
            case events.ReplyFinished(conversation_id=id) if id == self._chat.current and self._ground:
                self._soon.start()  # it now has its own memory

    async def _load(self) -> None:
        id, runtime = self._chat.current, self._runtime
        ground = await runtime.chat.library.chat_documents(id) if id else None
        standing = None
        if ground and ground.prepared:
            usage, now = await runtime.save_points.usage(), await runtime.engine.states_now(runtime.settings.model_path)
            [standing] = await runtime.chat.library.statuses(now, usage.conversations, ground.prepared)
        if id != self._chat.current:
            return
        self._ground = ground
        self._line.setVisible(ground is not None)
        if ground is not None:
            kept = self._chat.conversations.usage_of(id)
            text, state = words_of(ground, standing, keeps=kept is not None and bool(kept.save_points))
            self._line.show_words(text, state)

    def _open(self) -> None:
        known = self._ground.prepared if self._ground else None
        self.library_requested.emit(known.id if known else "")


def words_of(ground: ChatDocuments, standing: PreparedStatus | None, *, keeps: bool) -> tuple[str, str]:
    """Return the documents a chat started with, and a remark. keeps: the chat has its own memory"""
    count = plural(len(ground.documents), "{count} document", "{count} documents")
    if standing is None:
        return count, _("no longer in the library")
    text = join_parts((standing.prepared.name, count))
    if not ground.is_current:
        return text, _("updated since; this chat keeps the version it started with")
    if standing.reprocess_reason and not keeps:
        return text, _("needs processing: {why_not}", why_not=standing.reprocess_reason)
    return text, _("{words} since it was processed", words=standing.changes.text) if standing.changes else ""
