"""What the window's lists share: rows in a model, the ground and the tooltip of a row, the view they stand in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from PySide6.QtCore import QAbstractListModel, QEvent, QModelIndex, QObject, QPersistentModelIndex, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QHelpEvent, QPainter, QPainterPath
from PySide6.QtWidgets import (
    QAbstractItemView,
    QListView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QToolTip,
    QWidget,
)

from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.elided import plain_tip

Index = QModelIndex | QPersistentModelIndex
ROW = Qt.ItemDataRole.UserRole


class Titled(Protocol):
    """What every row has."""

    @property
    def title(self) -> str:
        """Its first line."""


R = TypeVar("R", bound=Titled)


class ItemModel(QAbstractListModel, Generic[R]):
    """The rows, in the order given. Subclasses know their words."""

    def __init__(self, parent: QObject | None = None, key: Callable[[R], object] | None = None) -> None:
        """`key` tells rows apart. With it, what is selected, edited and scrolled to stays when others come and go."""
        super().__init__(parent)
        self.rows: Sequence[R] = ()
        self._key = key

    def spoken(self, row: R) -> str:
        """The row for a screen reader."""
        raise NotImplementedError

    def tip(self, row: R) -> str:
        """All that a narrow row may cut off; empty for no tooltip."""
        return ""

    def set_rows(self, rows: Sequence[R]) -> None:
        """Show these."""
        if self._key is None:
            self.beginResetModel()
            self.rows = rows
            self.endResetModel()
        else:
            self._pass_over_to(rows, self._key)

    def _pass_over_to(self, rows: Sequence[R], key: Callable[[R], object]) -> None:
        """Take rows away, then put the others and new ones in order: what is being edited or selected stays so."""
        places = {key(row): place for place, row in enumerate(rows)}
        for first, last in _runs([place for place, row in enumerate(self.rows) if key(row) not in places])[::-1]:
            self.beginRemoveRows(QModelIndex(), first, last)
            self.rows = [*self.rows[:first], *self.rows[last + 1 :]]
            self.endRemoveRows()
        here = [key(row) for row in self.rows]
        if here == list(places):
            self.rows = rows
            if rows:
                self.dataChanged.emit(self.index(0), self.index(len(rows) - 1))
            return
        self.layoutAboutToBeChanged.emit()
        kept = self.persistentIndexList()
        self.rows = rows
        self.changePersistentIndexList(kept, [self.index(places[here[index.row()]]) for index in kept])
        self.layoutChanged.emit()

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        """How many there are."""
        return 0 if parent.isValid() else len(self.rows)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        """A row, or its words."""
        row = self.rows[index.row()]
        match role:
            case Qt.ItemDataRole.UserRole:
                return row
            case Qt.ItemDataRole.DisplayRole | Qt.ItemDataRole.EditRole:
                return row.title
            case Qt.ItemDataRole.AccessibleTextRole:
                return self.spoken(row)
            case Qt.ItemDataRole.ToolTipRole:
                return self.tip(row) or None
        return None


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers in ascending order as runs, each from its first to its last."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place - 1:
            runs[-1] = runs[-1][0], place
        else:
            runs.append((place, place))
    return runs


Box = TypeVar("Box", QRect, QRectF)


def sided(option: QStyleOptionViewItem, box: Box) -> Box:
    """The box of a row, on the other side where the language runs from right to left. Qt turns round texts alone."""
    if option.direction is not Qt.LayoutDirection.RightToLeft:
        return box
    whole = type(box)(option.rect)
    return box.translated(whole.left() + whole.right() - box.left() - box.right(), 0)


def write(painter: QPainter, option: QStyleOptionViewItem, box: QRect, words: str, *, at_end: bool = False) -> None:
    """A line of a row: from where lines begin, or `at_end`, while the words run as their own script does.

    `box`: as for the left; what does not fit ends in an ellipsis.
    """
    mirrored = option.direction is Qt.LayoutDirection.RightToLeft
    side = Qt.AlignmentFlag.AlignRight if at_end is not mirrored else Qt.AlignmentFlag.AlignLeft
    shown = painter.fontMetrics().elidedText(words, Qt.TextElideMode.ElideRight, box.width())
    painter.setLayoutDirection(Qt.LayoutDirection.LayoutDirectionAuto)
    flags = side | Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignAbsolute
    painter.drawText(sided(option, box), int(flags), shown)


class ItemDelegate(QStyledItemDelegate):
    """Draws a row. Subclasses draw what stands on the ground."""

    shows_selection = True

    def __init__(self, look: Look, parent: QWidget) -> None:
        super().__init__(parent)
        self.look = look

    def helpEvent(self, event: QHelpEvent, view: QAbstractItemView, option: QStyleOptionViewItem, index: Index) -> bool:
        """The row's tip as plain text."""
        if event.type() == QEvent.Type.ToolTip and index.isValid():
            tip = index.data(Qt.ItemDataRole.ToolTipRole)
            QToolTip.showText(event.globalPos(), plain_tip(tip or ""), view)
            return True
        return super().helpEvent(event, view, option, index)

    def small(self, font: QFont) -> QFont:
        """That font in the small size."""
        small = QFont(font)
        small.setPointSizeF(self.look.type.small)
        return small

    def paint_ground(self, painter: QPainter, option: QStyleOptionViewItem) -> None:
        """What says that the row is selected, below the pointer, or has the keys."""
        theme, state = self.look.theme, option.state
        selected = self.shows_selection and state & QStyle.StateFlag.State_Selected
        if selected or state & QStyle.StateFlag.State_MouseOver:
            path = QPainterPath()
            path.addRoundedRect(QRectF(option.rect).adjusted(0, 1, 0, -1), 8, 8)
            painter.fillPath(path, QColor(theme.selected if selected else theme.hover))
        if state & QStyle.StateFlag.State_HasFocus:
            painter.setPen(QColor(theme.accent))
            painter.drawRoundedRect(QRectF(option.rect).adjusted(0.5, 1.5, -0.5, -1.5), 8, 8)


class ItemList(QListView):
    """A list that scrolls smoothly and never sideways."""

    def __init__(self, look: Look, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.setMouseTracking(True)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName(name)
        look.changed.connect(self.viewport().update)

    def dataChanged(self, first: Index, last: Index, roles: Sequence[int] = ()) -> None:
        """Rows of one height stand where they stood: a list of thousands need not be laid out again."""
        if self.uniformItemSizes():
            QAbstractItemView.dataChanged(self, first, last, roles)
        else:
            super().dataChanged(first, last, roles)
