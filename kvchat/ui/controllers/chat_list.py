"""Find, move, archive, delete and restore chats: the sidebar's search and the chat menu."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QInputDialog, QMenu

from kvchat.chat.search import ChatHit
from kvchat.runtime import Runtime
from kvchat.text.formatting import VERIFY_MEMORY, one_line
from kvchat.text.language import N_, _, pgettext, plural
from kvchat.ui.commands import add_keep_actions, menu_title
from kvchat.ui.controllers.chat import ChatController
from kvchat.ui.controllers.transfer import TransferController
from kvchat.ui.controllers.views import Controller, Views
from kvchat.ui.sidebar.conversation_list import Row

_MAX_LETTERS = 40  # of a title in a notice
_PAUSE_MS = 80  # delay after a key before searching
_RETRY_MS = 700  # while older messages are loading


class ChatListController(Controller):
    settings_requested = Signal(str)  # conversation id; empty: not started yet

    def __init__(self, runtime: Runtime, views: Views, chat: ChatController, transfer: TransferController) -> None:
        super().__init__(runtime, views, chat)
        self._chat, self._transfer = chat, transfer
        self._search_panel = views.sidebar.search_panel
        self._pause = self._timer(_PAUSE_MS, self._search)
        sidebar, runner = views.sidebar, views.runner
        sidebar.search_panel.field.textChanged.connect(self._query_changed)
        sidebar.search_panel.results.chosen.connect(lambda hit: runner.start(self._open_hit(hit)))
        sidebar.delete_requested.connect(lambda ids: runner.start(self.delete(ids)))
        sidebar.menu_requested.connect(self.fill_menu)

    def fill_menu(self, menu: QMenu, chat: Row, ids: list[str], rename: Callable[[], object]) -> None:
        """Fill `menu` for these chats; the entries show the state of `chat`, one of them.

        A chat without an id has not begun.
        """
        menu.clear()
        runtime, id, add = self._runtime, chat.id, menu.addAction
        single_only = [
            add(_("Rename"), rename),
            add(menu_title("name"), lambda: self._runner.start(runtime.chat.title_generator.generate(id))),
            settings := add(menu_title("chat-settings"), lambda: self.settings_requested.emit(id)),
        ]
        menu.addSeparator()
        self._add_places(menu, chat, ids)
        menu.addSeparator()
        add_keep_actions(
            menu,
            chat.pinned,
            lambda on: self._reload_after(runtime.save_points.pin(id, on)),
            chat.never_save,
            lambda on: self._reload_after(runtime.save_points.never_save(id, on)),
        )
        if chat.imported and len(ids) == 1:
            add(_(VERIFY_MEMORY), lambda: self._reload_after(self._verify(id)))
        menu.addSeparator()
        add(_("Export…"), lambda: self._transfer.export(ids))
        single_only.append(add(menu_title("export-memory"), lambda: self._transfer.export_with_memory(id)))
        title = _("Delete") if len(ids) == 1 else plural(len(ids), "Delete {count} chat", "Delete {count} chats")
        add(title, lambda: self._runner.start(self.delete(ids)))
        for action in single_only:
            action.setEnabled(len(ids) == 1)
        if not id:
            for action in menu.actions():
                action.setEnabled(action is settings)

    def _add_places(self, menu: QMenu, chat: Row, ids: list[str]) -> None:
        start, arrange = self._runner.start, self._runtime.chat.arrange
        top = menu.addAction(_("Pin"), lambda: start(arrange(ids, "on_top", not chat.on_top)))
        top.setCheckable(True)
        top.setChecked(chat.on_top)
        folders = menu.addMenu(_("Move to folder"))

        def move_to(folder: str | None) -> Callable[[], object]:
            return lambda: start(arrange(ids, "folder", folder))

        for folder in self._views.sidebar.folders:
            folders.addAction(folder.replace("&", "&&"), move_to(folder))
        folders.addAction(_("New folder…"), lambda: self._ask_folder(ids))
        folders.addAction(_("No folder"), move_to(None))
        title = _("Unarchive") if chat.archived else pgettext("to do", "Archive")
        menu.addAction(title, lambda: start(self._archive(ids, not chat.archived)))

    def _reload_after(self, change: Awaitable[object]) -> None:
        async def run() -> None:
            try:
                await change
            finally:
                await self._chat.conversations.reload()

        self._runner.start(run())

    async def _verify(self, id: str) -> None:
        if await self._runtime.chat.memory_verifier.verify(id):
            self._views.notices.notify(_("The memory of this chat was verified"), self._chat.conversations.title(id))

    async def show_imported(self, ids: list[str]) -> None:
        sidebar = self._views.sidebar
        sidebar.search_panel.field.clear()
        sidebar.arrange(replace(sidebar.arrangement, folder=None, archive=False))
        await self._chat.conversations.reload()
        self._chat.open(ids[0])
        sidebar.choose(ids)

    async def delete(self, ids: list[str]) -> None:
        deleted = self._runtime.chat.recently_deleted
        await self._change_with_undo(
            ids, N_("Deleted {what}"), lambda: deleted.delete(ids), lambda: deleted.restore_chats(ids)
        )

    async def _archive(self, ids: list[str], archived: bool) -> None:
        arrange = self._runtime.chat.arrange
        done = N_("Archived {what}") if archived else N_("Unarchived {what}")
        change, undo = (partial(arrange, ids, "archived", value) for value in (archived, not archived))
        await self._change_with_undo(ids, done, change, undo, leave=archived)

    async def _change_with_undo(
        self,
        ids: list[str],
        done: str,
        change: Callable[[], Awaitable[object]],
        undo: Callable[[], Awaitable[object]],
        *,
        leave: bool = True,
    ) -> None:
        """Change chats and offer to undo it. leave: if the open chat is among them, open another"""
        here, title = self._chat.current, one_line(self._chat.conversations.titles.get(ids[0], ""))
        name = title if len(title) <= _MAX_LETTERS else f"{title[: _MAX_LETTERS - 1].rstrip()}…"
        alone = len(ids) == 1 and name
        what = _("“{name}”", name=name) if alone else plural(len(ids), "{count} chat", "{count} chats")

        async def undo_all() -> None:
            await undo()
            if here in ids and await self._runtime.chat.conversation(here):  # else it was deleted meanwhile
                self._chat.open(here)

        if leave:
            self._chat.leave_chats(ids)
        await change()
        self._views.notices.offer_undo(_(done, what=what), lambda: self._runner.start(undo_all()))

    def _ask_folder(self, ids: list[str]) -> None:
        dialog = QInputDialog(self._views.sidebar)
        dialog.setWindowTitle(_("New folder"))
        dialog.setLabelText(_("Folder name"))
        dialog.textValueSelected.connect(
            lambda name: name.strip() and self._runner.start(self._runtime.chat.arrange(ids, "folder", name.strip()))
        )
        dialog.open()

    def _query_changed(self, query: str) -> None:
        if query.strip():
            self._pause.start(_PAUSE_MS)
        else:
            self._pause.stop()
            self._search_panel.clear()

    async def _search(self) -> None:
        query = self._search_panel.field.text()
        hits = await self._runtime.chat.finder.find(query)
        if query == self._search_panel.field.text() and query.strip():
            self._search_panel.show_results(hits)
            if not hits.complete:
                self._pause.start(_RETRY_MS)

    async def _open_hit(self, hit: ChatHit) -> None:
        query = self._search_panel.field.text()
        if not hit.message_ids:
            self._chat.open(hit.conversation_id)
            return
        message_id = hit.message_ids[0]
        await self._chat.open_at(hit.conversation_id, message_id)
        self._views.find_bar.begin(query, message_id)
        if hit.in_document:
            self._views.transcript.marks.open_document(message_id)
