"""The sidebar: New, the conversations with their warmth, and what the save points cost on disk."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPoint, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QLabel,
    QListView,
    QMenu,
    QProgressBar,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from kvchat.kvstore.savepoint import StoreUsage
from kvchat.ui.conversation_list import ID, ROW, TITLE, ConversationDelegate, ConversationModel, Row
from kvchat.ui.icons import icon
from kvchat.ui.keep_menu import add_keep_actions
from kvchat.ui.search_panel import SearchPanel
from kvchat.ui.theme import Look
from kvchat.ui.wording import size_of


class _List(QListView):
    """The list; Delete asks to delete, F2 renames in place, and what is typed is meant for the conversation."""

    delete_pressed = Signal()
    typed = Signal(str)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Delete and text are wishes, everything else is Qt's."""
        commands = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier
        if event.key() == Qt.Key.Key_Delete:
            self.delete_pressed.emit()
        elif event.text().isprintable() and event.text() and not event.modifiers() & commands:
            self.typed.emit(event.text())
        else:
            super().keyPressEvent(event)


class Sidebar(QFrame):
    """Shows the conversations and says what the user wants of them."""

    new_requested = Signal()
    selected = Signal(str)  # conversation id
    rename_requested = Signal(str, str)  # conversation id, title
    delete_requested = Signal(str, str)  # conversation id, title
    pin_requested = Signal(str, bool)  # conversation id, pinned from now on
    never_save_requested = Signal(str, bool)  # conversation id, never saved from now on
    disk_requested = Signal()
    typed = Signal(str)  # text typed while the list had the keyboard

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("sidebar")
        self._look = look
        self.new_button = QPushButton("New conversation")
        self.new_button.setProperty("kind", "new")
        self.new_button.setAccessibleName("New conversation")
        self.new_button.setToolTip("Ctrl+N")
        self.new_button.clicked.connect(self.new_requested)
        self.model = ConversationModel(self)
        self.model.renamed.connect(self.rename_requested)
        self.list = self._build_list()
        self.empty = QLabel("Nothing here yet.\nWhat you talk about will be kept here.")
        self.empty.setProperty("kind", "small")
        self.empty.setWordWrap(True)
        self.empty.setContentsMargins(10, 4, 10, 0)
        self.usage_button = QPushButton("KV 0 bytes")
        self.usage_button.setProperty("kind", "usage")
        self.usage_button.setAccessibleName("Disk usage")
        self.usage_button.setToolTip("What the saved KV cache costs on disk")
        self.usage_button.clicked.connect(self.disk_requested)
        self.usage_bar = QProgressBar()
        self.usage_bar.setTextVisible(False)
        self.usage_bar.setRange(0, 1000)
        self.usage_bar.setAccessibleName("Share of the quota in use")
        column = QVBoxLayout(self)
        column.setContentsMargins(10, 12, 10, 10)
        column.setSpacing(6)
        column.addWidget(self.new_button)
        chats = QWidget()
        inside = QVBoxLayout(chats)
        inside.setContentsMargins(0, 0, 0, 0)
        inside.addWidget(self.empty)
        inside.addWidget(self.list, 1)
        self.search = SearchPanel(look, chats)
        column.addWidget(self.search, 1)
        column.addWidget(self.usage_button)
        column.addWidget(self.usage_bar)
        look.changed.connect(self._restyle)
        self._restyle()

    def show_rows(self, rows: list[Row], current: str | None) -> None:
        """Show the conversations; `current` is selected without being announced."""
        self.model.set_rows(rows)
        self.empty.setVisible(not rows)
        self.mark(current)

    def mark(self, conversation_id: str | None) -> None:
        """Select a row without announcing it; None selects nothing."""
        selection = self.list.selectionModel()
        selection.blockSignals(True)
        index = self.model.index_of(conversation_id)
        if index.isValid():
            self.list.setCurrentIndex(index)
            self.list.scrollTo(index)
        else:
            self.list.clearSelection()
            self.list.setCurrentIndex(QModelIndex())
        selection.blockSignals(False)
        self.list.viewport().update()

    def step(self, by: int) -> None:
        """Select the conversation `by` rows further down."""
        row = self.list.currentIndex().row()
        target = 0 if row < 0 else min(max(row + by, 0), self.model.rowCount() - 1)
        if target != row and self.model.rowCount():
            self.list.setCurrentIndex(self.model.index(target))

    def begin_rename(self) -> None:
        """Edit the selected title in place."""
        if self.list.currentIndex().isValid():
            self.list.setFocus()
            self.list.edit(self.list.currentIndex())

    def ask_delete(self) -> None:
        """Ask for the selected conversation to be deleted."""
        index = self.list.currentIndex()
        if index.isValid():
            self.delete_requested.emit(index.data(ID), index.data(TITLE))

    def show_usage(self, usage: StoreUsage) -> None:
        """The line at the bottom."""
        words = f"KV {size_of(usage.physical_bytes, usage.quota_bytes)}"
        self.usage_button.setText(words)
        self.usage_button.setAccessibleName(f"Disk usage: {words}")
        self.usage_bar.setValue(int(1000 * min(usage.physical_bytes / max(usage.quota_bytes, 1), 1.0)))

    def _build_list(self) -> _List:
        view = _List()
        view.setModel(self.model)
        view.setItemDelegate(ConversationDelegate(self._look, view))
        view.setAccessibleName("Conversations")
        view.setFrameShape(QFrame.Shape.NoFrame)
        view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        view.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        view.setEditTriggers(QAbstractItemView.EditTrigger.EditKeyPressed)
        view.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        view.customContextMenuRequested.connect(self._show_menu)
        view.setMouseTracking(True)
        view.delete_pressed.connect(self.ask_delete)
        view.typed.connect(self.typed)
        view.selectionModel().currentChanged.connect(self._announce)
        return view

    def _announce(self, index: QModelIndex) -> None:
        if index.isValid():
            self.selected.emit(index.data(ID))

    def _show_menu(self, where: QPoint) -> None:
        if not self.list.indexAt(where).isValid():
            return
        menu = QMenu(self.list)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        row: Row = self.list.indexAt(where).data(ROW)
        menu.addAction("Rename", self.begin_rename)
        pin, never = add_keep_actions(
            menu,
            lambda on: self.pin_requested.emit(row.id, on),
            lambda on: self.never_save_requested.emit(row.id, on),
        )
        pin.setChecked(row.pinned)
        never.setChecked(row.never_save)
        menu.addSeparator()
        menu.addAction("Delete…", self.ask_delete)
        menu.popup(self.list.viewport().mapToGlobal(where))

    def _restyle(self) -> None:
        self.new_button.setIcon(icon("plus", self._look.theme.accent))
        self.new_button.setIconSize(QSize(18, 18))
        self.usage_button.setIcon(icon("disk", self._look.theme.muted))
        self.list.viewport().update()
