"""Messages that are written during a reply: drafts of their own, sent once the reply has come to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import Signal

from kvchat.chat.events import Event, ReplyFinished
from kvchat.chat.record.messages import QUEUE, Attachment, MessageState
from kvchat.runtime import Runtime
from kvchat.ui.chat.composer import Composer
from kvchat.ui.controllers.controller import Controller
from kvchat.ui.controllers.drafts import DraftController
from kvchat.ui.controllers.views import Views

_LOOK_S = 0.02  # between two looks whether the turn of a finished reply has ended
_ENDED = (MessageState.COMPLETE, MessageState.LIMITED)  # not stopped by the user, and not failed


class QueueController(Controller):
    """Holds at most one message for each chat: what is queued after it becomes a part of it."""

    changed = Signal()

    def __init__(
        self,
        runtime: Runtime,
        views: Views,
        drafts: DraftController,
        run_turn: Callable[[str, asyncio.Future[Any]], None],
        on_sent: Callable[[str, str], None],
    ) -> None:
        """`run_turn` follows a turn; `on_sent` is told the chat and the draft whose words are on their way there."""
        super().__init__(runtime, views, drafts)
        self._drafts, self._run_turn, self._on_sent = drafts, run_turn, on_sent

    def of(self, conversation_id: str | None) -> tuple[str, tuple[Attachment, ...]]:
        """Return the words and attachments that wait there; both empty where nothing does."""
        if conversation_id is None:
            return "", ()
        return self._drafts.of(QUEUE + conversation_id), self._drafts.attached_to(QUEUE + conversation_id)

    def serve(
        self,
        composer: Composer,
        current: Callable[[], str | None],
        edit: Callable[[str, tuple[Attachment, ...]], object],
    ) -> Callable[[], None]:
        """Take what this composer queues for the `current` chat; `edit` is given what is to be written on.

        Returns what shows the message of the chat that is current then.
        """

        def do(act: Callable[[str], object]) -> None:
            if (conversation_id := current()) is not None:
                act(conversation_id)

        def queue(text: str, attachments: tuple[Attachment, ...]) -> None:
            if (conversation_id := current()) is not None:
                self.add(conversation_id, text, attachments)
            else:
                edit(text, attachments)

        composer.queued.connect(queue)
        composer.waiting.edit.clicked.connect(lambda: do(lambda id: edit(*self.take(id))))
        composer.waiting.remove.clicked.connect(lambda: do(self.take))
        composer.waiting.send.clicked.connect(lambda: do(self.send))
        composer.waiting.source = lambda: self.of(current())
        self.changed.connect(composer.waiting.refresh)  # of a widget: no longer called once that is gone
        return composer.waiting.refresh

    def add(self, conversation_id: str, text: str, attachments: tuple[Attachment, ...]) -> None:
        """Have this sent after the reply that is being made there."""
        words, attached = self.of(conversation_id)
        self._set(conversation_id, "\n\n".join(filter(None, (words, text))), (*attached, *attachments))

    def take(self, conversation_id: str) -> tuple[str, tuple[Attachment, ...]]:
        """Return what waits there, which is not sent any more."""
        taken = self.of(conversation_id)
        self._set(conversation_id, "", ())
        return taken

    def send(self, conversation_id: str) -> None:
        """Send now what waits there, if anything does."""
        if not any(self.of(conversation_id)):
            return
        self._drafts.sending(QUEUE + conversation_id)
        text, attachments = self.take(conversation_id)
        self._on_sent(conversation_id, QUEUE + conversation_id)
        left = self._drafts.left(QUEUE + conversation_id)
        send = self._runtime.chat.send(conversation_id, text, attachments=attachments, drafts=left)
        self._run_turn(conversation_id, send)

    def _set(self, conversation_id: str, text: str, attachments: tuple[Attachment, ...]) -> None:
        self._drafts.set(QUEUE + conversation_id, text)
        self._drafts.attach(QUEUE + conversation_id, attachments)
        self.changed.emit()

    def _hear(self, event: Event) -> None:
        if isinstance(event, ReplyFinished) and any(self.of(event.conversation_id)):
            self._runner.start(self._send_after(event.conversation_id, event.message_id))

    async def _send_after(self, conversation_id: str, message_id: str) -> None:
        """Send what waits once the reply's turn is over, unless the reply was stopped.

        A closed controller sends nothing: another window shows these chats.
        """
        messages = await self._runtime.chat.messages(conversation_id)
        if not any(message.id == message_id and message.state in _ENDED for message in messages):
            return
        while not self._closed and self._runtime.chat.is_answering(conversation_id):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        if not self._closed:
            self.send(conversation_id)
