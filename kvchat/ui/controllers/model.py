"""Which model answers: as chosen, and what to do where its file is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from kvchat.chat.record.messages import Role
from kvchat.engine.finding.discovery import find_engine
from kvchat.engine.speaking.connection import EngineState
from kvchat.engine_host.choice import ModelMissing
from kvchat.errors import KvchatError
from kvchat.library.memory.verdict import judge_size
from kvchat.library.model_library import JudgedModel
from kvchat.library.remote.starter import starter_is_here, starter_path
from kvchat.runtime import Runtime
from kvchat.system.login import can_start_at_login, start_at_login, starts_at_login
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.controllers.views import Controller, Views
from kvchat.ui.models.first_start import STARTER_SIZE, open_gguf_dialog
from kvchat.words.language import _, beside
from kvchat.words.wording import size


class ModelController(Controller):
    """Joins the cards of the engine and of a failed turn, the first start, the models window and the conversation."""

    models_requested = Signal()
    repository_requested = Signal(str)  # on Hugging Face, to choose one of its files
    used = Signal()  # another model, from now on

    def __init__(self, runtime: Runtime, views: Views, chat: ChatController, window: QWidget) -> None:
        super().__init__(runtime, views, window)
        self._chat, self._window = chat, window
        self._looks = 0  # of which the last one counts
        failure, engine, first_start = views.transcript.tail.failure, views.engine_card, views.first_start
        failure.use_current.clicked.connect(self.use_current)
        failure.locate.clicked.connect(self._locate_for_conversation)
        for choose in (failure.model, engine.model, first_start.models):
            choose.clicked.connect(self.models_requested)
        engine.locate.clicked.connect(self._locate)
        engine.fetch.clicked.connect(self._fetch_again)
        first_start.login_requested.connect(lambda on: self._runner.start(asyncio.to_thread(start_at_login, on)))
        first_start.pick_requested.connect(lambda path: self._runner.start(self.use(path)))
        first_start.offer.tried.connect(self._see)  # with the card's memory more fits

    def look_around(self) -> None:
        """Show on the first run's page what can be chosen, as soon as it is known."""
        self._views.first_start.show_choices()
        self._see()

    def _see(self) -> None:
        self._looks += 1
        for run in (self._see_starter(self._looks), self._see_machine(), self._see_models()):
            self._runner.start(run)

    async def _see_starter(self, number: int) -> None:
        here = await asyncio.to_thread(starter_is_here, self._runtime.paths.models)
        if number == self._looks:
            self._views.first_start.show_starter(is_here=here)

    async def _see_machine(self) -> None:
        runtime, page = self._runtime, self._views.first_start
        try:
            found = await asyncio.to_thread(find_engine, runtime.settings.engine_path)
            engine = str(found.path or _("the engine inside kvchat"))
        except KvchatError as error:
            engine = error.title
        memory = (await runtime.engine.capacity()).memory
        page.starter.setToolTip(judge_size(STARTER_SIZE, memory).reason)
        free, whole = size(memory.available), size(memory.all_there_is)
        seen = [engine, _("{free} of {whole} of memory free", free=free, whole=whole)]
        free = size(memory.device_free)
        seen.append(
            _("{free} free on {cards}", free=free, cards=memory.beside)
            if memory.devices
            else _("no supported graphics card")
        )
        usage = await runtime.save_points.usage()
        saving = _(
            "The memory of your chats takes up to {size} on disk and saves seconds to minutes of waiting each time "
            "you return to a chat. You can change the limit in Settings, Storage.",
            size=size(usage.quota_bytes),
        )
        at_login = await asyncio.to_thread(starts_at_login) if can_start_at_login() else None
        page.show_machine(_("Detected: {things}.", things=beside(seen)), saving, at_login=at_login)

    async def _see_models(self) -> None:
        found: list[JudgedModel] = []
        await self._runtime.models.find(await self._runtime.engine.model_judge(), found.append, None)
        starter = starter_path(self._runtime.paths.models)  # which has a button of its own
        self._views.first_start.show_found([one for one in found if one.model.path != starter])

    async def use(self, path: Path) -> None:
        """Use another model; an error is shown on the page of the first start."""
        try:
            await self._runtime.use_model(path)
        except KvchatError as error:
            self._views.first_start.show_error(error)
            return
        self.take_up()

    async def switch(self, path: Path) -> None:
        """Another model answers in the open conversation from now on. Raises KvchatError."""
        here = self._chat.current
        if here is None:
            await self._runtime.use_model(path)
            self.take_up()
            return
        await self._use(str(path), answer=self._is_unanswered)
        self._chat.show_engine()
        self.used.emit()

    def take_up(self) -> None:
        """Follow the choice of a model for new chats; an open chat answered by another model keeps that one."""
        conversation, model = self._chat.conversations.conversation(self._chat.current), self._runtime.model
        begun = any(one.role is Role.ASSISTANT for one in self._views.transcript.messages)
        works = self._chat.failure is None and self._runtime.engine.status.state is not EngineState.FAILED
        if begun and works and self.answering != self._runtime.settings.model_path:
            self._views.notices.tell(
                _("New chats are answered by {model}", model=model.name_in(None)),
                _("This chat stays with {model}. Choose another above the chat.", model=model.name_in(conversation)),
            )
        else:
            self.use_current()
        self._chat.show_engine()
        self.used.emit()

    @property
    def answering(self) -> str | None:
        """Path of the model that answers in the open conversation, or in a new one; None without one."""
        conversation = self._chat.conversations.conversation(self._chat.current)
        return conversation.model if conversation and conversation.model else self._runtime.settings.model_path

    @property
    def _is_unanswered(self) -> bool:
        """True if the open conversation ends with a message whose reply failed."""
        last = self._views.transcript.messages[-1:]
        return self._chat.failure is not None and any(one.role is Role.USER for one in last)

    def use_current(self) -> None:
        """Continue the open conversation with the chosen model, and answer its unanswered message."""
        if path := self._runtime.settings.model_path:
            self._runner.start(self._use(path, answer=self._is_unanswered))

    def _locate(self) -> None:
        missing = self._runtime.model.path or ""
        open_gguf_dialog(self._window, lambda path: self._runner.start(self._runtime.locate_model(missing, path)))

    def _fetch_again(self) -> None:
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
        await self._runtime.load_model(Path(path))
        if conversation_id is not None:
            await self._runtime.chat.use_model(conversation_id, path)
            if answer and conversation_id == self._chat.current:
                self._chat.retry()
