"""The sidebar: its contents, the menu of a chat, search, and moving, archiving, deleting and restoring chats."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QInputDialog, QMenu

from kvchat.chat.record.messages import Conversation
from kvchat.chat.search import ChatHit
from kvchat.chat.turn.forecasts import Forecast
from kvchat.kvstore.savepoint import ConversationUsage, StoreUsage
from kvchat.runtime import Runtime
from kvchat.text.formatting import VERIFY_MEMORY, one_line
from kvchat.text.language import N_, _, pgettext, plural
from kvchat.ui.commands import add_keep_actions, menu_title
from kvchat.ui.controllers.views import Controller, Views
from kvchat.ui.sidebar.conversation_list import Row, arrange_chats, folders_of
from kvchat.ui.storage.storage_panel import owner_names

if TYPE_CHECKING:
    from kvchat.ui.controllers.chat import ChatController

_GATHER_MS = 120  # delay that groups list changes before a redraw
_MAX_LETTERS = 40  # of a title in a notice
_PAUSE_MS = 80  # delay after a key before searching
_RETRY_MS = 700  # while older messages are loading
NEW_TITLE = N_("New chat")


class SidebarController(Controller):
    """Shows the chats with their memory on disk and expected wait for a reply, and carries out actions on them."""

    content_changed = Signal()  # titles, warmth or usage may have changed
    usage_changed = Signal()  # the store has answered
    settings_requested = Signal(str)  # conversation id; empty: not started yet
    export_requested = Signal(list)  # conversation ids
    export_with_memory_requested = Signal(str)  # conversation id

    def __init__(self, runtime: Runtime, views: Views, chat: ChatController) -> None:
        super().__init__(runtime, views, chat)
        self._sidebar, self._chat = views.sidebar, chat
        self._conversations = {chat.id: chat for chat in views.sidebar.model.chats}  # from the first paint
        self._forecasts: dict[str, Forecast] = {}  # for chats that have been visible
        self._requested: set[str] = set()  # forecasts requested since the list was loaded
        self._queue: dict[str, str | None] = {}  # chats still to forecast, with their models
        self._owners: dict[str, str] = {}
        self._usage: dict[str, ConversationUsage] = {}  # by conversation id
        self.usage: StoreUsage | None = None  # last result
        self._reload_timer = self._timer(_GATHER_MS, self.reload)
        self._forecast_timer = self._timer(0, self._forecast)
        self._search_timer = self._timer(_PAUSE_MS, self._search)
        sidebar, start = self._sidebar, self._runner.start
        sidebar.model.renamed.connect(lambda id, title: start(runtime.chat.rename(id, title)))
        sidebar.arrangement_changed.connect(self.show_list)
        sidebar.search_panel.field.textChanged.connect(
            lambda query: self._search_timer.start(_PAUSE_MS if query.strip() else 0)
        )
        sidebar.search_panel.results.chosen.connect(lambda hit: start(self._open_hit(hit)))
        sidebar.delete_requested.connect(lambda ids: start(self.delete(ids)))
        sidebar.menu_requested.connect(self.fill_menu)

    @property
    def chat_ids(self) -> list[str]:
        return [chat.id for chat in arrange_chats(list(self._conversations.values()), self._sidebar.arrangement)]

    @property
    def titles(self) -> dict[str, str]:
        return {id: chat.title for id, chat in self._conversations.items()}

    @property
    def owners(self) -> dict[str, str]:
        """Names of all owners of chat memory by id, as of the last load; see `owner_names`."""
        return self._owners | self.titles

    def title(self, conversation_id: str | None) -> str:
        chat = self.conversation(conversation_id)
        return chat.title if chat else _(NEW_TITLE)

    def conversation(self, conversation_id: str | None) -> Conversation | None:
        return self._conversations.get(conversation_id or "")

    def usage_of(self, conversation_id: str | None) -> ConversationUsage | None:
        return self._usage.get(conversation_id or "")

    def reload_soon(self) -> None:
        self._reload_timer.start()

    async def start(self) -> None:
        await self.reload()
        view = self._sidebar.arrangement
        if view.folder not in (None, *folders_of(self._conversations.values())):
            self._sidebar.arrange(replace(view, folder=None))

    async def reload(self) -> None:
        self._conversations = {chat.id: chat for chat in await self._runtime.chat.conversations()}
        self._requested.clear()
        self.show_list()
        self._owners = await owner_names(self._runtime.chat)
        self.usage = await self._runtime.save_points.usage()
        self._usage = {entry.conversation_id: entry for entry in self.usage.conversations}
        self._sidebar.show_usage(self.usage)
        self.show_list()
        self.usage_changed.emit()

    def show_list(self) -> None:
        row_of = partial(self._row, busy_ids=self._runtime.chat.answering_chats)
        self._sidebar.show_chats(list(self._conversations.values()), row_of, self._chat.current)
        self.content_changed.emit()

    def _row(self, chat: Conversation, busy_ids: Collection[str]) -> Row:
        if chat.id not in self._requested:
            self._requested.add(chat.id)
            self._queue[chat.id] = chat.model
            self._forecast_timer.start()
        return Row(chat, self._forecasts.get(chat.id), chat.id in busy_ids, self.usage_of(chat.id))

    async def _forecast(self) -> None:
        chats, self._queue = self._queue, {}
        self._forecasts |= await self._runtime.chat.forecasts.forecast_chats(chats)
        self._sidebar.list.viewport().update()

    def fill_menu(self, menu: QMenu, id: str, ids: list[str], rename: Callable[[], object]) -> None:
        """Fill `menu` with actions for the chats `ids`.

        Check marks show the state of chat `id`, which is one of them. If it is empty, the chat is not stored yet.
        """
        menu.clear()
        runtime, start, add = self._runtime, self._runner.start, menu.addAction
        chat, usage, arrange = self.conversation(id), self._usage.get(id), runtime.chat.arrange
        single_only = [
            add(_("Rename"), rename),
            add(menu_title("name"), lambda: start(runtime.chat.title_generator.generate(id))),
            settings := add(menu_title("chat-settings"), lambda: self.settings_requested.emit(id)),
        ]
        menu.addSeparator()
        is_on_top, is_archived = chat is not None and chat.on_top, chat is not None and chat.archived
        top = add(_("Pin"), lambda: start(arrange(ids, "on_top", not is_on_top)))
        top.setCheckable(True)
        top.setChecked(is_on_top)
        folders = menu.addMenu(_("Move to folder"))

        def move_to(folder: str | None) -> Callable[[], object]:
            return lambda: start(arrange(ids, "folder", folder))

        for folder in self._sidebar.folders:
            folders.addAction(folder.replace("&", "&&"), move_to(folder))
        folders.addAction(_("New folder…"), lambda: self._ask_folder(ids))
        folders.addAction(_("No folder"), move_to(None))
        title = _("Unarchive") if is_archived else pgettext("to do", "Archive")
        add(title, lambda: start(self._archive(ids, not is_archived)))
        menu.addSeparator()
        add_keep_actions(
            menu,
            usage is not None and usage.pinned,
            lambda on: self._reload_after(runtime.save_points.set_pinned(id, on)),
            usage is not None and usage.never_save,
            lambda on: self._reload_after(runtime.save_points.set_never_save(id, on)),
        )
        if usage is not None and usage.imported and len(ids) == 1:
            add(_(VERIFY_MEMORY), lambda: self._reload_after(self._verify(id)))
        menu.addSeparator()
        add(_("Export…"), lambda: self.export_requested.emit(ids))
        single_only.append(add(menu_title("export-memory"), lambda: self.export_with_memory_requested.emit(id)))
        title = _("Delete") if len(ids) == 1 else plural(len(ids), "Delete {count} chat", "Delete {count} chats")
        add(title, lambda: start(self.delete(ids)))
        for action in single_only:
            action.setEnabled(len(ids) == 1)
        if not id:
            for action in menu.actions():
                action.setEnabled(action is settings)

    def _reload_after(self, change: Awaitable[object]) -> None:
        async def run() -> None:
            try:
                await change
            finally:
                await self.reload()

        self._runner.start(run())

    async def _verify(self, id: str) -> None:
        if await self._runtime.chat.memory_verifier.verify(id):
            self._views.notices.notify(_("The memory of this chat was verified"), self.title(id))

    async def show_imported(self, ids: list[str]) -> None:
        self._sidebar.search_panel.field.clear()
        self._sidebar.arrange(replace(self._sidebar.arrangement, folder=None, archive=False))
        await self.reload()
        self._chat.open(ids[0])
        self._sidebar.choose(ids)

    async def delete(self, ids: list[str]) -> None:
        deleted = self._runtime.chat.recently_deleted
        await self._change_with_undo(
            ids, N_("Deleted {what}"), lambda: deleted.delete(ids), lambda: deleted.restore_chats(ids)
        )

    async def _archive(self, ids: list[str], archived: bool) -> None:
        arrange = self._runtime.chat.arrange
        done_text = N_("Archived {what}") if archived else N_("Unarchived {what}")
        change, undo = (partial(arrange, ids, "archived", value) for value in (archived, not archived))
        await self._change_with_undo(ids, done_text, change, undo, leave_chat=archived)

    async def _change_with_undo(
        self,
        ids: list[str],
        done_text: str,
        change: Callable[[], Awaitable[object]],
        undo: Callable[[], Awaitable[object]],
        *,
        leave_chat: bool = True,
    ) -> None:
        """Change these chats and offer to undo it.

        If the open chat is one of them and `leave_chat` is true, open another chat.
        """
        here, title = self._chat.current, one_line(self.titles.get(ids[0], ""))
        name = title if len(title) <= _MAX_LETTERS else f"{title[: _MAX_LETTERS - 1].rstrip()}…"
        alone = len(ids) == 1 and name
        what = _("“{name}”", name=name) if alone else plural(len(ids), "{count} chat", "{count} chats")

        async def undo_all() -> None:
            await undo()
            if here in ids and await self._runtime.chat.conversation(here):  # else it was deleted meanwhile
                self._chat.open(here)

        if leave_chat and here in ids:
            shown = self.chat_ids
            position = shown.index(here) if here in shown else 0
            others = (other for other in shown[position:] + shown[:position][::-1] if other not in ids)
            self._chat.open(next(others, None))
        await change()
        self._views.notices.offer_undo(_(done_text, what=what), lambda: self._runner.start(undo_all()))

    def _ask_folder(self, ids: list[str]) -> None:
        dialog = QInputDialog(self._sidebar)
        dialog.setWindowTitle(_("New folder"))
        dialog.setLabelText(_("Folder name"))
        dialog.textValueSelected.connect(
            lambda name: name.strip() and self._runner.start(self._runtime.chat.arrange(ids, "folder", name.strip()))
        )
        dialog.open()

    async def _search(self) -> None:
        panel = self._sidebar.search_panel
        query = panel.field.text()
        if not query.strip():
            panel.clear()
            return
        hits = await self._runtime.chat.finder.find(query)
        if query == panel.field.text():
            panel.show_results(hits)
            if not hits.complete:
                self._search_timer.start(_RETRY_MS)

    async def _open_hit(self, hit: ChatHit) -> None:
        query = self._sidebar.search_panel.field.text()
        if not hit.message_ids:
            self._chat.open(hit.conversation_id)
            return
        message_id = hit.message_ids[0]
        await self._chat.open_at(hit.conversation_id, message_id)
        self._views.find_bar.start_search(query, message_id)
        if hit.in_document:
            self._views.transcript.marks.open_matching_attachment(message_id)
