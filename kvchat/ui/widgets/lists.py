"""Lists: row model, row delegate and view. Only visible rows are drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar

from PySide6.QtCore import QAbstractListModel, QModelIndex, QPersistentModelIndex, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontMetrics, QHelpEvent, QKeyEvent, QPainter, QPainterPath
from PySide6.QtWidgets import (
    QAbstractItemView,
    QListView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QToolTip,
)

from kvchat.text.formatting import one_line
from kvchat.text.language import join_list
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.layouts import plain_tip

ModelIndex = QModelIndex | QPersistentModelIndex
ROW = Qt.ItemDataRole.UserRole
_PADDING, _LINE_GAP = 9, 4  # pixels around and between a Row's two lines
Rect = TypeVar("Rect", QRect, QRectF)


class HasTitle(Protocol):
    @property
    def title(self) -> str: ...


R = TypeVar("R", bound=HasTitle)


class ItemModel(QAbstractListModel, Generic[R]):
    def __init__(self, key: Callable[[R], object] | None = None) -> None:
        """`key` identifies a row, so that selection, editing and scroll position are kept when other rows change."""
        super().__init__()
        self.rows: Sequence[R] = ()
        self._key = key

    def accessible_text(self, row: R) -> str:
        raise NotImplementedError

    def tip(self, row: R) -> str:
        return ""

    def set_rows(self, rows: Sequence[R]) -> None:
        if (key := self._key) is None:
            self.beginResetModel()
            self.rows = rows
            self.endResetModel()
            return
        places = {key(row): place for place, row in enumerate(rows)}
        last = len(self.rows)
        for stays, run in groupby(reversed(self.rows), key=lambda row: key(row) in places):
            first = last - len(list(run))
            if not stays:
                self.beginRemoveRows(QModelIndex(), first, last - 1)
                self.rows = [*self.rows[:first], *self.rows[last:]]
                self.endRemoveRows()
            last = first
        old_keys = [key(row) for row in self.rows]
        if old_keys == list(places):
            self.rows = rows
            if rows:
                self.dataChanged.emit(self.index(0), self.index(len(rows) - 1))
            return
        self.layoutAboutToBeChanged.emit()
        indexes = self.persistentIndexList()
        self.rows = rows
        self.changePersistentIndexList(indexes, [self.index(places[old_keys[index.row()]]) for index in indexes])
        self.layoutChanged.emit()

    def rowCount(self, parent: ModelIndex = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self.rows)

    def data(self, index: ModelIndex, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row = self.rows[index.row()]
        match role:
            case Qt.ItemDataRole.UserRole:
                return row
            case Qt.ItemDataRole.DisplayRole | Qt.ItemDataRole.EditRole:
                return row.title
            case Qt.ItemDataRole.AccessibleTextRole:
                return self.accessible_text(row)
            case Qt.ItemDataRole.ToolTipRole:
                return self.tip(row) or None
        return None


def mirrored_box(option: QStyleOptionViewItem, box: Rect) -> Rect:
    """Mirror a row's box in right-to-left languages. Qt mirrors only text."""
    if option.direction is not Qt.LayoutDirection.RightToLeft:
        return box
    row = type(box)(option.rect)
    return box.translated(row.left() + row.right() - box.left() - box.right(), 0)


def draw_text(painter: QPainter, option: QStyleOptionViewItem, box: QRect, text: str, *, at_end: bool = False) -> None:
    """Draw a line of text in its script's direction, elided if too long. Right-to-left languages mirror the box."""
    mirrored = option.direction is Qt.LayoutDirection.RightToLeft
    side = Qt.AlignmentFlag.AlignRight if at_end is not mirrored else Qt.AlignmentFlag.AlignLeft
    elided = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, box.width())
    painter.setLayoutDirection(Qt.LayoutDirection.LayoutDirectionAuto)
    flags = side | Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignAbsolute
    painter.drawText(mirrored_box(option, box), int(flags), elided)


class ItemDelegate(QStyledItemDelegate):
    shows_selection = True

    def __init__(self, look: Look, parent: QAbstractItemView) -> None:
        super().__init__(parent)
        self.look = look

    def helpEvent(
        self, event: QHelpEvent, view: QAbstractItemView, option: QStyleOptionViewItem, index: ModelIndex
    ) -> bool:
        if event.type() == QHelpEvent.Type.ToolTip and index.isValid():
            tip = index.data(Qt.ItemDataRole.ToolTipRole)
            QToolTip.showText(event.globalPos(), plain_tip(tip or ""), view)
            return True
        return super().helpEvent(event, view, option, index)

    def small_font(self, font: QFont) -> QFont:
        small = QFont(font)
        small.setPointSizeF(self.look.fonts.small)
        return small

    def paint_background(self, painter: QPainter, option: QStyleOptionViewItem) -> None:
        theme, state = self.look.theme, option.state
        selected = self.shows_selection and state & QStyle.StateFlag.State_Selected
        if selected or state & QStyle.StateFlag.State_MouseOver:
            path = QPainterPath()
            path.addRoundedRect(QRectF(option.rect).adjusted(0, 1, 0, -1), 8, 8)
            painter.fillPath(path, QColor(theme.selected if selected else theme.hover))
        if state & QStyle.StateFlag.State_HasFocus:
            painter.setPen(QColor(theme.accent))
            painter.drawRoundedRect(QRectF(option.rect).adjusted(0.5, 1.5, -0.5, -1.5), 8, 8)

    def paint_chip(
        self, painter: QPainter, option: QStyleOptionViewItem, box: QRect, text: str, background: str, colour: str
    ) -> int:
        painter.setFont(self.small_font(option.font))
        metrics = painter.fontMetrics()
        width, height = metrics.horizontalAdvance(text) + 18, metrics.height() + 4
        chip = QRectF(box.right() - width, box.center().y() - height / 2, width, height)
        drawn, path = mirrored_box(option, chip), QPainterPath()
        path.addRoundedRect(drawn, height / 2, height / 2)
        painter.fillPath(path, QColor(background))
        painter.setPen(QColor(colour))
        painter.drawText(drawn, int(Qt.AlignmentFlag.AlignCenter), text)
        painter.setFont(option.font)
        return int(chip.left())


class ItemList(QListView):
    def __init__(self, look: Look, name: str) -> None:
        super().__init__()
        self.look = look
        self.setMouseTracking(True)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName(name)
        look.changed.connect(self.viewport().update)

    def dataChanged(self, first: ModelIndex, last: ModelIndex, roles: Sequence[int] = ()) -> None:
        """Skip Qt's new layout, which is slow for thousands of rows, if all rows have the same height."""
        if self.uniformItemSizes():
            QAbstractItemView.dataChanged(self, first, last, roles)
        else:
            super().dataChanged(first, last, roles)


class Tone(Enum):
    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True)
class Row:
    """Row of a list. `value` is the object that the row stands for; `tip` is an additional line of the tooltip."""

    value: object
    title: str
    detail: str
    chip: str = ""
    tone: Tone = Tone.PLAIN
    tip: str = ""


class RowModel(ItemModel[Row]):
    def accessible_text(self, row: Row) -> str:
        return join_list((row.title, row.detail, row.chip))

    def tip(self, row: Row) -> str:
        return "\n".join(line for line in (row.title, row.detail, row.tip) if line)


class RowList(ItemList):
    row_activated = Signal(object)  # Row
    current_changed = Signal()

    def __init__(self, look: Look, name: str) -> None:
        super().__init__(look, name)
        self.row_model = RowModel()
        self.setItemDelegate(RowDelegate(look, self))
        self.setModel(self.row_model)
        self.setUniformItemSizes(True)
        self.doubleClicked.connect(lambda index: self.row_activated.emit(index.data(ROW)))
        self.selectionModel().currentChanged.connect(lambda *_: self.current_changed.emit())

    @property
    def rows(self) -> Sequence[Row]:
        return self.row_model.rows

    @property
    def current(self) -> Row | None:
        return self.currentIndex().data(ROW)  # type: ignore[no-any-return]  # None without a current row

    def show_rows(self, rows: Sequence[Row]) -> None:
        current, scroll_position = self.current, self.verticalScrollBar().value()
        self.row_model.set_rows(rows)
        self.select(current.value if current else None)
        self.verticalScrollBar().setValue(scroll_position)
        self.current_changed.emit()

    def select(self, value: object) -> None:
        for number, row in enumerate(self.rows):
            if value is not None and row.value == value:
                self.setCurrentIndex(self.row_model.index(number))

    def limit_height(self, max_rows: int) -> None:
        rows = min(max(len(self.rows), 1), max_rows)
        height = self.sizeHintForRow(0) if self.rows else self.look.px(54)
        self.setFixedHeight(rows * max(height, 1) + 2 * self.frameWidth() + self.look.px(6))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.current is not None:
            self.row_activated.emit(self.current)
            return
        super().keyPressEvent(event)


class RowDelegate(ItemDelegate):
    def sizeHint(self, option: QStyleOptionViewItem, index: ModelIndex) -> QSize:
        small = QFontMetrics(self.small_font(option.font)).height()
        return QSize(120, 2 * _PADDING + option.fontMetrics.height() + _LINE_GAP + small)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: ModelIndex) -> None:
        row: Row = index.data(ROW)
        theme = self.look.theme
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.paint_background(painter, option)
        box = option.rect.adjusted(12, _PADDING, -12, -_PADDING)
        right = box.right()
        if row.chip:
            neutral = theme.raised if option.state & QStyle.StateFlag.State_Selected else theme.bubble
            colours = {
                Tone.PLAIN: (neutral, theme.muted),
                Tone.GOOD: (neutral, theme.accent),
                Tone.WARN: (theme.warn_soft, theme.warn),
                Tone.BAD: (theme.bad_soft, theme.bad),
            }[row.tone]
            right = self.paint_chip(painter, option, box, row.chip, *colours)
        room = max(right - box.left() - 12, 24)
        height = option.fontMetrics.height()
        painter.setPen(QColor(theme.muted if row.tone is Tone.BAD else theme.text))
        title = option.fontMetrics.elidedText(one_line(row.title), Qt.TextElideMode.ElideMiddle, room)
        draw_text(painter, option, QRect(box.left(), box.top(), room, height), title)
        painter.setFont(self.small_font(option.font))
        painter.setPen(QColor(theme.muted))
        below = QRect(box.left(), box.top() + height + _LINE_GAP, room, painter.fontMetrics().height())
        draw_text(painter, option, below, one_line(row.detail))
        painter.restore()
