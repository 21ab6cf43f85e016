"""The rows of the sidebar: a list model, and how a row is drawn and renamed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from PySide6.QtCore import (
    QAbstractListModel,
    QEvent,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QRect,
    QRectF,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import QColor, QHelpEvent, QPainter, QPainterPath, QPen
from PySide6.QtWidgets import (
    QAbstractItemView,
    QLineEdit,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QToolTip,
    QWidget,
)

from kvchat.ui.elided import plain_tip
from kvchat.ui.icons import icon
from kvchat.ui.theme import Look

_Index = QModelIndex | QPersistentModelIndex

_MARK = 15  # pixels

ID = Qt.ItemDataRole.UserRole
TITLE = Qt.ItemDataRole.UserRole + 1
ROW = Qt.ItemDataRole.UserRole + 2


class Warmth(Enum):
    """How soon a conversation can answer."""

    HOT = "hot: in the slot"
    DISK = "on disk: comes back in a moment"
    COLD = "must be read again"


@dataclass(frozen=True)
class Row:
    """One conversation in the list."""

    id: str
    title: str
    warmth: Warmth
    busy: bool = False
    pinned: bool = False  # what is saved of it is never pruned
    never_save: bool = False
    on_top: bool = False
    folder: str | None = None

    @property
    def marks(self) -> tuple[tuple[str, str], ...]:
        """What was wished for it: each an icon's name, and the words for it."""
        marks = (
            (self.on_top, "on-top", "kept on top"),
            (self.pinned, "pin", "pinned"),
            (self.never_save, "disk-off", "never saved"),
        )
        return tuple((name, words) for on, name, words in marks if on)

    @property
    def state(self) -> str:
        """Warmth and wishes in words."""
        return ", ".join([self.warmth.value, *(words for _, words in self.marks)])


class ConversationModel(QAbstractListModel):
    """The rows, newest first. Editing a row announces the wish and changes nothing itself."""

    renamed = Signal(str, str)  # conversation id, title

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._rows: list[Row] = []

    def set_rows(self, rows: list[Row]) -> None:
        """Show these rows. Where only contents changed, the selection and an open editor stay."""
        if [row.id for row in rows] == [row.id for row in self._rows]:
            self._rows = rows
            if rows:
                self.dataChanged.emit(self.index(0), self.index(len(rows) - 1))
            return
        self.beginResetModel()
        self._rows = rows
        self.endResetModel()

    def index_of(self, conversation_id: str | None) -> QModelIndex:
        """The row of a conversation, or an invalid index."""
        for i, row in enumerate(self._rows):
            if row.id == conversation_id:
                return self.index(i)
        return QModelIndex()

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008
        """How many conversations there are."""
        return 0 if parent.isValid() else len(self._rows)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        """A row's fields."""
        row = self._rows[index.row()]
        if role == ID:
            return row.id
        if role in (TITLE, Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.EditRole):
            return row.title
        if role == ROW:
            return row
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return f"{row.title}, {row.state}"
        if role == Qt.ItemDataRole.ToolTipRole:
            return "\n".join(filter(None, (row.title, row.folder and f"In {row.folder}", row.state)))
        return None

    def setData(self, index: _Index, value: Any, role: int = Qt.ItemDataRole.EditRole) -> bool:
        """A title was typed."""
        title = str(value).strip()
        if role != Qt.ItemDataRole.EditRole or not title or title == self._rows[index.row()].title:
            return False
        self.renamed.emit(self._rows[index.row()].id, title)
        return True

    def flags(self, index: _Index) -> Qt.ItemFlag:
        """Every row can be chosen and renamed."""
        return Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsEditable


class ConversationDelegate(QStyledItemDelegate):
    """Draws a row: the dot, then the title."""

    def __init__(self, look: Look, parent: QWidget) -> None:
        super().__init__(parent)
        self._look = look

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:
        """One comfortable line."""
        return QSize(80, option.fontMetrics.height() + 18)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        """Ground, dot, title."""
        theme = self._look.theme
        row: Row = index.data(ROW)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        chosen = bool(option.state & QStyle.StateFlag.State_Selected)
        if chosen or option.state & QStyle.StateFlag.State_MouseOver:
            path = QPainterPath()
            path.addRoundedRect(QRectF(option.rect).adjusted(0, 1, 0, -1), 8, 8)
            painter.fillPath(path, QColor(theme.selected if chosen else theme.hover))
        if option.state & QStyle.StateFlag.State_HasFocus:
            painter.setPen(QPen(QColor(theme.accent), 1))
            painter.drawRoundedRect(QRectF(option.rect).adjusted(0.5, 1.5, -0.5, -1.5), 8, 8)
        self._paint_dot(painter, option.rect, row)
        painter.setPen(QColor(theme.text))
        box = option.rect.adjusted(30, 0, -10 - self._paint_marks(painter, option.rect, row), 0)
        title = option.fontMetrics.elidedText(" ".join(row.title.split()), Qt.TextElideMode.ElideRight, box.width())
        painter.drawText(box, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), title)
        painter.restore()

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: _Index) -> QWidget:
        """A line to type the new title in."""
        editor = QLineEdit(parent)
        editor.setAccessibleName("New title")
        editor.setMaxLength(200)
        return editor

    def updateEditorGeometry(self, editor: QWidget, option: QStyleOptionViewItem, index: _Index) -> None:
        """Over the title, beside the dot."""
        editor.setGeometry(option.rect.adjusted(26, 2, -2, -2))

    def helpEvent(
        self, event: QHelpEvent, view: QAbstractItemView, option: QStyleOptionViewItem, index: _Index
    ) -> bool:
        """The whole title and what the dot means, as plain text."""
        if event.type() == QEvent.Type.ToolTip and index.isValid():
            QToolTip.showText(event.globalPos(), plain_tip(str(index.data(Qt.ItemDataRole.ToolTipRole))), view)
            return True
        return super().helpEvent(event, view, option, index)

    def _paint_marks(self, painter: QPainter, rect: QRect, row: Row) -> int:
        """The wishes at the right edge; returns the room they take, in pixels."""
        for number, (name, _) in enumerate(row.marks):
            left = rect.right() - 8 - (number + 1) * _MARK
            icon(name, self._look.theme.muted).paint(painter, left, rect.center().y() - _MARK // 2 + 1, _MARK, _MARK)
        return len(row.marks) * _MARK

    def _paint_dot(self, painter: QPainter, rect: QRect, row: Row) -> None:
        theme = self._look.theme
        colour = QColor(theme.accent if row.warmth is not Warmth.COLD else theme.muted)
        box = QRectF(rect.left() + 11, rect.center().y() - 4, 9, 9)
        painter.setPen(QPen(colour, 1.4))
        painter.setBrush(colour if row.warmth is Warmth.HOT else Qt.BrushStyle.NoBrush)
        painter.drawEllipse(box)
        if row.warmth is Warmth.DISK:
            painter.setBrush(colour)
            painter.drawPie(box, 90 * 16, 180 * 16)
        if row.busy:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(colour, 1))
            painter.drawEllipse(box.adjusted(-3, -3, 3, 3))
