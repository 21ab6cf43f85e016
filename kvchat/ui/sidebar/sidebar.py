"""The sidebar: search field and results, list of chats, and the disk use of chat memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import (
    QEvent,
    QItemSelection,
    QItemSelectionModel,
    QItemSelectionRange,
    QModelIndex,
    QPoint,
    QPointF,
    QRect,
    QRectF,
    QSignalBlocker,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import QColor, QKeyEvent, QPainter, QPaintEvent, QTextCharFormat, QTextLayout, QTextOption
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QLineEdit,
    QMenu,
    QSizePolicy,
    QStackedWidget,
    QStyle,
    QStyleOptionViewItem,
    QToolButton,
    QWidget,
)

from kvchat.text.formatting import STORAGE, format_size_of, one_line
from kvchat.text.language import _, join_sentences
from kvchat.ui.base.building import button, column, label, leading_alignment, progress_bar, row, show_text, tool_button
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.commands import with_key
from kvchat.ui.sidebar.conversation_list import (
    Arrangement,
    ChatList,
    ConversationDelegate,
    ConversationModel,
    Row,
    SortOrder,
    arrange_chats,
    folders_of,
    with_headings,
)
from kvchat.ui.widgets.layouts import ElidedButton
from kvchat.ui.widgets.lists import ROW, ItemDelegate, ItemList, ItemModel, ModelIndex, draw_text
from kvchat.ui.widgets.text_search import format_range

if TYPE_CHECKING:
    from kvchat.chat.record.messages import Conversation
    from kvchat.chat.search import ChatHit, ChatSearchResult
    from kvchat.kvstore.savepoint import StoreUsage

_SIDE_PADDING, _TOP_PADDING = 10, 7  # pixels around a result's text
_EXCERPT_LINES = 2  # maximum lines of an excerpt


class _ResultModel(ItemModel["ChatHit"]):
    def accessible_text(self, row: ChatHit) -> str:
        return f"{row.title}: {row.excerpt}" if row.excerpt else row.title


class _ResultDelegate(ItemDelegate):
    def sizeHint(self, option: QStyleOptionViewItem, index: ModelIndex) -> QSize:
        lines = 1 + (_EXCERPT_LINES if index.data(ROW).excerpt else 0)
        return QSize(80, lines * (option.fontMetrics.height() + 2) + 2 * _TOP_PADDING)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: ModelIndex) -> None:
        theme, hit = self.look.theme, index.data(ROW)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.paint_background(painter, option)
        box = option.rect.adjusted(_SIDE_PADDING, _TOP_PADDING, -_SIDE_PADDING, -_TOP_PADDING)
        font = option.font
        font.setBold(True)
        painter.setFont(font)
        painter.setPen(QColor(theme.text))
        first = QRect(box.topLeft(), QSize(box.width(), painter.fontMetrics().height()))
        draw_text(painter, option, first, one_line(hit.title))
        font.setBold(False)
        if hit.excerpt:
            self._paint_excerpt(painter, QRectF(box.adjusted(0, option.fontMetrics.height() + 3, 0, 0)), hit, option)
        painter.restore()

    def _paint_excerpt(self, painter: QPainter, box: QRectF, hit: ChatHit, option: QStyleOptionViewItem) -> None:
        layout = QTextLayout(hit.excerpt, option.font)
        runs = QTextOption(leading_alignment())
        runs.setTextDirection(Qt.LayoutDirection.LayoutDirectionAuto)  # follows its script
        layout.setTextOption(runs)
        mark = QTextCharFormat()
        mark.setBackground(QColor(self.look.theme.mark))
        mark.setForeground(QColor(self.look.theme.text))
        marks = [format_range(hit.excerpt, start, end, mark) for start, end in hit.marks]
        layout.beginLayout()
        top = 0.0
        while layout.lineCount() < _EXCERPT_LINES and (line := layout.createLine()).isValid():
            line.setLineWidth(box.width())
            line.setPosition(QPointF(0, top))
            top += line.height()
        layout.endLayout()
        painter.setPen(QColor(self.look.theme.muted))
        layout.draw(painter, box.topLeft(), marks)


class SearchResults(ItemList):
    chosen = Signal(object)  # a ChatHit

    def __init__(self, look: Look) -> None:
        super().__init__(look, _("Search results"))
        self._model = _ResultModel()
        self.setModel(self._model)
        self.setItemDelegate(_ResultDelegate(look, self))
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        for choosing in (self.clicked, self.activated):
            choosing.connect(lambda index: self.chosen.emit(index.data(ROW)))

    @property
    def hits(self) -> tuple[ChatHit, ...]:
        return tuple(self._model.rows)

    def show_hits(self, hits: tuple[ChatHit, ...]) -> None:
        self._model.set_rows(hits)
        if hits:
            self.setCurrentIndex(self._model.index(0))


class _SearchField(QLineEdit):
    """Search field. Esc clears it, Down moves to the results, and Enter opens the first result."""

    def __init__(self, results: SearchResults, look: Look) -> None:
        super().__init__()
        self._results, self._look = results, look

    def paintEvent(self, event: QPaintEvent) -> None:
        """Draw a magnifier that scales with the text. The icon of an action would always be 16 pixels wide."""
        super().paintEvent(event)
        side = self._look.px(16)
        place = QRect(self._look.px(8), (self.height() - side) // 2, side, side)
        place = QStyle.visualRect(self.layoutDirection(), self.rect(), place)
        with QPainter(self) as painter:
            icon("search", self._look.theme.muted).paint(painter, place)

    def event(self, event: QEvent) -> bool:
        """Use Esc to clear the text, before it triggers a shortcut of the window."""
        is_override = event.type() == QEvent.Type.ShortcutOverride and isinstance(event, QKeyEvent)
        if is_override and self.text() and event.key() == Qt.Key.Key_Escape:  # type: ignore[attr-defined]
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.clear()
        elif event.key() == Qt.Key.Key_Down and self._results.hits:
            self._results.setFocus()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self._results.hits:
            self._results.chosen.emit(self._results.hits[0])
        else:
            super().keyPressEvent(event)


class SearchPanel(QWidget):
    def __init__(self, look: Look, below: QWidget) -> None:
        super().__init__()
        self._look, self.results = look, SearchResults(look)
        self.field = _SearchField(self.results, look)
        self.field.setPlaceholderText(_("Search all chats"))
        self.field.setAccessibleName(_("Search all chats"))
        self.field.setToolTip(f"{self.field.placeholderText()} (Ctrl+Shift+F)")
        self.field.setClearButtonEnabled(True)
        for clear_button in self.field.findChildren(QToolButton):
            clear_button.setAccessibleName(_("Clear the search field"))
        self.status = label(kind="small", wraps=True)
        self.status.setContentsMargins(10, 2, 10, 0)
        results_area, self.pages = QWidget(), QStackedWidget()
        column(self.status, (self.results, 1), on=results_area, margins=0)
        self.pages.addWidget(below)
        self.pages.addWidget(results_area)
        column(self.field, (self.pages, 1), on=self, spacing=6, margins=0)
        look.changed.connect(self._restyle)
        self._restyle()

    def show_results(self, result: ChatSearchResult) -> None:
        self.results.show_hits(result.chats)
        unfinished = "" if result.complete else _("Older messages are still being indexed.")
        show_text(self.status, join_sentences("" if result.chats else _("No matches."), unfinished))
        self.pages.setCurrentIndex(1)

    def clear(self) -> None:
        self.results.show_hits(())
        self.pages.setCurrentIndex(0)

    def focus(self) -> None:
        self.field.setFocus()
        self.field.selectAll()

    def _restyle(self) -> None:
        margin = self._look.px(20)
        self.field.setTextMargins(*((0, 0, margin, 0) if self.isRightToLeft() else (margin, 0, 0, 0)))
        self.field.update()


_SELECT_ONLY = QItemSelectionModel.SelectionFlag.ClearAndSelect  # ignores held keys
_USAGE_PADDING = 56  # pixels that the usage button's icon and padding take at 200 % text


class Sidebar(QFrame):
    selected = Signal(str)  # conversation id
    delete_requested = Signal(list)  # conversation ids
    menu_requested = Signal(QMenu, str, list, object)  # menu to fill, conversation id, chosen ones, rename callback
    arrangement_changed = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("sidebar")
        self._look = look
        self.new_button = button(title := _("New chat"), kind="new", tip=with_key(title, "new"))
        self.hide_button = tool_button(title := _("Hide the sidebar"), tip=with_key(title, "sidebar"))
        self.model = ConversationModel()
        self.arrangement = Arrangement()
        self.folders: list[str] = []
        self.view_button = button("", kind="quiet", tip=_("Filter and sort chats"))
        self.view_menu = QMenu(self)
        self.view_menu.aboutToShow.connect(self._fill_view_menu)
        self.view_button.setMenu(self.view_menu)
        self.list = view = ChatList(look, _("Chats"))
        view.setModel(self.model)
        view.setItemDelegate(ConversationDelegate(look, view))
        view.setFrameShape(QFrame.Shape.NoFrame)
        view.setEditTriggers(QAbstractItemView.EditTrigger.EditKeyPressed | QAbstractItemView.EditTrigger.DoubleClicked)
        view.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        view.customContextMenuRequested.connect(self._show_menu)
        view.setUniformItemSizes(True)  # otherwise Qt measures thousands of rows
        view.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        view.delete_pressed.connect(self._ask_delete)
        view.selectionModel().selectionChanged.connect(self._emit_selected)
        self.empty_label = label(_("No chats yet.\nYour chats will appear here."), "small", wraps=True)
        self.empty_label.setContentsMargins(10, 4, 10, 0)
        self.empty_label.hide()  # until chats are loaded
        tip = _("Documents processed in advance for new chats")
        self.library_button = button(_("Library"), kind="usage", tip=tip)
        self.usage_button = ElidedButton("usage", padding=_USAGE_PADDING)
        self.usage_button.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._set_usage_text(_(STORAGE), "")
        self.usage_bar = progress_bar(_("Share of the storage limit in use"))
        chats = QWidget()
        column(self.view_button, self.empty_label, (self.list, 1), on=chats, spacing=2, margins=0)
        self.search_panel = SearchPanel(look, chats)
        above = row((self.new_button, 1), self.hide_button)
        parts = above, (self.search_panel, 1), self.library_button, self.usage_button, self.usage_bar
        column(*parts, on=self, spacing=6, margins=(10, 12, 10, 10))
        look.changed.connect(self._restyle)
        self._restyle()

    @property
    def chosen(self) -> list[str]:
        return [self.model.rows[place].id for place in sorted(map(QModelIndex.row, self.list.selectedIndexes()))]

    def show_chats(
        self, chats: Sequence[Conversation], row_of: Callable[[Conversation], Row], current: str | None
    ) -> None:
        """Show those of `chats` that belong to the chosen folder, in the chosen order.

        `chats` are all chats, the last used first. `current` is the id of the open one.
        """
        chosen, self.folders = self.chosen, folders_of(chats)
        chats = arrange_chats(chats, self.arrangement)
        with QSignalBlocker(self.list.selectionModel()):  # removing a row must not open another chat
            self.model.show_chats(with_headings(chats, self.arrangement.order), row_of)
        self.empty_label.setVisible(not chats and self.arrangement == Arrangement())
        self._show_view_name()
        if len(chosen) < 2:
            self.show_selected(current)
        elif len(self.chosen) != len(chosen):
            self.choose(chosen)

    def show_selected(self, conversation_id: str | None) -> None:
        index = self.model.index_of(conversation_id)
        with QSignalBlocker(selection := self.list.selectionModel()):
            if not index.isValid():
                self.list.clearSelection()
                self.list.setCurrentIndex(QModelIndex())
            elif self.list.selectedIndexes() != [index] or selection.currentIndex() != index:
                selection.setCurrentIndex(index, _SELECT_ONLY)
                self.list.scrollTo(index)
        self.list.viewport().update()

    def select_neighbor(self, offset: int) -> None:
        chats, current = [chat.id for chat in self.model.chats], self.list.currentIndex()
        position = chats.index(self.model.rows[current.row()].id) if current.isValid() else -1
        target = 0 if position < 0 else min(max(position + offset, 0), len(chats) - 1)
        if target != position and chats:
            self.list.selectionModel().setCurrentIndex(self.model.index_of(chats[target]), _SELECT_ONLY)

    def begin_rename(self, index: QModelIndex | None = None) -> bool:
        """Edit the title of a chat, by default the selected one, in the list. Return False if it is not listed."""
        index = index or self.list.currentIndex()
        if not self.list.isVisible() or not index.isValid():
            return False
        self.list.setFocus()
        self.list.edit(index)
        return True

    def _emit_selected(self) -> None:
        if len(chosen := self.chosen) == 1:
            self.selected.emit(chosen[0])

    def _ask_delete(self) -> None:
        if chosen := self.chosen:
            self.delete_requested.emit(chosen)

    def arrange(self, arrangement: Arrangement) -> None:
        self.arrangement = arrangement
        self._show_view_name()
        self.arrangement_changed.emit()

    def show_usage(self, usage: StoreUsage) -> None:
        text, amount = _(STORAGE), format_size_of(usage.physical_bytes, usage.quota_bytes)
        if usage.problem:
            text, amount = _("Chat memory is not being saved"), ""
        self._set_usage_text(text, amount)
        self.usage_bar.setValue(int(1000 * min(usage.physical_bytes / max(usage.quota_bytes, 1), 1.0)))

    def _set_usage_text(self, text: str, amount: str) -> None:
        self.usage_button.set_text(text, amount, _("Disk space used by chat memory"))
        self.usage_button.setAccessibleName(f"{text} {amount}".strip())

    def choose(self, ids: Sequence[str]) -> None:
        chosen = QItemSelection()
        for index in filter(QModelIndex.isValid, map(self.model.index_of, ids)):
            chosen.append(QItemSelectionRange(index))
        with QSignalBlocker(selection := self.list.selectionModel()):
            selection.select(chosen, QItemSelectionModel.SelectionFlag.Select)

    def _show_view_name(self) -> None:
        title = one_line(self.arrangement.title)
        elided = self.view_button.fontMetrics().elidedText(title, Qt.TextElideMode.ElideRight, 150)
        self.view_button.setText(elided.replace("&", "&&"))
        self.view_button.setAccessibleName(_("Showing: {words}", words=title))

    def _fill_view_menu(self) -> None:
        menu, now = self.view_menu, self.arrangement
        menu.clear()
        views = [(_("All chats"), replace(now, folder=None, archive=False))]
        views += [(folder, replace(now, folder=folder, archive=False)) for folder in self.folders]
        views += [(_("Archive"), replace(now, folder=None, archive=True))]
        orders = [(_(order.value), replace(now, order=order)) for order in SortOrder]
        for group in (views, orders):
            for title, arrangement in group:
                action = menu.addAction(title.replace("&", "&&"))
                action.setCheckable(True)
                action.setChecked(arrangement == now)
                action.triggered.connect(lambda _, chosen=arrangement: self.arrange(chosen))
            menu.addSeparator()

    def _show_menu(self, position: QPoint) -> None:
        index = self.list.indexAt(position)
        if not index.flags() & Qt.ItemFlag.ItemIsSelectable:
            return
        menu = QMenu(self.list)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        id = self.model.rows[index.row()].id
        ids = self.chosen if id in self.chosen else [id]
        self.menu_requested.emit(menu, id, ids, partial(self.begin_rename, index))
        menu.popup(self.list.viewport().mapToGlobal(position))

    def _restyle(self) -> None:
        self.view_button.setIcon(icon("chevron-down", self._look.theme.muted))
        self.new_button.setIcon(icon("plus", self._look.theme.accent))
        self.new_button.setIconSize(QSize(1, 1) * self._look.px(18))
        self.hide_button.setIcon(icon("sidebar", self._look.theme.muted))
        self.library_button.setIcon(icon("document", self._look.theme.muted))
        self.usage_button.setIcon(icon("disk", self._look.theme.muted))
