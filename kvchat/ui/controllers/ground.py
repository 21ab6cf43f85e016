"""Says above a chat which documents of the library it stands on, and what is to be known of them."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from kvchat.chat import events
from kvchat.chat.prepared.service import Ground, Standing
from kvchat.runtime import Runtime
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.controllers.controller import Controller
from kvchat.ui.controllers.views import Views
from kvchat.words.language import _, beside, several

_GATHER_MS = 60  # changes this soon after each other are asked about once


class GroundController(Controller):
    """Asks when another chat is opened, and when the library or the engine has changed."""

    library_requested = Signal(str)  # at the entry of that id; empty: at none

    def __init__(self, runtime: Runtime, views: Views, chat: ChatController, parent: QObject) -> None:
        super().__init__(runtime, views, parent)
        self._chat, self._line = chat, views.documents
        self._ground: Ground | None = None
        self._soon = self._timer(_GATHER_MS, self._load)
        chat.left.connect(self._another_chat)
        self._line.clicked.connect(self._open)

    def _another_chat(self) -> None:
        self._line.hide()
        self._ground = None
        self._soon.start()

    def _hear(self, event: events.Event) -> None:
        match event:
            case events.LibraryChanged(progress=False) | events.EngineChanged() | events.SettingsChanged():
                self._soon.start()
            case events.ReplyFinished(conversation_id=id) if id == self._chat.current and self._ground:
                self._soon.start()  # it has memory of its own now

    async def _load(self) -> None:
        id, runtime = self._chat.current, self._runtime
        ground = await runtime.chat.library.ground_of(id) if id else None
        standing = None
        if ground and ground.prepared:
            usage, now = await runtime.save_points.usage(), await runtime.engine.states_now(runtime.settings.model_path)
            [standing] = await runtime.chat.library.standings(now, usage.conversations, ground.prepared)
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


def words_of(ground: Ground, standing: Standing | None, *, keeps: bool) -> tuple[str, str]:
    """Return the documents a chat stands on, and a remark. keeps: the chat has memory of its own"""
    count = several(len(ground.documents), "{count} document", "{count} documents")
    if standing is None:
        return count, _("no longer in the library")
    text = beside((standing.prepared.name, count))
    if not ground.as_read:
        return text, _("updated since; this chat keeps the version it started with")
    if standing.why_not and not keeps:
        return text, _("to be read: {why_not}", why_not=standing.why_not)
    return text, _("{words} since it was read", words=standing.changes.words) if standing.changes else ""
