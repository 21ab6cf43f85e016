"""Which model answers: as chosen, and what to do where its file is gone."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from kvchat.engine_host.choice import ModelMissing
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.controllers.controller import Controller
from kvchat.ui.controllers.views import Views
from kvchat.ui.models.first_start import open_gguf_dialog


class ModelController(Controller):
    """Joins the cards of the engine and of a failed turn, the first start, the models window and the conversation."""

    models_requested = Signal()
    repository_requested = Signal(str)  # on Hugging Face, to choose one of its files
    used = Signal()  # another model, from now on

    def __init__(self, runtime: Runtime, views: Views, chat: ChatController, window: QWidget) -> None:
        super().__init__(runtime, views, window)
        self._chat, self._window = chat, window
        failure, engine, first_start = views.transcript.tail.failure, views.engine_card, views.first_start
        failure.use_current.clicked.connect(self.use_current)
        failure.locate.clicked.connect(self._locate_for_conversation)
        for choose in (failure.model, engine.model, first_start.models):
            choose.clicked.connect(self.models_requested)
        engine.locate.clicked.connect(self._locate)
        engine.fetch.clicked.connect(self._fetch_again)
        first_start.pick_requested.connect(lambda path: self._runner.start(self.use(path)))

    async def use(self, path: Path) -> None:
        """Use another model; what is wrong with it is told on the page of the first start."""
        try:
            await self._runtime.use_model(path)
        except KvchatError as error:
            self._views.first_start.show_error(error)
            return
        self.take_up()

    async def switch(self, path: Path) -> None:
        """Another model answers in the open conversation from now on. Raises KvchatError."""
        if str(path) != self._runtime.settings.model_path:
            await self._runtime.use_model(path)
        self.take_up()

    def take_up(self) -> None:
        """Another model is in use now: the open conversation goes on with it."""
        self.use_current()
        self._chat.show_engine()
        self.used.emit()

    def use_current(self) -> None:
        """The open conversation goes on with the model in use, and the last message is answered."""
        if path := self._runtime.settings.model_path:
            self._runner.start(self._use(path, answer=isinstance(self._chat.failure, ModelMissing)))

    def _locate(self) -> None:
        """Let the user show where the missing model is; what is wrong with it is told above the transcript."""
        missing = self._runtime.settings.model_path or ""
        open_gguf_dialog(self._window, lambda path: self._runner.start(self._runtime.locate_model(missing, path)))

    def _fetch_again(self) -> None:
        """The files of the repository the missing model came from, to choose one."""
        repository = self._runtime.model.repository
        if repository is not None:
            self.repository_requested.emit(repository)

    def _locate_for_conversation(self) -> None:
        failure = self._chat.failure
        if isinstance(failure, ModelMissing):
            missing = failure.path
            open_gguf_dialog(self._window, lambda path: self._runner.start(self._located(missing, path)))

    async def _located(self, missing: str, path: Path) -> None:
        await self._runtime.locate_model(missing, path)
        self._chat.retry()

    async def _use(self, path: str, *, answer: bool) -> None:
        conversation_id = self._chat.current
        if conversation_id is not None:
            await self._runtime.chat.use_model(conversation_id, path)
            if answer and conversation_id == self._chat.current:
                self._chat.retry()
