"""Between the buttons of a message and the chat."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtGui import QCursor
from PySide6.QtWidgets import QMenu

from kvchat.chat.record.messages import Message, Role
from kvchat.runtime import Runtime
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.controllers.controller import Controller
from kvchat.ui.controllers.views import Views
from kvchat.ui.messages.message_actions import MessageRequest, Request
from kvchat.ui.models.model_choice import ModelMenu
from kvchat.words.language import _, number


class MessageController(Controller):
    """Stands between the page and the chat."""

    forked = Signal(str)  # the id of a conversation that was made from a reply
    models_requested = Signal()

    def __init__(self, runtime: Runtime, views: Views, chat: ChatController) -> None:
        super().__init__(runtime, views, chat)
        self._chat, self._transcript = chat, views.transcript
        self.models = QMenu(views.transcript)
        self._again: Message | None = None  # the reply that another model is chosen for
        menu = ModelMenu(runtime, self.models, views.runner, lambda: runtime.model.path)
        menu.chosen.connect(lambda path: views.runner.start(self._regenerate_with(path)))
        menu.more_requested.connect(self.models_requested)
        views.transcript.message_requested.connect(self.handle)
        views.composer.editor.up_from_empty.connect(self.edit_last)

    def handle(self, requested: MessageRequest) -> None:
        """Run a message's action; all but a fork wait until no reply is being made, because they change the tree."""
        message, chat = requested.message, self._runtime.chat
        id = message.conversation_id
        if requested.run is Request.FORK:  # which leaves this chat as it is
            self._runner.start(self._fork(message))
            return
        if chat.is_answering(id):
            self._views.notices.tell(
                _("The last message is still being answered"), _("Wait for the reply, or stop it.")
            )
            return
        match requested.run:
            case Request.REGENERATE:
                self._run(id, chat.regenerate(message))
            case Request.REGENERATE_WITH:
                self._again = message
                self.models.popup(QCursor.pos())
            case Request.CONTINUE:
                self._run(id, chat.go_on(message))
            case Request.EDIT:
                self._transcript.end_edit(message.id)
                if message.role is Role.USER:
                    self._run(id, chat.edit(message, requested.text))
                elif requested.text != message.content.strip():
                    self._runner.start(chat.edit_reply(message, requested.text))
            case Request.DELETE:
                self._runner.start(self._delete(message))
            case Request.SWITCH:
                self._runner.start(chat.switch(id, requested.text))

    def edit_last(self) -> None:
        questions = [message for message in self._transcript.messages if message.role is Role.USER]
        if questions:
            self._transcript.edit(questions[-1].id)

    def regenerate_last(self) -> None:
        messages = self._transcript.messages
        if messages and messages[-1].role is Role.ASSISTANT:
            self.handle(MessageRequest(Request.REGENERATE, messages[-1]))

    def _run(self, conversation_id: str, reply: asyncio.Future[Any]) -> None:
        self._transcript.scroll_to_end()
        self._chat.run_turn(conversation_id, reply)

    async def _regenerate_with(self, model: Path) -> None:
        """Make another reply with a model that answers this chat from now on."""
        reply = self._again
        if reply is not None and not self._runtime.chat.is_answering(reply.conversation_id):
            await self._runtime.chat.use_model(reply.conversation_id, str(model))
            self._run(reply.conversation_id, self._runtime.chat.regenerate(reply))

    async def _fork(self, reply: Message) -> None:
        self.forked.emit(await self._runtime.chat.fork(reply))

    async def _delete(self, message: Message) -> None:
        removed = await self._runtime.chat.delete_message(message)
        followed = len(removed.rows) - 1
        what = (
            _("Deleted the message and {followed} that followed it", followed=number(followed))
            if followed
            else _("Deleted the message")
        )
        put_back = self._runtime.chat.put_back
        self._views.notices.offer_undo(what, lambda: self._runner.start(put_back(removed)))
