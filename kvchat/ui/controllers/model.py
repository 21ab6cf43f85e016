"""Choice of the model that replies, also if the file of the last one is missing."""

from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from kvchat.chat.record.messages import Role
from kvchat.engine.api.connection import EngineState
from kvchat.engine_host.choice import ModelMissing
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.text.language import _
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.controllers.views import Controller, Views
from kvchat.ui.models.first_start import open_gguf_dialog


class ModelController(Controller):
    models_requested = Signal()
    repository_requested = Signal(str)  # Hugging Face repository, to choose a file

    def __init__(self, runtime: Runtime, views: Views, chat: ChatController, window: QWidget) -> None:
        super().__init__(runtime, views, window)
        self._chat, self._window = chat, window
        failure, engine, first_start = views.transcript.tail.failure_card, views.engine_card, views.first_start
        failure.use_current_button.clicked.connect(self._use_current)
        failure.locate_button.clicked.connect(self._locate_for_conversation)
        for choose in (failure.model_button, engine.model_button, first_start.models_button):
            choose.clicked.connect(self.models_requested)
        engine.locate_button.clicked.connect(lambda: self._locate(runtime.model.path or "", retry=False))
        engine.download_button.clicked.connect(lambda: self.repository_requested.emit(runtime.model.repository))

    @property
    def current(self) -> str | None:
        """Path of the open (or new) conversation's model, or None."""
        conversation = self._chat.conversations.conversation(self._chat.current)
        return conversation.model if conversation and conversation.model else self._runtime.settings.model_path

    async def use(self, path: Path) -> None:
        """Make this the default model and apply it. An error is shown on the first-start page."""
        try:
            await self._runtime.use_model(path)
        except KvchatError as error:
            self._views.first_start.show_error(error)
        else:
            self.apply_default()

    async def switch(self, path: Path | str) -> None:
        """Use another model in the open conversation or, if none is open, by default. Raises KvchatError.

        A string is the name of a paired computer's model.
        """
        if isinstance(path, str):
            if self._chat.current is not None:
                await self._runtime.chat.use_model(self._chat.current, path)
            await self._runtime.engine.ready(path)
            self._chat.show_engine()
        elif self._chat.current is None:
            await self._runtime.use_model(path)
            self.apply_default()
        else:
            await self._use(str(path))
            self._chat.show_engine()
            self._chat.model_changed.emit()

    def apply_default(self) -> None:
        """Apply a new default model to the open chat, unless that has replies from another model and no error."""
        conversation, model = self._chat.conversations.conversation(self._chat.current), self._runtime.model
        has_reply = any(message.role is Role.ASSISTANT for message in self._views.transcript.messages)
        failed = self._runtime.engine.status.state is EngineState.FAILED or self._chat.turn_of().failure is not None
        if has_reply and not failed and self.current != self._runtime.settings.model_path:
            self._views.notices.notify(
                _("New chats use {model}", model=model.name_for_conversation(None)),
                _(
                    "This chat still uses {model}. You can change its model above the chat.",
                    model=model.name_for_conversation(conversation),
                ),
            )
        else:
            self._use_current()
        self._chat.show_engine()
        self._chat.model_changed.emit()

    def _use_current(self) -> None:
        if path := self._runtime.settings.model_path:
            self._runner.start(self._use(path))

    def _locate_for_conversation(self) -> None:
        failure = self._chat.turn_of().failure
        if isinstance(failure, ModelMissing):
            self._locate(failure.path, retry=True)

    def _locate(self, missing: str, *, retry: bool) -> None:
        id = self._chat.current

        async def use(path: Path) -> None:
            await self._runtime.locate_model(missing, path)
            if retry and id == self._chat.current:
                self._chat.retry()

        open_gguf_dialog(self._window, lambda path: self._runner.start(use(path)))

    async def _use(self, path: str) -> None:
        """Load the model for the open conversation, and retry the last message if it failed."""
        id, failure = self._chat.current, self._chat.turn_of().failure
        last = self._views.transcript.messages[-1:]
        await self._runtime.load_model(Path(path))
        if id is not None:
            await self._runtime.chat.use_model(id, path)
            if failure is not None and last and last[0].role is Role.USER and id == self._chat.current:
                self._chat.retry()
