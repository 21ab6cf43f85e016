"""The sidebar: New, the conversations with cache status and menu, and the save points' disk use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import (
    QItemSelection,
    QItemSelectionModel,
    QItemSelectionRange,
    QModelIndex,
    QPoint,
    QSignalBlocker,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtWidgets import QAbstractItemView, QFrame, QMenu, QSizePolicy, QWidget

from kvchat.ui.base.building import button, column, label, progress_bar, row, tool_button
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.sidebar.conversation_list import (
    Arrangement,
    ChatList,
    ConversationDelegate,
    ConversationModel,
    Order,
    Row,
    with_headings,
)
from kvchat.ui.sidebar.search_panel import SearchPanel
from kvchat.ui.widgets.layouts import ElidedButton
from kvchat.ui.widgets.lists import ROW
from kvchat.words.language import _
from kvchat.words.wording import STORAGE, one_line, size_of

if TYPE_CHECKING:
    from kvchat.chat.record.messages import Conversation
    from kvchat.kvstore.savepoint import StoreUsage


_ALONE = QItemSelectionModel.SelectionFlag.ClearAndSelect  # ignores held keys
_BESIDE_USAGE = 56  # pixels: its icon at 200 % text, and the style's padding


class Sidebar(QFrame):
    selected = Signal(str)  # conversation id
    delete_requested = Signal(list)  # conversation ids
    menu_requested = Signal(QMenu, object, list, object)  # menu to fill, Row, conversation ids, rename callback
    arranged = Signal()  # arrangement changed

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("sidebar")
        self._look = look
        self.new_button = button(_("New chat"), kind="new", tip="Ctrl+N")
        self.hide_button = tool_button(_("Hide the sidebar"), tip=_("Hide the sidebar (Ctrl+B)"))
        self.model = ConversationModel(self)
        self.arrangement = Arrangement()
        self.folders: list[str] = []
        self.view_button = button("", kind="quiet", tip=_("Filter and sort chats"))
        self.view_menu = QMenu(self)
        self.view_menu.aboutToShow.connect(self._fill_view_menu)
        self.view_button.setMenu(self.view_menu)
        self.list = self._build_list()
        self.empty = label(_("No chats yet.\nYour chats will appear here."), "small", wraps=True)
        self.empty.setContentsMargins(10, 4, 10, 0)
        self.empty.hide()  # not loaded yet: unread chats are not missing
        self.library_button = button(_("Library"), kind="usage", tip=_("Documents processed once, to start chats with"))
        self.usage_button = ElidedButton("usage", beside=_BESIDE_USAGE)
        self.usage_button.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._say_usage(_(STORAGE), "")
        self.usage_bar = progress_bar(_("Share of the storage limit in use"))
        chats = QWidget()
        column(self.view_button, self.empty, (self.list, 1), on=chats, spacing=2, margins=0)
        self.search = SearchPanel(look, chats)
        above = row((self.new_button, 1), self.hide_button)
        parts = above, (self.search, 1), self.library_button, self.usage_button, self.usage_bar
        column(*parts, on=self, spacing=6, margins=(10, 12, 10, 10))
        look.changed.connect(self._restyle)
        self._restyle()

    @property
    def chosen(self) -> list[str]:
        return [self.model.rows[place].id for place in sorted(map(QModelIndex.row, self.list.selectedIndexes()))]

    def show_chats(
        self,
        chats: Sequence[Conversation],
        row_of: Callable[[Conversation], Row],
        current: str | None,
        folders: Sequence[str],
    ) -> None:
        chosen = self.chosen
        self.folders = list(folders)
        with QSignalBlocker(self.list.selectionModel()):  # removing a row must not open another chat
            self.model.show(with_headings(chats, self.arrangement.order), row_of)
        self.empty.setVisible(not chats and self.arrangement == Arrangement())
        self._name_view()
        if len(chosen) < 2:
            self.show_selected(current)
        elif len(self.chosen) != len(chosen):
            self.choose(chosen)

    def show_selected(self, conversation_id: str | None) -> None:
        selection = self.list.selectionModel()
        index = self.model.index_of(conversation_id)
        with QSignalBlocker(selection):
            if not index.isValid():
                self.list.clearSelection()
                self.list.setCurrentIndex(QModelIndex())
            elif self.list.selectedIndexes() != [index] or selection.currentIndex() != index:
                selection.setCurrentIndex(index, _ALONE)
                self.list.scrollTo(index)
        self.list.viewport().update()

    def step(self, by: int) -> None:
        chats = [chat.id for chat in self.model.chats]
        here = self.list.currentIndex()
        at = chats.index(self.model.rows[here.row()].id) if here.isValid() else -1
        target = 0 if at < 0 else min(max(at + by, 0), len(chats) - 1)
        if target != at and chats:
            self.list.selectionModel().setCurrentIndex(self.model.index_of(chats[target]), _ALONE)

    def begin_rename(self, index: QModelIndex | None = None) -> bool:
        """Edit a title in place, by default the selected one. Return False if it is not listed."""
        index = index or self.list.currentIndex()
        if not self.list.isVisible() or not index.isValid():
            return False
        self.list.setFocus()
        self.list.edit(index)
        return True

    def ask_delete(self) -> None:
        if self.chosen:
            self.delete_requested.emit(self.chosen)

    def arrange(self, arrangement: Arrangement) -> None:
        self.arrangement = arrangement
        self._name_view()
        self.arranged.emit()

    def show_usage(self, usage: StoreUsage) -> None:
        words, tail = _(STORAGE), size_of(usage.physical_bytes, usage.quota_bytes)
        if usage.problem:
            words, tail = _("{storage}: nothing is saved", storage=_(STORAGE)), ""
        self._say_usage(words, tail)
        self.usage_bar.setValue(int(1000 * min(usage.physical_bytes / max(usage.quota_bytes, 1), 1.0)))

    def _say_usage(self, words: str, tail: str) -> None:
        self.usage_button.set_text(words, tail, _("Disk space used by chat memory"))
        self.usage_button.setAccessibleName(f"{words} {tail}".strip())

    def _build_list(self) -> ChatList:
        view = ChatList(self._look, _("Chats"))
        view.setModel(self.model)
        view.setItemDelegate(ConversationDelegate(self._look, view))
        view.setFrameShape(QFrame.Shape.NoFrame)
        view.setEditTriggers(QAbstractItemView.EditTrigger.EditKeyPressed | QAbstractItemView.EditTrigger.DoubleClicked)
        view.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        view.customContextMenuRequested.connect(self._show_menu)
        view.setUniformItemSizes(True)  # else thousands are measured
        view.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        view.delete_pressed.connect(self.ask_delete)

        def announce() -> None:
            if len(self.chosen) == 1:
                self.selected.emit(self.chosen[0])

        view.selectionModel().selectionChanged.connect(announce)
        view.setMouseTracking(True)
        return view

    def choose(self, ids: Sequence[str]) -> None:
        wanted = QItemSelection()
        for index in filter(QModelIndex.isValid, map(self.model.index_of, ids)):
            wanted.append(QItemSelectionRange(index))
        selection = self.list.selectionModel()
        with QSignalBlocker(selection):
            selection.select(wanted, QItemSelectionModel.SelectionFlag.Select)

    def _name_view(self) -> None:
        words = one_line(self.arrangement.words)
        shown = self.view_button.fontMetrics().elidedText(words, Qt.TextElideMode.ElideRight, 150)
        self.view_button.setText(shown.replace("&", "&&"))
        self.view_button.setAccessibleName(_("Shown: {words}", words=words))

    def _fill_view_menu(self) -> None:
        menu, now = self.view_menu, self.arrangement
        menu.clear()
        views = [(_("All chats"), replace(now, folder=None, archive=False))]
        views += [(folder, replace(now, folder=folder, archive=False)) for folder in self.folders]
        views += [(_("Archive"), replace(now, folder=None, archive=True))]
        orders = [(_(order.value), replace(now, order=order)) for order in Order]
        for group in (views, orders):
            for words, arrangement in group:
                action = menu.addAction(words.replace("&", "&&"))
                action.setCheckable(True)
                action.setChecked(arrangement == now)
                action.triggered.connect(lambda _, wanted=arrangement: self.arrange(wanted))
            menu.addSeparator()

    def _show_menu(self, where: QPoint) -> None:
        index = self.list.indexAt(where)
        if not index.flags() & Qt.ItemFlag.ItemIsSelectable:
            return
        menu = QMenu(self.list)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        chat: Row = index.data(ROW)
        ids = self.chosen if chat.id in self.chosen else [chat.id]
        self.menu_requested.emit(menu, chat, ids, partial(self.begin_rename, index))
        menu.popup(self.list.viewport().mapToGlobal(where))

    def _restyle(self) -> None:
        self.view_button.setIcon(icon("chevron-down", self._look.theme.muted))
        self.new_button.setIcon(icon("plus", self._look.theme.accent))
        self.new_button.setIconSize(QSize(1, 1) * self._look.px(18))
        self.hide_button.setIcon(icon("sidebar", self._look.theme.muted))
        self.library_button.setIcon(icon("document", self._look.theme.muted))
        self.usage_button.setIcon(icon("disk", self._look.theme.muted))
