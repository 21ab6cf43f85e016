"""What a search found, in the sidebar: each chat's title and a line or two around the hit."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QTextCharFormat, QTextLayout, QTextOption
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QStyleOptionViewItem,
    QWidget,
)

from kvchat.chat.search.search import FoundChat
from kvchat.ui.base.text_cursors import position
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.item_list import ROW, Index, ItemDelegate, ItemList, ItemModel
from kvchat.words.wording import one_line

_SIDE, _ABOVE = 10, 7  # pixels around the words
_LINES = 2


class _Model(ItemModel[FoundChat]):
    """The chats found."""

    def spoken(self, row: FoundChat) -> str:
        """Title and excerpt."""
        return f"{row.title}: {row.excerpt}" if row.excerpt else row.title


class _Delegate(ItemDelegate):
    """Draws the title, and below it the excerpt with its hits marked."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        """A title and two lines, or a title alone."""
        lines = 1 + (_LINES if index.data(ROW).excerpt else 0)
        return QSize(80, lines * (option.fontMetrics.height() + 2) + 2 * _ABOVE)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """Ground, title, excerpt."""
        theme, found = self.look.theme, index.data(ROW)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.paint_ground(painter, option)
        box = option.rect.adjusted(_SIDE, _ABOVE, -_SIDE, -_ABOVE)
        font = option.font
        font.setBold(True)
        painter.setFont(font)
        painter.setPen(QColor(theme.text))
        title = painter.fontMetrics().elidedText(one_line(found.title), Qt.TextElideMode.ElideRight, box.width())
        painter.drawText(box, int(Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignLeft), title)
        font.setBold(False)
        if found.excerpt:
            self._paint_excerpt(painter, QRectF(box.adjusted(0, option.fontMetrics.height() + 3, 0, 0)), found, option)
        painter.restore()

    def _paint_excerpt(self, painter: QPainter, box: QRectF, found: FoundChat, option: QStyleOptionViewItem) -> None:
        layout = QTextLayout(found.excerpt, option.font)
        layout.setTextOption(QTextOption())
        mark = QTextCharFormat()
        mark.setBackground(QColor(self.look.theme.mark))
        mark.setForeground(QColor(self.look.theme.text))
        marks = []
        for start, end in found.marks:
            range_ = QTextLayout.FormatRange()
            range_.start = position(found.excerpt, start)
            range_.length = position(found.excerpt, end) - position(found.excerpt, start)
            range_.format = mark
            marks.append(range_)
        layout.beginLayout()
        top = 0.0
        for _ in range(_LINES):
            line = layout.createLine()
            if not line.isValid():
                break
            line.setLineWidth(box.width())
            line.setPosition(QPointF(0, top))
            top += line.height()
        layout.endLayout()
        painter.setPen(QColor(self.look.theme.muted))
        layout.draw(painter, box.topLeft(), marks)


class SearchResults(ItemList):
    """The list of what was found."""

    chosen = Signal(FoundChat)

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, "Chats found", parent)
        self._model = _Model(self)
        self.setModel(self._model)
        self.setItemDelegate(_Delegate(look, self))
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.clicked.connect(self._choose)
        self.activated.connect(self._choose)

    @property
    def chats(self) -> tuple[FoundChat, ...]:
        """What is shown."""
        return tuple(self._model.rows)

    def show_chats(self, chats: tuple[FoundChat, ...]) -> None:
        """Show what was found; the first is the one that Enter opens."""
        self._model.set_rows(chats)
        if chats:
            self.setCurrentIndex(self._model.index(0))

    def _choose(self, index: QModelIndex) -> None:
        self.chosen.emit(index.data(ROW))
