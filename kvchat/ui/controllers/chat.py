"""The open conversation: shows the runtime's events, and turns clicks on message buttons into calls."""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QCursor
from PySide6.QtWidgets import QMenu

from kvchat.chat import events
from kvchat.chat.record.messages import NEW_CHAT_ID, Message, Role
from kvchat.engine.api.connection import EngineState
from kvchat.runtime import Runtime
from kvchat.session.events import Restored, Saved
from kvchat.text.language import _, plural
from kvchat.ui.chat.composer import StartupDrafts
from kvchat.ui.chat.turn_status import TurnStatus, waiting_text
from kvchat.ui.controllers.sending import ComposeTarget, DraftController, SendController
from kvchat.ui.controllers.sidebar import SidebarController
from kvchat.ui.controllers.views import ChatPresenter, Controller, Views, is_engine_failure
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.models.model_choice import ModelMenu
from kvchat.ui.transcript.footer import MessageRequest, RequestKind
from kvchat.ui.transcript.transcript import Transcript


class ChatController(Controller):
    conversation_changed = Signal(object)  # id of the previously open conversation, or None
    content_changed = Signal(bool)  # True if the open conversation has content
    model_changed = Signal()
    forked = Signal(str)  # id of a conversation made from a reply
    models_requested = Signal()

    def __init__(self, runtime: Runtime, views: Views, parent: QObject) -> None:
        super().__init__(runtime, views, parent)
        self._page = ComposeTarget()
        self.conversations = SidebarController(runtime, views, self)
        self.drafts = DraftController(runtime, views, lambda: self.current, self)
        self._loading = False  # messages are loading: do not flash the empty page
        self._load_task: asyncio.Task[Any] | None = None  # loads the last opened conversation's messages
        self._turns: defaultdict[str, TurnStatus] = defaultdict(TurnStatus)
        self._model = runtime.settings.engine_url or runtime.model.path
        self._regenerated: Message | None = None  # reply to regenerate with another model
        transcript, composer = views.transcript, views.composer
        self._presenter = ChatPresenter(
            runtime, transcript, composer, lambda: self.current, self.turn_of, has_cards=True
        )
        self.send_controller = SendController(runtime, views, self.drafts, lambda: self._page, self.run_turn, self)
        self.send_controller.chat_started.connect(lambda: self.conversation_changed.emit(None))
        self.send_controller.withdrawn.connect(self._show_all)
        self.conversations.content_changed.connect(self._show_header)
        views.sidebar.selected.connect(self.open)
        views.status_strip.stop_button.clicked.connect(
            lambda: runtime.chat.read_ahead.stop(self.current or NEW_CHAT_ID)
        )
        composer.stop_requested.connect(self.stop)
        composer.editor.up_from_empty.connect(self.edit_last)
        for changed in (composer.editor.textChanged, composer.chips.changed):
            changed.connect(lambda: runtime.chat.prepare(self.current, composer.draft, composer.chips.attachments))
        transcript.retry_requested.connect(self.retry)
        transcript.tail.resend_button.clicked.connect(self.resend_when_ready)
        transcript.message_requested.connect(self.handle_request)
        transcript.tail.call_card.answered.connect(runtime.chat.turns.tool_calls.answer)
        transcript.tail.prioritize_button.clicked.connect(self._ask_to_prioritize)
        self.model_menu = QMenu(transcript)
        models = ModelMenu(runtime, self.model_menu, views.runner, lambda: runtime.model.path)
        models.chosen.connect(lambda path: views.runner.start(self._regenerate_with(path)))
        models.more_requested.connect(self.models_requested)

    @property
    def current(self) -> str | None:
        """Id of the open conversation, or None for a new one that is not stored yet."""
        return self._page.conversation_id

    async def start(self, first: StartupDrafts) -> None:
        """Open a chat with the drafts typed during startup. Send its draft if the user has already pressed Send."""
        self.show_engine()
        await self.drafts.load()
        written, composer = first.end(), self._views.composer
        is_typed, is_sent = bool(composer.draft), composer.set_starting(False)
        if not first.is_restored:
            written[NEW_CHAT_ID] = self.drafts.get(None).text + written[NEW_CHAT_ID]
        for id, text in written.items():
            self.drafts.set(id, text)
        self.open(first.conversation_id or None)
        shown = composer.draft
        if is_sent:
            composer.send()
        await self.conversations.start()
        if self.conversations.chat_ids and self.current is None and not is_typed and composer.draft == shown:
            self.open(self.conversations.chat_ids[0])
        else:
            self._show_all()

    def open(self, conversation_id: str | None) -> None:
        """Open a conversation; None opens an empty page for a new one."""
        if conversation_id == self.current and self._views.transcript.messages:
            return
        before, self._page = self.current, ComposeTarget(conversation_id)
        self.turn_of().clear_finished()
        self._loading = conversation_id is not None
        self.drafts.show()
        self.send_controller.show_queued()
        self._views.transcript.show_conversation([])
        self._views.sidebar.show_selected(conversation_id)
        if conversation_id is not None:
            self._runtime.chat.select(conversation_id)
            self._load_task = self._runner.start(self._reload_messages(conversation_id, force=True))
        self._show_all()
        if before != conversation_id:
            self.conversation_changed.emit(before)

    async def open_at(self, conversation_id: str, message_id: str) -> None:
        """Open a conversation at this message, on the message's branch. Raises ReplyInProgress."""
        self.open(conversation_id)
        if self._load_task is not None:
            await asyncio.wait([self._load_task])
        if not self._views.transcript.has_message(message_id):
            await self._runtime.chat.switch(conversation_id, message_id)
            await self._reload_messages(conversation_id)

    @property
    def is_answering(self) -> bool:
        return self._presenter.is_answering

    def retry(self) -> None:
        if self.current is not None:
            self.run_turn(self.current, self._runtime.chat.retry(self.current))

    def resend_when_ready(self) -> None:
        """Send the open chat's last message again as soon as the paired computer is back, and wake that."""
        if self.current is not None:
            self.turn_of().resends = True
            self._show_turn()
            self._runner.start(self._runtime.engine.wake_server())

    def stop(self) -> None:
        if self.current is not None:
            self._runtime.chat.stop(self.current)

    def _ask_to_prioritize(self) -> None:
        current = self.current
        if current is not None and (other := self._runtime.chat.slots.blocking_chat(current)):
            title = self.conversations.title(other)
            confirm(
                self._views.transcript,
                _("Prioritize this chat?"),
                _("This stops the reply in “{title}”. You can continue it later.", title=title),
                _("Prioritize this chat"),
                lambda: self._runtime.chat.turns.prioritize(current),
                keep=_("Wait"),
            )

    def show_engine(self) -> None:
        engine, model, views = self._runtime.engine, self._runtime.model, self._views
        can_download = model.repository is not None
        views.engine_card.show_status(
            engine.status,
            model.name,
            is_model_missing=model.is_missing,
            can_download=can_download,
            has_own_engine=self._runtime.settings.model_path is not None,
        )
        views.status_strip.show_engine(engine.status, model.label, engine.context_size, engine.context_reason)
        self._show_header()
        if self._model != (chosen := self._runtime.settings.engine_url or model.path):
            self._model = chosen
            self.model_changed.emit()

    def run_turn(self, conversation_id: str, task: asyncio.Future[Any]) -> None:
        """Show the turn that runs in `task`."""

        def end(_: object) -> None:
            self.send_controller.release_drafts(conversation_id)
            self.turn_of(conversation_id).end()
            self.conversations.reload_soon()  # no reply is coming, and a refusal sends no other event
            if conversation_id == self.current:
                self._show_turn()

        self.turn_of(conversation_id).begin()
        self._runner.watch(task, lambda error: None)  # TurnFailed has already reported it
        task.add_done_callback(end)
        self._show_turn()

    def turn_of(self, conversation_id: str | None = None) -> TurnStatus:
        """Return the turn status of a conversation, by default of the open one."""
        return self._turns[(self.current or NEW_CHAT_ID) if conversation_id is None else conversation_id]

    def _handle_event(self, event: events.Event) -> None:
        match event:
            case events.EngineChanged(status=status):
                if status.state is EngineState.READY:
                    for id in [id for id, turn in self._turns.items() if turn.resends]:
                        self.run_turn(id, self._runtime.chat.retry(id))
                self.show_engine()
                self._show_turn()
                self.conversations.reload_soon()
            case events.SettingsChanged():
                self._views.look.apply_settings(self._runtime.settings)
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
        turn, is_open = self.turn_of(id), id == (self.current or NEW_CHAT_ID)
        live_id = turn.live_id
        turn.handle_event(event)
        match event:
            case events.ReplyDelta(message_id=message_id) if is_open:
                if message_id != live_id and not self._views.transcript.has_message(message_id):
                    self._runner.start(self._reload_messages(id))
                self._presenter.show_live()
            case events.ReplyFinished(message_id=message_id):
                self.conversations.reload_soon()
                if is_open:
                    self._runner.start(self._reload_messages(id, finished=message_id))
            case Restored() | Saved():
                self.conversations.reload_soon()
        continues = isinstance(event, events.ReplyDelta) and event.message_id == live_id  # hundreds a second
        blocks = self.current is not None and self._runtime.chat.slots.blocking_chat(self.current) == id
        if (is_open or blocks) and not continues:
            self._show_turn()

    async def _reload_messages(self, conversation_id: str, *, force: bool = False, finished: str = "") -> None:
        """Reload the messages. `finished` is the id of a reply that has just ended, for screen readers."""
        if not await self._presenter.reload(conversation_id, force=force):
            return
        self._loading = False
        self._show_all()
        messages = self._views.transcript.messages
        if force and messages and messages[-1].awaits_model and not self.is_answering:
            self.retry()  # a model may exist now; else fails as before
        if finished:
            self._views.transcript.announce_reply(finished)

    def _show_all(self) -> None:
        self._show_header()
        self._show_turn()

    def _show_header(self) -> None:
        current, conversations = self.current, self.conversations
        self._views.header.show_model(self._runtime.model.name_for_conversation(conversations.conversation(current)))
        self._views.header.show_conversation(conversations.title(current), exists=current is not None)

    def _show_turn(self) -> None:
        runtime, here, waiting = self._runtime, self.turn_of(), ""
        if self.current and (other := runtime.chat.slots.blocking_chat(self.current)):
            turn = self.turn_of(other)
            waiting = waiting_text(self.conversations.title(other), turn)
        no_model = not runtime.model.is_configured and is_engine_failure(here.failure, runtime.engine.status)
        self._views.status_strip.show_turn(
            () if no_model else here.remarks,
            here.fraction,
            is_silent=here.is_silent,
            is_reading_ahead=here.reading_ahead,
        )
        self._presenter.show_turn(waiting)
        messages = self._views.transcript.messages
        self.content_changed.emit(bool(messages) or self.is_answering or self._loading)

    def handle_request(self, request: MessageRequest, transcript: Transcript | None = None) -> None:
        """Run an action on a message, requested in `transcript` (default: the main window's).

        All actions but a fork change the conversation's branches, so they are refused during a reply.
        """
        transcript = transcript or self._views.transcript
        message, chat, id = request.message, self._runtime.chat, request.message.conversation_id
        if request.kind is RequestKind.FORK:

            async def fork() -> None:
                self.forked.emit(await chat.fork(message))

            self._runner.start(fork())
            return
        if chat.is_answering(id):
            self._views.notices.notify(
                _("The reply to the last message is still being generated"), _("Wait for the reply, or stop it.")
            )
            return
        match request.kind:
            case RequestKind.REGENERATE:
                self._run_at_end(id, chat.regenerate(message))
            case RequestKind.REGENERATE_WITH:
                self._regenerated = message
                self.model_menu.popup(QCursor.pos())
            case RequestKind.CONTINUE:
                self._run_at_end(id, chat.continue_reply(message))
            case RequestKind.EDIT if message.role is Role.ASSISTANT and request.text != message.content.strip():
                self._runner.start(self._edit_reply(message, request.text, transcript))
            case RequestKind.EDIT:
                transcript.end_edit(message.id)
                if message.role is Role.USER:
                    self._run_at_end(id, chat.edit(message, request.text))
                elif message.role is Role.TOOL:
                    self._run_at_end(id, chat.edit_result(message, request.text))
            case RequestKind.EDIT_CALL:
                transcript.end_edit(message.id)
                self._run_at_end(id, chat.edit_call(message, request.text))
            case RequestKind.DELETE:
                self._runner.start(self._delete_message(message))
            case RequestKind.SWITCH:
                self._runner.start(chat.switch(id, request.text))

    async def _edit_reply(self, message: Message, text: str, transcript: Transcript) -> None:
        await self._runtime.chat.edit_reply(message, text)
        transcript.end_edit(message.id)  # not before: if it cannot be stored, the text stays there

    def edit_last(self) -> None:
        questions = [message for message in self._views.transcript.messages if message.role is Role.USER]
        if questions:
            self._views.transcript.edit(questions[-1].id)

    def regenerate_last(self) -> None:
        messages = self._views.transcript.messages
        if messages and messages[-1].role is Role.ASSISTANT:
            self.handle_request(MessageRequest(RequestKind.REGENERATE, messages[-1]))

    async def _regenerate_with(self, model: Path) -> None:
        reply, chat = self._regenerated, self._runtime.chat
        if reply is not None and not chat.is_answering(reply.conversation_id):
            await chat.use_model(reply.conversation_id, str(model))
            self._run_at_end(reply.conversation_id, chat.regenerate(reply))

    def _run_at_end(self, conversation_id: str, reply: asyncio.Future[Any]) -> None:
        self._views.transcript.scroll_to_end()
        self.run_turn(conversation_id, reply)

    async def _delete_message(self, message: Message) -> None:
        removed = await self._runtime.chat.delete_message(message)
        title = _("Deleted the message")
        if followed := len(removed.rows) - 1:
            title = plural(
                followed,
                "Deleted the message and {count} message after it",
                "Deleted the message and {count} messages after it",
            )
        restore = self._runtime.chat.restore_messages
        self._views.notices.offer_undo(title, lambda: self._runner.start(restore(removed)))
