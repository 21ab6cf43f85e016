"""Between the search field and the chats: what is typed is looked for, what is chosen is opened at the hit."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer

from kvchat.chat.search.search import FoundChat
from kvchat.runtime import Runtime
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.chat.find_bar import FindBar
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.sidebar.search_panel import SearchPanel

_PAUSE_MS = 80  # between keys, before a search begins
_AGAIN_MS = 700  # while older messages are still being read


class SearchController(QObject):
    """Searches while the user types."""

    def __init__(
        self, runtime: Runtime, panel: SearchPanel, bar: FindBar, controller: ChatController, runner: TaskRunner
    ) -> None:
        super().__init__(controller)
        self._runtime, self._panel, self._bar, self._controller, self._runner = runtime, panel, bar, controller, runner
        self._pause = QTimer(self)
        self._pause.setSingleShot(True)
        self._pause.timeout.connect(lambda: runner.start(self._search()))
        panel.field.textChanged.connect(self._changed)
        panel.results.chosen.connect(lambda found: runner.start(self._open(found)))

    def close(self) -> None:
        """Search no more."""
        self._pause.stop()

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
            self._controller.open(found.conversation_id)
            return
        await self._controller.open_at(found.conversation_id, found.message_ids[0])
        self._bar.begin(query, found.message_ids[0])
        if found.in_document:
            self._bar.show_document(found.message_ids[0])
