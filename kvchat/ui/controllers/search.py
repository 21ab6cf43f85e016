"""Between the search field and the chats: what is typed is looked for, what is chosen is opened at the hit."""

from __future__ import annotations

from kvchat.chat.search.search import FoundChat
from kvchat.runtime import Runtime
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.controllers.controller import Controller
from kvchat.ui.controllers.views import Views

_PAUSE_MS = 80  # between keys, before a search begins
_AGAIN_MS = 700  # while older messages are still being read


class SearchController(Controller):
    """Searches while the user types."""

    def __init__(self, runtime: Runtime, views: Views, chat: ChatController) -> None:
        super().__init__(runtime, views, chat)
        self._chat, self._panel = chat, views.sidebar.search
        self._pause = self._timer(_PAUSE_MS, self._search)
        self._panel.field.textChanged.connect(self._changed)
        self._panel.results.chosen.connect(lambda found: self._runner.start(self._open(found)))

    def _changed(self, query: str) -> None:
        if query.strip():
            self._pause.start(_PAUSE_MS)
        else:
            self._pause.stop()
            self._panel.show_none()

    async def _search(self) -> None:
        query = self._panel.field.text()
        found = await self._runtime.chat.finder.find(query)
        if query != self._panel.field.text() or not query.strip():
            return
        self._panel.show_found(found)
        if not found.complete:
            self._pause.start(_AGAIN_MS)

    async def _open(self, found: FoundChat) -> None:
        query = self._panel.field.text()
        if not found.message_ids:
            self._chat.open(found.conversation_id)
            return
        await self._chat.open_at(found.conversation_id, found.message_ids[0])
        self._views.find_bar.begin(query, found.message_ids[0])
        if found.in_document:
            self._views.transcript.marks.open_document(found.message_ids[0])
