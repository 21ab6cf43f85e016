"""Which model answers in the open conversation: as chosen, and what to do where its file is gone."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from kvchat.rooms.choice import ModelMissing
from kvchat.runtime import Runtime
from kvchat.ui.bridge import Bridge
from kvchat.ui.cards import FailureCard
from kvchat.ui.first_start import open_gguf_dialog
from kvchat.ui.tasks import Wishes


class ModelChoices(QObject):
    """Joins the card of a failed turn, the models window and the conversation."""

    models_requested = Signal()

    def __init__(self, runtime: Runtime, bridge: Bridge, card: FailureCard, wishes: Wishes, window: QWidget) -> None:
        super().__init__(window)
        self._runtime, self._bridge, self._wishes, self._window = runtime, bridge, wishes, window
        card.use_current_requested.connect(self.use_current)
        card.locate_requested.connect(self._locate)
        card.model_requested.connect(self.models_requested)

    def use_current(self) -> None:
        """The open conversation goes on with the model in use, and the last message is answered."""
        if path := self._runtime.settings.model_path:
            self._wishes.start(self._use(path, answer=isinstance(self._bridge.failure, ModelMissing)))

    def _locate(self) -> None:
        failure = self._bridge.failure
        if isinstance(failure, ModelMissing):
            missing = failure.path
            open_gguf_dialog(self._window, lambda path: self._wishes.start(self._located(missing, path)))

    async def _located(self, missing: str, path: Path) -> None:
        await self._runtime.locate_model(missing, path)
        self._bridge.retry()

    async def _use(self, path: str, *, answer: bool) -> None:
        conversation_id = self._bridge.current
        if conversation_id is not None:
            await self._runtime.chat.use_model(conversation_id, path)
            if answer and conversation_id == self._bridge.current:
                self._bridge.retry()
