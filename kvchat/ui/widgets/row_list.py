"""A list of rows with a title, words below it and a word in a chip. Only rows in view are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from PySide6.QtCore import QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetrics, QKeyEvent, QPainter, QPainterPath
from PySide6.QtWidgets import QStyle, QStyleOptionViewItem

from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.item_list import ROW, Index, ItemDelegate, ItemList, ItemModel, sided, write
from kvchat.words.language import listed
from kvchat.words.wording import one_line

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


class RowModel(ItemModel[Row]):
    """The rows' words."""

    def spoken(self, row: Row) -> str:
        """Title, words and chip."""
        return listed((row.title, row.words, row.chip))

    def tip(self, row: Row) -> str:
        """All of it, and what there is to say beyond."""
        return "\n".join(line for line in (row.title, row.words, row.tip) if line)


class RowList(ItemList):
    """The list. Enter or a double click takes a row."""

    taken = Signal(object)  # Row
    current_changed = Signal()

    def __init__(self, look: Look, name: str) -> None:
        super().__init__(look, name)
        self.row_model = RowModel(self)
        self.setItemDelegate(RowDelegate(look, self))
        self.setModel(self.row_model)
        self.setUniformItemSizes(True)
        self.doubleClicked.connect(lambda index: self.taken.emit(self.row_model.rows[index.row()]))
        self.selectionModel().currentChanged.connect(lambda *_: self.current_changed.emit())

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


class RowDelegate(ItemDelegate):
    """Draws a row."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        """Two lines."""
        small = QFontMetrics(self.small(option.font)).height()
        return QSize(120, 2 * _PAD + option.fontMetrics.height() + _GAP + small)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """The ground, the chip, then title and words in the room that is left."""
        row: Row = index.data(ROW)
        theme = self.look.theme
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.paint_ground(painter, option)
        box = option.rect.adjusted(12, _PAD, -12, -_PAD)
        right = self._paint_chip(painter, option, box, row) if row.chip else box.right()
        room = max(right - box.left() - 12, 24)
        height = option.fontMetrics.height()
        painter.setFont(option.font)
        painter.setPen(QColor(theme.muted if row.tone is Tone.BAD else theme.text))
        title = option.fontMetrics.elidedText(one_line(row.title), Qt.TextElideMode.ElideMiddle, room)
        write(painter, option, QRect(box.left(), box.top(), room, height), title)
        painter.setFont(self.small(option.font))
        painter.setPen(QColor(theme.muted))
        below = QRect(box.left(), box.top() + height + _GAP, room, painter.fontMetrics().height())
        write(painter, option, below, one_line(row.words))
        painter.restore()

    def _paint_chip(self, painter: QPainter, option: QStyleOptionViewItem, box: QRect, row: Row) -> int:
        """The chip at the right, in the middle of the row; returns where it begins."""
        theme = self.look.theme
        calm = theme.raised if option.state & QStyle.StateFlag.State_Selected else theme.bubble
        ground, ink = {
            Tone.PLAIN: (calm, theme.muted),
            Tone.GOOD: (calm, theme.accent),
            Tone.WARN: (theme.warn_soft, theme.warn),
            Tone.BAD: (theme.bad_soft, theme.bad),
        }[row.tone]
        painter.setFont(self.small(option.font))
        metrics = QFontMetrics(painter.font())
        width, height = metrics.horizontalAdvance(row.chip) + 18, metrics.height() + 4
        chip = QRectF(box.right() - width, box.center().y() - height / 2, width, height)
        drawn = sided(option, chip)
        path = QPainterPath()
        path.addRoundedRect(drawn, height / 2, height / 2)
        painter.fillPath(path, QColor(ground))
        painter.setPen(QColor(ink))
        painter.drawText(drawn, int(Qt.AlignmentFlag.AlignCenter), row.chip)
        return int(chip.left())
