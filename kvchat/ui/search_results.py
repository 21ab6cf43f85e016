"""What a search found, in the sidebar: each chat's title and a line or two around the hit."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QPersistentModelIndex, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPen, QTextCharFormat, QTextLayout, QTextOption
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QListView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from kvchat.chat.search import FoundChat
from kvchat.ui.theme import Look
from kvchat.ui.utf16 import position

_Index = QModelIndex | QPersistentModelIndex
FOUND = Qt.ItemDataRole.UserRole
_SIDE, _ABOVE = 10, 7  # pixels around the words
_LINES = 2


class _Model(QAbstractListModel):
    """The chats found."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.chats: tuple[FoundChat, ...] = ()

    def set_chats(self, chats: tuple[FoundChat, ...]) -> None:
        """Show these."""
        self.beginResetModel()
        self.chats = chats
        self.endResetModel()

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008
        """How many chats were found."""
        return 0 if parent.isValid() else len(self.chats)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        """A chat's words."""
        found = self.chats[index.row()]
        if role == FOUND:
            return found
        if role == Qt.ItemDataRole.DisplayRole:
            return found.title
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return f"{found.title}: {found.excerpt}" if found.excerpt else found.title
        return None


class _Delegate(QStyledItemDelegate):
    """Draws the title, and below it the excerpt with its hits marked."""

    def __init__(self, look: Look, parent: QWidget) -> None:
        super().__init__(parent)
        self._look = look

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:
        """A title and two lines, or a title alone."""
        lines = 1 + (_LINES if index.data(FOUND).excerpt else 0)
        return QSize(80, lines * (option.fontMetrics.height() + 2) + 2 * _ABOVE)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        """Ground, title, excerpt."""
        theme, found = self._look.theme, index.data(FOUND)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        chosen = bool(option.state & QStyle.StateFlag.State_Selected)
        ground = QPainterPath()
        ground.addRoundedRect(QRectF(option.rect).adjusted(0, 1, 0, -1), 8, 8)
        if chosen or option.state & QStyle.StateFlag.State_MouseOver:
            painter.fillPath(ground, QColor(theme.selected if chosen else theme.hover))
        if option.state & QStyle.StateFlag.State_HasFocus:
            painter.setPen(QPen(QColor(theme.accent), 1))
            painter.drawPath(ground)
        box = option.rect.adjusted(_SIDE, _ABOVE, -_SIDE, -_ABOVE)
        font = option.font
        font.setBold(True)
        painter.setFont(font)
        painter.setPen(QColor(theme.text))
        title = painter.fontMetrics().elidedText(
            " ".join(found.title.split()), Qt.TextElideMode.ElideRight, box.width()
        )
        painter.drawText(box, int(Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignLeft), title)
        font.setBold(False)
        if found.excerpt:
            self._paint_excerpt(painter, QRectF(box.adjusted(0, option.fontMetrics.height() + 3, 0, 0)), found, option)
        painter.restore()

    def _paint_excerpt(self, painter: QPainter, box: QRectF, found: FoundChat, option: QStyleOptionViewItem) -> None:
        layout = QTextLayout(found.excerpt, option.font)
        layout.setTextOption(QTextOption())
        mark = QTextCharFormat()
        mark.setBackground(QColor(self._look.theme.mark))
        mark.setForeground(QColor(self._look.theme.text))
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
        painter.setPen(QColor(self._look.theme.muted))
        layout.draw(painter, box.topLeft(), marks)


class SearchResults(QListView):
    """The list of what was found."""

    chosen = Signal(FoundChat)

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._model = _Model(self)
        self.setModel(self._model)
        self.setItemDelegate(_Delegate(look, self))
        self.setAccessibleName("Chats found")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setMouseTracking(True)
        self.clicked.connect(self._choose)
        self.activated.connect(self._choose)
        look.changed.connect(self.viewport().update)

    @property
    def chats(self) -> tuple[FoundChat, ...]:
        """What is shown."""
        return self._model.chats

    def show_chats(self, chats: tuple[FoundChat, ...]) -> None:
        """Show what was found; the first is the one that Enter opens."""
        self._model.set_chats(chats)
        if chats:
            self.setCurrentIndex(self._model.index(0))

    def _choose(self, index: QModelIndex) -> None:
        self.chosen.emit(index.data(FOUND))
