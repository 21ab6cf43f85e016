"""Between the sidebar and the chats: they are found, moved, archived, deleted and restored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from PySide6.QtWidgets import QInputDialog

from kvchat.chat.search import FoundChat
from kvchat.runtime import Runtime
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.controllers.views import Controller, Views
from kvchat.words.language import N_, _, several
from kvchat.words.wording import one_line

_MOST_LETTERS = 40  # of a title in a notice
_PAUSE_MS = 80  # between keys, before a search begins
_AGAIN_MS = 700  # while older messages are still being read


class OrganiserController(Controller):
    """Does what the sidebar's menu asks for, and searches while the user types."""

    def __init__(self, runtime: Runtime, views: Views, chat: ChatController) -> None:
        super().__init__(runtime, views, chat)
        self._chat, self._organiser, self._search_panel = chat, runtime.chat.organiser, views.sidebar.search
        self._pause = self._timer(_PAUSE_MS, self._search)
        sidebar, runner = views.sidebar, views.runner
        sidebar.search.field.textChanged.connect(self._query_changed)
        sidebar.search.results.chosen.connect(lambda found: runner.start(self._open_found(found)))
        sidebar.delete_requested.connect(lambda ids: runner.start(self.delete(ids)))
        sidebar.archive_requested.connect(lambda ids, on: runner.start(self._archive(ids, on)))
        sidebar.top_requested.connect(lambda ids, on: runner.start(self._organiser.keep_on_top(ids, on)))
        sidebar.move_requested.connect(lambda ids, to: runner.start(self._organiser.move(ids, to)))
        sidebar.new_folder_requested.connect(self._ask_folder)

    async def show_imported(self, ids: list[str]) -> None:
        """List all new chats, select them and open the first."""
        sidebar = self._views.sidebar
        sidebar.search.field.clear()
        sidebar.arrange(replace(sidebar.arrangement, folder=None, archive=False))
        await self._chat.conversations.reload()
        self._chat.open(ids[0])
        sidebar.choose(ids)

    async def delete(self, ids: list[str]) -> None:
        offer_undo = self._undo_offer(ids, N_("Deleted {what}"), self._organiser.undo_delete)
        self._chat.step_away(ids)
        await self._organiser.delete(ids)
        offer_undo()

    async def _archive(self, ids: list[str], archived: bool) -> None:
        offer_undo = self._undo_offer(
            ids,
            N_("Archived {what}") if archived else N_("Unarchived {what}"),
            lambda ids: self._organiser.archive(ids, not archived),
        )
        if archived:
            self._chat.step_away(ids)
        await self._organiser.archive(ids, archived)
        offer_undo()

    def _undo_offer(self, ids: list[str], done: str, undo: Callable[[list[str]], Awaitable[Any]]) -> Callable[[], None]:
        """Return a function that offers to undo it. Make it while the chats are still listed: it names them."""
        here, title = self._chat.current, one_line(self._chat.conversations.titles.get(ids[0], ""))

        async def undo_all() -> None:
            await undo(ids)
            if here in ids and await self._runtime.chat.conversation(here):  # else it has gone for good meanwhile
                self._chat.open(here)

        name = title if len(title) <= _MOST_LETTERS else f"{title[: _MOST_LETTERS - 1].rstrip()}…"
        alone = len(ids) == 1 and name
        what = _("“{name}”", name=name) if alone else several(len(ids), "{count} chat", "{count} chats")
        return lambda: self._views.notices.offer_undo(_(done, what=what), lambda: self._runner.start(undo_all()))

    def _ask_folder(self, ids: list[str]) -> None:
        dialog = QInputDialog(self._views.sidebar)
        dialog.setWindowTitle(_("New folder"))
        dialog.setLabelText(_("Name of the folder"))
        dialog.textValueSelected.connect(
            lambda name: name.strip() and self._runner.start(self._organiser.move(ids, name))
        )
        dialog.open()

    def _query_changed(self, query: str) -> None:
        if query.strip():
            self._pause.start(_PAUSE_MS)
        else:
            self._pause.stop()
            self._search_panel.show_none()

    async def _search(self) -> None:
        query = self._search_panel.field.text()
        found = await self._runtime.chat.finder.find(query)
        if query != self._search_panel.field.text() or not query.strip():
            return
        self._search_panel.show_found(found)
        if not found.complete:
            self._pause.start(_AGAIN_MS)

    async def _open_found(self, found: FoundChat) -> None:
        query = self._search_panel.field.text()
        if not found.message_ids:
            self._chat.open(found.conversation_id)
            return
        await self._chat.open_at(found.conversation_id, found.message_ids[0])
        self._views.find_bar.begin(query, found.message_ids[0])
        if found.in_document:
            self._views.transcript.marks.open_document(found.message_ids[0])
