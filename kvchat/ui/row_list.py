"""A list of rows with a title, words below it and a word in a chip. Only rows in view are drawn."""

from __future__ import annotations

from collections.abc import Sequence
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
from PySide6.QtGui import QColor, QFont, QFontMetrics, QHelpEvent, QKeyEvent, QPainter, QPainterPath
from PySide6.QtWidgets import (
    QAbstractItemView,
    QListView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QToolTip,
    QWidget,
)

from kvchat.ui.elided import plain_tip
from kvchat.ui.theme import Look

_Index = QModelIndex | QPersistentModelIndex
_LEFT = int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft)
_PAD, _GAP = 9, 4  # pixels


class Tone(Enum):
    """What a chip's colour says."""

    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True)
class Row:
    """One row. `value` is what it stands for; `tip` is what there is to say beyond the words."""

    value: object
    title: str
    words: str
    chip: str = ""
    tone: Tone = Tone.PLAIN
    tip: str = ""

    @property
    def spoken(self) -> str:
        """The row for a screen reader."""
        return ", ".join(part for part in (self.title, self.words, self.chip) if part)


class RowModel(QAbstractListModel):
    """The rows, in the order given."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.rows: Sequence[Row] = ()

    def set_rows(self, rows: Sequence[Row]) -> None:
        """Show these."""
        self.beginResetModel()
        self.rows = rows
        self.endResetModel()

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008
        """How many there are."""
        return 0 if parent.isValid() else len(self.rows)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        """A row, or its words."""
        row = self.rows[index.row()]
        if role == Qt.ItemDataRole.UserRole:
            return row
        if role == Qt.ItemDataRole.DisplayRole:
            return row.title
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return row.spoken
        return None


class RowList(QListView):
    """The list. Enter or a double click takes a row."""

    taken = Signal(object)  # Row
    current_changed = Signal()

    def __init__(self, look: Look, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.row_model = RowModel(self)
        self.setItemDelegate(RowDelegate(look, self))
        self.setModel(self.row_model)
        self.setUniformItemSizes(True)
        self.setMouseTracking(True)
        self.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName(name)
        self.doubleClicked.connect(lambda index: self.taken.emit(self.row_model.rows[index.row()]))
        self.selectionModel().currentChanged.connect(lambda *_: self.current_changed.emit())
        look.changed.connect(self.viewport().update)

    @property
    def rows(self) -> Sequence[Row]:
        """What is shown."""
        return self.row_model.rows

    @property
    def current(self) -> Row | None:
        """The row that is selected."""
        index = self.currentIndex()
        return self.row_model.rows[index.row()] if index.isValid() else None

    def show_rows(self, rows: Sequence[Row]) -> None:
        """Show these; what was selected stays so, and the place scrolled to."""
        kept, place = self.current, self.verticalScrollBar().value()
        self.row_model.set_rows(rows)
        self.select(kept.value if kept else None)
        self.verticalScrollBar().setValue(place)
        self.current_changed.emit()

    def select(self, value: object) -> None:
        """Select the row that stands for that, if it is there."""
        for number, row in enumerate(self.rows):
            if value is not None and row.value == value:
                self.setCurrentIndex(self.row_model.index(number))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter takes the row."""
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.current is not None:
            self.taken.emit(self.current)
            return
        super().keyPressEvent(event)


class RowDelegate(QStyledItemDelegate):
    """Draws a row."""

    def __init__(self, look: Look, parent: QWidget) -> None:
        super().__init__(parent)
        self._look = look

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:
        """Two lines."""
        small = QFontMetrics(self._small(option.font)).height()
        return QSize(120, 2 * _PAD + option.fontMetrics.height() + _GAP + small)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        """The ground, the chip, then title and words in the room that is left."""
        row: Row = index.data(Qt.ItemDataRole.UserRole)
        theme = self._look.theme
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._paint_ground(painter, option)
        box = option.rect.adjusted(12, _PAD, -12, -_PAD)
        right = self._paint_chip(painter, option, box, row) if row.chip else box.right()
        room = max(right - box.left() - 12, 24)
        height = option.fontMetrics.height()
        painter.setFont(option.font)
        painter.setPen(QColor(theme.muted if row.tone is Tone.BAD else theme.text))
        title = option.fontMetrics.elidedText(_one_line(row.title), Qt.TextElideMode.ElideMiddle, room)
        painter.drawText(QRect(box.left(), box.top(), room, height), _LEFT, title)
        painter.setFont(self._small(option.font))
        painter.setPen(QColor(theme.muted))
        metrics = QFontMetrics(painter.font())
        words = metrics.elidedText(_one_line(row.words), Qt.TextElideMode.ElideRight, room)
        painter.drawText(QRect(box.left(), box.top() + height + _GAP, room, metrics.height()), _LEFT, words)
        painter.restore()

    def helpEvent(
        self, event: QHelpEvent, view: QAbstractItemView, option: QStyleOptionViewItem, index: _Index
    ) -> bool:
        """All that a narrow row may have cut off, as plain text."""
        if event.type() == QEvent.Type.ToolTip and index.isValid():
            row: Row = index.data(Qt.ItemDataRole.UserRole)
            lines = [line for line in (row.title, row.words, row.tip) if line]
            QToolTip.showText(event.globalPos(), plain_tip("\n".join(lines)), view)
            return True
        return super().helpEvent(event, view, option, index)

    def _small(self, font: QFont) -> QFont:
        small = QFont(font)
        small.setPointSizeF(self._look.type.small)
        return small

    def _paint_ground(self, painter: QPainter, option: QStyleOptionViewItem) -> None:
        theme, state = self._look.theme, option.state
        box = QRectF(option.rect).adjusted(0.5, 1.5, -1.5, -1.5)
        selected = state & QStyle.StateFlag.State_Selected
        if selected or state & QStyle.StateFlag.State_MouseOver:
            path = QPainterPath()
            path.addRoundedRect(box, 8, 8)
            painter.fillPath(path, QColor(theme.selected if selected else theme.hover))
        if state & QStyle.StateFlag.State_HasFocus:
            painter.setPen(QColor(theme.accent))
            painter.drawRoundedRect(box, 8, 8)

    def _paint_chip(self, painter: QPainter, option: QStyleOptionViewItem, box: QRect, row: Row) -> int:
        """The chip at the right, in the middle of the row; returns where it begins."""
        theme = self._look.theme
        calm = theme.raised if option.state & QStyle.StateFlag.State_Selected else theme.bubble
        ground, ink = {
            Tone.PLAIN: (calm, theme.muted),
            Tone.GOOD: (calm, theme.accent),
            Tone.WARN: (theme.warn_soft, theme.warn),
            Tone.BAD: (theme.bad_soft, theme.bad),
        }[row.tone]
        painter.setFont(self._small(option.font))
        metrics = QFontMetrics(painter.font())
        width, height = metrics.horizontalAdvance(row.chip) + 18, metrics.height() + 4
        chip = QRectF(box.right() - width, box.center().y() - height / 2, width, height)
        path = QPainterPath()
        path.addRoundedRect(chip, height / 2, height / 2)
        painter.fillPath(path, QColor(ground))
        painter.setPen(QColor(ink))
        painter.drawText(chip, int(Qt.AlignmentFlag.AlignCenter), row.chip)
        return int(chip.left())


def _one_line(text: str) -> str:
    return " ".join(text.split())
