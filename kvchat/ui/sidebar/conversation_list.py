"""The rows of the sidebar: the list, its model, and how a row is drawn and renamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QModelIndex, QObject, QPoint, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QPen
from PySide6.QtWidgets import QLineEdit, QStyle, QStyleOptionViewItem, QWidget

from kvchat.session.proof import Source
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.sidebar.arrangement import Heading
from kvchat.ui.widgets.lists import ROW, Index, ItemDelegate, ItemList, ItemModel, sided, write
from kvchat.words.language import _, listed
from kvchat.words.wording import one_line

if TYPE_CHECKING:
    from kvchat.chat.record.messages import Conversation
    from kvchat.chat.turn.forecasts import Forecast

_BADGE, _MENU = 15, 20  # pixels


@dataclass(frozen=True)
class Row:
    """One conversation in the list."""

    id: str
    title: str
    forecast: Forecast | None = None  # of its next reply; None: not known yet
    busy: bool = False
    pinned: bool = False  # what is saved of it is never pruned
    never_save: bool = False
    imported: bool = False  # its memory came from elsewhere and is not verified
    on_top: bool = False
    folder: str | None = None
    archived: bool = False

    @property
    def badges(self) -> tuple[tuple[str, str], ...]:
        badges = (
            (self.on_top, "on-top", _("kept on top")),
            (self.pinned, "pin", _("always kept")),
            (self.never_save, "disk-off", _("never kept")),
        )
        return tuple((name, words) for on, name, words in badges if on)

    @property
    def state(self) -> str:
        told = [self.forecast.of_chat] if self.forecast else []
        return listed([*told, *(words for _, words in self.badges)])


class ConversationModel(ItemModel["Conversation | Heading"]):
    """The conversations, parted by headings; their rows are made as they come into sight, for there may be thousands.

    Editing a row says so and changes nothing itself.
    """

    renamed = Signal(str, str)  # conversation id, title

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent, key=lambda chat: chat.id)
        self._row_of: Callable[[Conversation], Row] = lambda chat: Row(chat.id, chat.title)
        self._places: dict[str, int] = {}

    @property
    def chats(self) -> list[Conversation]:
        return [row for row in self.rows if not isinstance(row, Heading)]

    def show(self, chats: Sequence[Conversation | Heading], row_of: Callable[[Conversation], Row]) -> None:
        self._row_of, self._places = row_of, {chat.id: place for place, chat in enumerate(chats)}
        self.set_rows(chats)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row = self.rows[index.row()]
        return self._row_of(row) if role == ROW and not isinstance(row, Heading) else super().data(index, role)

    def spoken(self, row: Conversation | Heading) -> str:
        if isinstance(row, Heading):
            return row.title
        return listed((row.title, self._row_of(row).state))

    def tip(self, row: Conversation | Heading) -> str:
        if isinstance(row, Heading):
            return ""
        return "\n".join(
            filter(None, (row.title, row.folder and _("In {folder}", folder=row.folder), self._row_of(row).state))
        )

    def index_of(self, conversation_id: str | None) -> QModelIndex:
        place = self._places.get(conversation_id or "")
        return QModelIndex() if place is None else self.index(place)

    def setData(self, index: Index, value: Any, role: int = Qt.ItemDataRole.EditRole) -> bool:
        title = str(value).strip()
        if role != Qt.ItemDataRole.EditRole or not title or title == self.rows[index.row()].title:
            return False
        self.renamed.emit(self.rows[index.row()].id, title)
        return True

    def flags(self, index: Index) -> Qt.ItemFlag:
        if isinstance(self.rows[index.row()], Heading):
            return Qt.ItemFlag.NoItemFlags
        return Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsEditable


class ConversationDelegate(ItemDelegate):
    """Draws a row: the dot, then the title, then a clock if its next reply takes a while, and the badges."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(80, option.fontMetrics.height() + 18)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        row: Row | Heading = index.data(ROW)
        if isinstance(row, Heading):
            painter.setFont(self.small(option.font))
            painter.setPen(QColor(self.look.theme.muted))
            high = painter.fontMetrics().height()
            box = QRect(0, 0, option.rect.width() - self.look.px(9) - 8, high)
            box.moveBottomLeft(option.rect.bottomLeft() + QPoint(self.look.px(9), -self.look.px(4)))
            write(painter, option, box, row.title)
            return
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.paint_ground(painter, option)
        self._paint_dot(painter, option, row)
        if option.state & QStyle.StateFlag.State_MouseOver:
            icon("dots", self.look.theme.text).paint(painter, menu_box(self.look, option))
            taken = self.look.px(_MENU)
        else:
            taken = self._paint_badges(painter, option, row)
            taken += self._paint_wait(painter, option, taken, row)
        painter.setFont(option.font)
        painter.setPen(QColor(self.look.theme.text))
        write(painter, option, option.rect.adjusted(self.look.px(30), 0, -10 - taken, 0), one_line(row.title))
        painter.restore()

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: Index) -> QWidget:
        editor = QLineEdit(parent, maxLength=200)
        editor.setAccessibleName(_("New title"))
        return editor

    def setEditorData(self, editor: QWidget, index: Index) -> None:
        """Set the title unless something was typed: the list may be shown anew at any time."""
        if isinstance(editor, QLineEdit) and not editor.isModified():
            super().setEditorData(editor, index)

    def updateEditorGeometry(self, editor: QWidget, option: QStyleOptionViewItem, index: Index) -> None:
        editor.setGeometry(sided(option, option.rect.adjusted(self.look.px(26), 2, -2, -2)))

    def _paint_badges(self, painter: QPainter, option: QStyleOptionViewItem, row: Row) -> int:
        """Draw the badges at the row's end; return their width in pixels."""
        side, rect = self.look.px(_BADGE), option.rect
        for number, (name, _words) in enumerate(row.badges):
            left = rect.right() - 8 - (number + 1) * side
            box = QRect(left, rect.center().y() - side // 2 + 1, side, side)
            icon(name, self.look.theme.muted).paint(painter, sided(option, box))
        return len(row.badges) * side

    def _paint_wait(self, painter: QPainter, option: QStyleOptionViewItem, taken: int, row: Row) -> int:
        """Draw a clock before what is taken of the row's end, if its reply takes a while; returns its width.

        Not the time itself: beside a chat that reads as its age. The tip has it.
        """
        if not row.forecast or not row.forecast.noticeable:
            return 0
        side, rect = self.look.px(_BADGE), option.rect
        box = QRect(rect.right() - 8 - taken - side, rect.center().y() - side // 2 + 1, side, side)
        icon("clock", self.look.theme.muted).paint(painter, sided(option, box))
        return side

    def _paint_dot(self, painter: QPainter, option: QStyleOptionViewItem, row: Row) -> None:
        """Draw full: in a slot; with a core: in memory; half: on disk; empty: must be read, or not known yet."""
        theme, source = self.look.theme, row.forecast.source if row.forecast else Source.COLD
        colour = QColor(theme.accent if source is not Source.COLD else theme.muted)
        side, rect = self.look.px(9), option.rect
        box = sided(option, QRectF(rect.left() + self.look.px(11), rect.center().y() - side // 2, side, side))
        painter.setPen(QPen(colour, 1.4))
        painter.setBrush(colour if source is Source.HOT else Qt.BrushStyle.NoBrush)
        painter.drawEllipse(box)
        painter.setBrush(colour)
        if source is Source.WARM:
            inset = side / 4
            painter.drawEllipse(box.adjusted(inset, inset, -inset, -inset))
        if source is Source.DISK:
            painter.drawPie(box, 90 * 16, 180 * 16)
        if row.busy:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(colour, 1))
            painter.drawEllipse(box.adjusted(-3, -3, 3, 3))


def menu_box(look: Look, option: QStyleOptionViewItem) -> QRect:
    side, rect = look.px(_MENU), option.rect
    return sided(option, QRect(rect.right() - 6 - side, rect.center().y() - side // 2 + 1, side, side))


class ChatList(ItemList):
    """The list; Delete asks to delete, F2 renames in place, and what is typed is meant for the conversation."""

    delete_pressed = Signal()
    typed = Signal(str)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Open the menu with a right click or a click on `···`, without opening the chat."""
        where = event.position().toPoint()
        index = self.indexAt(where)
        if event.button() is Qt.MouseButton.LeftButton and index.flags() & Qt.ItemFlag.ItemIsSelectable:
            option = QStyleOptionViewItem()
            self.initViewItemOption(option)
            option.rect = self.visualRect(index)
            if menu_box(self.look, option).contains(where):
                self.customContextMenuRequested.emit(where)
                return
        if event.button() is not Qt.MouseButton.RightButton:
            super().mousePressEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        commands = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier
        if event.key() == Qt.Key.Key_Delete:
            self.delete_pressed.emit()
        elif event.text().isprintable() and event.text() and not event.modifiers() & commands:
            self.typed.emit(event.text())
        else:
            super().keyPressEvent(event)
