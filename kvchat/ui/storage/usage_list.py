"""The disk panel's list of conversations. Only rows in view are drawn and have widgets, so thousands open at once."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QPoint, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QMenu, QToolButton, QWidget

from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.commands.shortcuts import add_keep_actions
from kvchat.ui.storage.usage_delegate import UsageDelegate, button_box
from kvchat.ui.storage.usage_row import UsageRow
from kvchat.ui.storage.usage_words import split_of
from kvchat.ui.widgets.item_list import ItemList, ItemModel
from kvchat.words.wording import size

_Index = QModelIndex | QPersistentModelIndex
_MENU_KEYS = (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space)


class UsageModel(ItemModel[UsageRow]):
    """The rows' words. Where only contents changed, the place scrolled to stays."""

    def __init__(self) -> None:
        super().__init__(key=lambda row: row.usage.conversation_id)

    def spoken(self, row: UsageRow) -> str:
        """All there is to know of it."""
        return row.spoken

    def tip(self, row: UsageRow) -> str:
        """The same, line by line."""
        return "\n".join((row.title, f"{size(row.usage.bytes)}: {split_of(row.usage)}", row.details))


class UsageList(ItemList):
    """The list: a bar for each conversation and a menu of what can be done about it."""

    pin_wanted = Signal(str, bool)  # conversation id, pinned from now on
    never_save_wanted = Signal(str, bool)  # conversation id, never saved from now on
    delete_wanted = Signal(str)  # conversation id

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        self.usage = UsageModel()
        self.buttons: dict[int, QToolButton] = {}  # by row, only those in view; Qt lays rows out from the start
        super().__init__(look, "What is kept, by chat", parent)
        self._look = look
        self.setItemDelegate(UsageDelegate(look, self))
        self.setModel(self.usage)
        self.setUniformItemSizes(True)
        self.verticalScrollBar().valueChanged.connect(self._furnish)
        self.usage.modelAboutToBeReset.connect(self._clear)
        self.usage.dataChanged.connect(self._refurnish)
        look.changed.connect(self._refurnish)

    def show_rows(self, rows: Sequence[UsageRow]) -> None:
        """Show these conversations."""
        self.usage.set_rows(rows)

    def doItemsLayout(self) -> None:
        """Once the rows have their places, those in view get their buttons."""
        super().doItemsLayout()
        self._furnish()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """More rows may be in view."""
        super().resizeEvent(event)
        self._furnish()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter and Space open the row's menu."""
        if event.key() in _MENU_KEYS and self.currentIndex().isValid():
            box = self.visualRect(self.currentIndex())
            self.open_menu(self.currentIndex().row(), self.viewport().mapToGlobal(box.center()))
            return
        super().keyPressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """The menu of the row below the pointer, or of the current one."""
        by_key = event.reason() is QContextMenuEvent.Reason.Keyboard
        index = self.currentIndex() if by_key else self.indexAt(self.viewport().mapFromGlobal(event.globalPos()))
        if index.isValid():
            at = self.viewport().mapToGlobal(self.visualRect(index).center()) if by_key else event.globalPos()
            self.open_menu(index.row(), at)

    def open_menu(self, number: int, at: QPoint) -> QMenu:
        """What can be done about a conversation. `at` is on the screen."""
        row = self.usage.rows[number]
        id = row.usage.conversation_id
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setAccessibleName(f"What to do with {row.title}")
        pin, never = add_keep_actions(
            menu, lambda on: self.pin_wanted.emit(id, on), lambda on: self.never_save_wanted.emit(id, on)
        )
        pin.setChecked(row.usage.pinned)
        never.setChecked(row.usage.never_save)
        menu.addSeparator()
        delete = menu.addAction("Delete its memory")
        delete.setEnabled(row.usage.save_points > 0)
        delete.triggered.connect(lambda: self.delete_wanted.emit(id))
        menu.popup(at)
        return menu

    def _clear(self) -> None:
        for button in self.buttons.values():
            button.hide()
            button.deleteLater()
        self.buttons.clear()

    def _refurnish(self) -> None:
        self._clear()
        self._furnish()

    def _furnish(self) -> None:
        """Give the rows in view their buttons, and take them from the others."""
        view = self.viewport().rect()
        first = self.indexAt(QPoint(view.center().x(), 0)).row()
        last = self.indexAt(QPoint(view.center().x(), view.bottom())).row()
        if last < 0:
            last = self.usage.rowCount() - 1
        wanted = range(first, last + 1) if first >= 0 else range(0)
        for number in [number for number in self.buttons if number not in wanted]:
            gone = self.buttons.pop(number)
            gone.hide()
            gone.deleteLater()
        for number in wanted:
            button = self.buttons.get(number) or self._make_button(number)
            box = self.visualRect(self.usage.index(number))
            button.setGeometry(button_box(box))
            button.show()

    def _make_button(self, number: int) -> QToolButton:
        row = self.usage.rows[number]
        button = QToolButton(self.viewport())
        button.setIcon(icon("dots", self._look.theme.muted))
        button.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the list has the keys: Space opens the same menu
        button.setToolTip("Always keep, never keep, delete")
        button.setAccessibleName(f"What to do with {row.title}")
        button.clicked.connect(lambda: self.open_menu(number, button.mapToGlobal(button.rect().bottomLeft())))
        self.buttons[number] = button
        return button
