"""The sidebar's data: the chats, each one's expected wait for a reply, and its memory on disk."""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from PySide6.QtCore import QObject, Signal

from kvchat.chat.record.messages import Conversation
from kvchat.chat.turn.forecasts import Forecast
from kvchat.kvstore.savepoint import ConversationUsage, StoreUsage
from kvchat.runtime import Runtime
from kvchat.text.language import N_, _
from kvchat.ui.controllers.views import Controller, Views
from kvchat.ui.sidebar.conversation_list import Row, arranged, folders_of
from kvchat.ui.storage.storage_panel import owner_names

_GATHER_MS = 120  # delay that groups list changes before a redraw
NEW_TITLE = N_("New chat")


class SidebarController(Controller):
    content_changed = Signal()  # titles, warmth or usage may have changed
    usage_changed = Signal()  # the store has answered

    def __init__(self, runtime: Runtime, views: Views, current: Callable[[], str | None], parent: QObject) -> None:
        super().__init__(runtime, views, parent)
        self._sidebar, self._current = views.sidebar, current
        self._conversations = {chat.id: chat for chat in views.sidebar.model.chats}  # from the first paint
        self._forecasts: dict[str, Forecast] = {}  # for chats that have been visible
        self._requested: set[str] = set()  # forecasts requested since the list was loaded
        self._queue: dict[str, str | None] = {}  # chats still to forecast, with their models
        self._owners: dict[str, str] = {}
        self._usage: dict[str, ConversationUsage] = {}  # by conversation id
        self.usage: StoreUsage | None = None  # last result
        self._reload_timer = self._timer(_GATHER_MS, self.reload)
        self._forecast_timer = self._timer(0, self._forecast)
        sidebar = self._sidebar
        sidebar.model.renamed.connect(lambda id, title: self._runner.start(runtime.chat.rename(id, title)))
        sidebar.arranged.connect(self.show_list)

    @property
    def ids(self) -> list[str]:
        return [chat.id for chat in arranged(list(self._conversations.values()), self._sidebar.arrangement)]

    @property
    def titles(self) -> dict[str, str]:
        return {id: chat.title for id, chat in self._conversations.items()}

    @property
    def owners(self) -> dict[str, str]:
        """Names of all owners of memory in the store, by id, as last loaded; see `owner_names`."""
        return self._owners | self.titles

    def title(self, conversation_id: str | None) -> str:
        chat = self.conversation(conversation_id)
        return chat.title if chat else _(NEW_TITLE)

    def conversation(self, conversation_id: str | None) -> Conversation | None:
        return self._conversations.get(conversation_id or "")

    def usage_of(self, conversation_id: str | None) -> ConversationUsage | None:
        return self._usage.get(conversation_id or "")

    def row(self, conversation_id: str | None) -> Row:
        chat = self.conversation(conversation_id)
        return self._row(chat, ()) if chat else Row("", self.title(None))

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
        row_of = partial(self._row, busy=self._runtime.chat.answering_chats)
        chats = list(self._conversations.values())
        self._sidebar.show_chats(arranged(chats, self._sidebar.arrangement), row_of, self._current(), folders_of(chats))
        self.content_changed.emit()

    def _row(self, chat: Conversation, busy: Collection[str]) -> Row:
        usage = self.usage_of(chat.id)
        if chat.id not in self._requested:
            self._requested.add(chat.id)
            self._queue[chat.id] = chat.model
            self._forecast_timer.start()
        return Row(
            chat.id,
            chat.title,
            self._forecasts.get(chat.id),
            busy=chat.id in busy,
            pinned=usage is not None and usage.pinned,
            never_save=usage is not None and usage.never_save,
            imported=usage is not None and usage.imported,
            on_top=chat.on_top,
            folder=chat.folder,
            archived=chat.archived,
        )

    async def _forecast(self) -> None:
        chats, self._queue = self._queue, {}
        self._forecasts |= await self._runtime.chat.forecasts.forecast_chats(chats)
        self._sidebar.list.viewport().update()
