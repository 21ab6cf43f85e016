"""The open conversation: shows the runtime's events, and turns message buttons into calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QCursor
from PySide6.QtWidgets import QMenu

from kvchat.chat import events
from kvchat.chat.record.messages import NEW_CHAT_ID, Message, Role
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.session.events import Restored, Saved
from kvchat.text.language import _, format_number
from kvchat.ui.chat.first_words import PAUSE, FirstWords
from kvchat.ui.chat.turn_story import waiting_words
from kvchat.ui.controllers.sending import DraftController, Page, SendController
from kvchat.ui.controllers.sidebar import SidebarController
from kvchat.ui.controllers.views import ChatPresenter, Controller, TurnState, Views, is_engine_failure
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.models.model_choice import ModelMenu
from kvchat.ui.transcript.footer import MessageRequest, Request

MAX_TURNS = 20  # finished turns kept for users who return to them


class ChatController(Controller):
    left = Signal(object)  # id of the previously open conversation, or None
    opened = Signal(bool)  # True if the open conversation has content
    model_changed = Signal()
    forked = Signal(str)  # id of a conversation made from a reply
    models_requested = Signal()

    def __init__(self, runtime: Runtime, views: Views, parent: QObject) -> None:
        super().__init__(runtime, views, parent)
        self._page = Page()
        self.conversations = SidebarController(runtime, views, lambda: self.current, self)
        self.drafts = DraftController(runtime, views, lambda: self.current, self)
        self._loading = False  # messages are loading: do not flash the empty page
        self._opening: asyncio.Task[Any] | None = None  # loads the last opened conversation's messages
        self._turns: dict[str, TurnState] = {}
        self._had_model = runtime.model.path
        page = views.transcript, views.composer
        self._shown = ChatPresenter(runtime, *page, lambda: self.current, self.turn_of, cards=True)
        self.sending = SendController(runtime, views, self.drafts, lambda: self._page, self.run_turn, self)
        self.sending.begun.connect(lambda: self.left.emit(None))
        self.sending.withdrawn.connect(self._show_all)
        self.conversations.shown.connect(self._show_header)
        views.sidebar.selected.connect(self.open)
        views.composer.stop_requested.connect(self.stop)

        def prepare() -> None:
            runtime.chat.prepare(self.current, views.composer.draft, views.composer.chips.attachments)

        for changed in (views.composer.editor.textChanged, views.composer.chips.changed):
            changed.connect(prepare)
        views.strip.stop.clicked.connect(lambda: runtime.chat.read_ahead.stop(self.current or NEW_CHAT_ID))
        views.transcript.retry_requested.connect(self.retry)
        views.transcript.tail.first.clicked.connect(self.go_first)
        self.models = QMenu(views.transcript)
        self._again: Message | None = None  # reply to regenerate with another model
        menu = ModelMenu(runtime, self.models, views.runner, lambda: runtime.model.path)

        async def regenerate_with(model: Path) -> None:
            if (reply := self._again) is not None and not runtime.chat.is_answering(reply.conversation_id):
                await runtime.chat.use_model(reply.conversation_id, str(model))
                self._run_at_end(reply.conversation_id, runtime.chat.regenerate(reply))

        menu.chosen.connect(lambda path: views.runner.start(regenerate_with(path)))
        menu.more_requested.connect(self.models_requested)
        views.transcript.message_requested.connect(self.handle)
        views.composer.editor.up_from_empty.connect(self.edit_last)

    @property
    def current(self) -> str | None:
        """The open conversation; None on the page of one not yet begun."""
        return self._page.conversation_id

    async def start(self, first: FirstWords) -> None:
        self.show_engine()
        await first.end()
        await self.drafts.load()
        written = self._take_over(first)
        await self.conversations.start()
        if self.conversations.ids and self.current is None and not written:
            self.open(self.conversations.ids[0])
        else:
            self._show_all()

    def _take_over(self, first: FirstWords) -> bool:
        typed = bool(self._views.composer.draft)
        if not first.shown:
            first.show(NEW_CHAT_ID, {NEW_CHAT_ID: self.drafts.of(None)})
        self._views.composer.set_starting(False)
        page, answered = first.page, first.sent[0][0] if first.sent else None  # only one chat is answered first
        for where in first.drafts.keys() | {where for where, _text in first.sent}:
            not_answered = first.sent_from(where) if where != answered else ()
            self.drafts.set(where, PAUSE.join(filter(None, (*not_answered, first.drafts.get(where, "")))))
        if answered is not None:
            text, *later = first.sent_from(answered)
            self.open(answered or None)
            self.sending.queue(answered, PAUSE.join(later))
            self.sending.send(text)
        if page != answered:
            self.open(page or None)
        return bool(first.sent) or typed

    def open(self, conversation_id: str | None) -> None:
        """Open a conversation; None: an empty page for a new one."""
        if conversation_id == self.current and self._views.transcript.messages:
            return
        before, self._page = self.current, Page(conversation_id)
        self.turn_of().leave_past()
        self._loading = conversation_id is not None
        self.drafts.show()
        self.sending.show_queued()
        self._views.transcript.show_conversation([])
        self._views.sidebar.show_selected(conversation_id)
        if conversation_id is not None:
            self._runtime.chat.select(conversation_id)
            self._opening = self._runner.start(self._reload_messages(conversation_id, fresh=True))
        self._show_all()
        if before != conversation_id:
            self.left.emit(before)

    async def open_at(self, conversation_id: str, message_id: str) -> None:
        """Open a conversation at this message, switching branch if needed. Raises ReplyInProgress."""
        self.open(conversation_id)
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._views.transcript.row_of(message_id) is None:
            await self._runtime.chat.switch(conversation_id, message_id)
            await self._reload_messages(conversation_id)

    def retry(self) -> None:
        if self.current is not None:
            self.run_turn(self.current, self._runtime.chat.retry(self.current))

    def go_first(self) -> None:
        here = self.current
        if here is not None and (other := self._runtime.chat.slots.ahead_of(here)):
            title = self.conversations.title(other)
            confirm(
                self._views.transcript,
                _("Prioritize this chat?"),
                _("This stops the reply in “{title}”. You can continue it later.", title=title),
                _("Prioritize this chat"),
                lambda: self._runtime.chat.turns.prioritize(here),
                keep=_("Wait"),
            )

    def stop(self) -> None:
        if self.current is not None:
            self._runtime.chat.stop(self.current)

    def step_away(self, ids: Sequence[str]) -> None:
        if self.current not in ids:
            return
        shown = self.conversations.ids
        position = shown.index(self.current) if self.current in shown else 0
        rest = [id for id in shown[position:] + shown[:position][::-1] if id not in ids]
        self.open(rest[0] if rest else None)

    def show_engine(self) -> None:
        engine, model, views = self._runtime.engine, self._runtime.model, self._views
        fetchable = model.repository is not None
        views.engine_card.show_status(engine.status, model.name, missing=model.is_missing, fetchable=fetchable)
        views.strip.show_engine(engine.status.state, model.name)
        views.header.show_model(model.name_for(self.conversations.conversation(self.current)))
        views.strip.show_context(engine.context_size, engine.context_reason)
        if self._had_model != model.path:
            self._had_model = model.path
            self.model_changed.emit()

    @property
    def failure(self) -> KvchatError | None:
        return self.turn_of().failure

    def run_turn(self, conversation_id: str, task: asyncio.Future[Any]) -> None:
        turn = self.turn_of(conversation_id)
        turn.begin()
        self._runner.watch_turn(task)

        def end(_: object) -> None:
            self.sending.arrived(conversation_id)
            self.turn_of(conversation_id).end()
            self.conversations.reload_soon()  # no reply is coming, and a refusal sends no other event
            if conversation_id == self.current:
                self._show_turn()

        task.add_done_callback(end)
        self._show_turn()

    def turn_of(self, conversation_id: str | None = None) -> TurnState:
        key = (self.current or NEW_CHAT_ID) if conversation_id is None else conversation_id
        turn = self._turns.pop(key, None) or TurnState()
        self._turns[key] = turn  # the last entry is the most recently used
        for old in [id for id, other in self._turns.items() if other.is_over][:-MAX_TURNS]:
            del self._turns[old]
        return turn

    def _handle_event(self, event: events.Event) -> None:
        match event:
            case events.EngineChanged():
                self.show_engine()
                self._show_turn()
                self.conversations.reload_soon()
            case events.SettingsChanged():
                self._views.look.follow(self._runtime.settings)
            case events.MessagesChanged(conversation_id=id):
                if id == self.current:
                    self._runner.start(self._reload_messages(id))
            case events.ConversationsChanged() | events.Absorbed():
                self.conversations.reload_soon()
            case events.Notice(title=title, detail=detail, conversation_id=id):
                if id not in ("", self.current):
                    detail = _("In “{title}”: {detail}", title=self.conversations.title(id), detail=detail)
                self._views.notices.notify(title, detail)
            case events.LibraryChanged() | events.QuestionNotStored():
                pass  # other listeners handle it
            case _:
                self._handle_turn_event(event)

    def _handle_turn_event(self, event: events.TurnEvent) -> None:
        id = event.conversation_id
        turn, here = self.turn_of(id), id == (self.current or NEW_CHAT_ID)
        known = turn.live_id
        turn.handle_event(event)
        match event:
            case events.ReplyDelta(message_id=message_id) if here:
                if message_id != known and self._views.transcript.row_of(message_id) is None:
                    self._runner.start(self._reload_messages(id))
                self._shown.show_live()
            case events.ReplyFinished():
                self.conversations.reload_soon()
                if here:
                    self._runner.start(self._reload_messages(id, finished=event.message_id))
            case Restored() | Saved():
                self.conversations.reload_soon()
        more_of_the_same = isinstance(event, events.ReplyDelta) and event.message_id == known  # hundreds a second
        waits = self.current is not None and self._runtime.chat.slots.ahead_of(self.current) == id
        if (here or waits) and not more_of_the_same:
            self._show_turn()

    async def _reload_messages(self, conversation_id: str, *, fresh: bool = False, finished: str = "") -> None:
        """finished: id of a reply that has just ended, to be announced"""
        if not await self._shown.reload(conversation_id, fresh=fresh):
            return
        self._loading = False
        self._show_all()
        messages = self._views.transcript.messages
        if fresh and messages and messages[-1].awaits_model and not self._shown.is_answering:
            self.retry()  # a model may exist now; else repeat what is missing
        if finished:
            self._views.transcript.announce_reply(finished)

    def _show_all(self) -> None:
        self._show_header()
        self._show_turn()

    def _show_header(self) -> None:
        here, known = self.current, self.conversations
        self._views.header.show_model(self._runtime.model.name_for(known.conversation(here)))
        self._views.header.show_conversation(known.title(here), exists=here is not None)

    def _show_turn(self) -> None:
        other = self._runtime.chat.slots.ahead_of(self.current) if self.current else None
        turn = self.turn_of(other) if other else None
        waiting = waiting_words(self.conversations.title(other), turn.story, turn.live_text) if other and turn else ""
        here, runtime = self.turn_of(), self._runtime
        no_model = not runtime.model.is_configured and is_engine_failure(here.failure, runtime.engine.status)
        story, remarks = here.story, () if no_model else here.story.remarks
        self._views.strip.show_turn(remarks, story.fraction, silent=story.silent, ahead=story.reading_ahead)
        self._shown.show_turn(waiting)
        self.opened.emit(bool(self._views.transcript.messages) or self._shown.is_answering or self._loading)

    def handle(self, requested: MessageRequest) -> None:
        """Run a message's action; all but a fork change the tree and are refused during a reply."""
        message, chat = requested.message, self._runtime.chat
        id = message.conversation_id
        if requested.run is Request.FORK:  # leaves this chat unchanged

            async def fork() -> None:
                self.forked.emit(await chat.fork(message))

            self._runner.start(fork())
            return
        if chat.is_answering(id):
            self._views.notices.notify(
                _("The reply to the last message is still being generated"), _("Wait for the reply, or stop it.")
            )
            return
        match requested.run:
            case Request.REGENERATE:
                self._run_at_end(id, chat.regenerate(message))
            case Request.REGENERATE_WITH:
                self._again = message
                self.models.popup(QCursor.pos())
            case Request.CONTINUE:
                self._run_at_end(id, chat.continue_reply(message))
            case Request.EDIT:
                self._views.transcript.end_edit(message.id)
                if message.role is Role.USER:
                    self._run_at_end(id, chat.edit(message, requested.text))
                elif requested.text != message.content.strip():
                    self._runner.start(chat.edit_reply(message, requested.text))
            case Request.DELETE:
                self._runner.start(self._delete_message(message))
            case Request.SWITCH:
                self._runner.start(chat.switch(id, requested.text))

    def edit_last(self) -> None:
        questions = [message for message in self._views.transcript.messages if message.role is Role.USER]
        if questions:
            self._views.transcript.edit(questions[-1].id)

    def regenerate_last(self) -> None:
        messages = self._views.transcript.messages
        if messages and messages[-1].role is Role.ASSISTANT:
            self.handle(MessageRequest(Request.REGENERATE, messages[-1]))

    def _run_at_end(self, conversation_id: str, reply: asyncio.Future[Any]) -> None:
        self._views.transcript.scroll_to_end()
        self.run_turn(conversation_id, reply)

    async def _delete_message(self, message: Message) -> None:
        removed = await self._runtime.chat.delete_message(message)
        what = _("Deleted the message")
        if followed := len(removed.rows) - 1:
            what = _("Deleted the message and the {followed} after it", followed=format_number(followed))
        restore_messages = self._runtime.chat.restore_messages
        self._views.notices.offer_undo(what, lambda: self._runner.start(restore_messages(removed)))
