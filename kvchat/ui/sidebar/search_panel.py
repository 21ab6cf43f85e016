"""The sidebar's search field and its results, which replace the chats: titles, with a line or two around hits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QModelIndex, QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QPainter, QPaintEvent, QTextCharFormat, QTextLayout, QTextOption
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QLineEdit,
    QStackedWidget,
    QStyle,
    QStyleOptionViewItem,
    QToolButton,
    QWidget,
)

from kvchat.ui.base.building import beginning, column, label
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.lists import ROW, Index, ItemDelegate, ItemList, ItemModel, write
from kvchat.ui.widgets.text_search import position
from kvchat.words.language import _, sentences
from kvchat.words.wording import one_line

if TYPE_CHECKING:
    from kvchat.chat.search import ChatHit, ChatSearchResult

_SIDE, _ABOVE = 10, 7  # pixels around the text
_LINES = 2


class _Model(ItemModel["ChatHit"]):
    def spoken(self, row: ChatHit) -> str:
        return f"{row.title}: {row.excerpt}" if row.excerpt else row.title


class _Delegate(ItemDelegate):
    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        lines = 1 + (_LINES if index.data(ROW).excerpt else 0)
        return QSize(80, lines * (option.fontMetrics.height() + 2) + 2 * _ABOVE)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        theme, found = self.look.theme, index.data(ROW)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.paint_ground(painter, option)
        box = option.rect.adjusted(_SIDE, _ABOVE, -_SIDE, -_ABOVE)
        font = option.font
        font.setBold(True)
        painter.setFont(font)
        painter.setPen(QColor(theme.text))
        first = QRect(box.topLeft(), QSize(box.width(), painter.fontMetrics().height()))
        write(painter, option, first, one_line(found.title))
        font.setBold(False)
        if found.excerpt:
            self._paint_excerpt(painter, QRectF(box.adjusted(0, option.fontMetrics.height() + 3, 0, 0)), found, option)
        painter.restore()

    def _paint_excerpt(self, painter: QPainter, box: QRectF, found: ChatHit, option: QStyleOptionViewItem) -> None:
        layout = QTextLayout(found.excerpt, option.font)
        runs = QTextOption(beginning())
        runs.setTextDirection(Qt.LayoutDirection.LayoutDirectionAuto)  # follows its script
        layout.setTextOption(runs)
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
        for _line in range(_LINES):
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
    chosen = Signal(object)  # a ChatHit

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, _("Search results"), parent)
        self._model = _Model(self)
        self.setModel(self._model)
        self.setItemDelegate(_Delegate(look, self))
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.clicked.connect(self._choose)
        self.activated.connect(self._choose)

    @property
    def chats(self) -> tuple[ChatHit, ...]:
        return tuple(self._model.rows)

    def show_chats(self, chats: tuple[ChatHit, ...]) -> None:
        self._model.set_rows(chats)
        if chats:
            self.setCurrentIndex(self._model.index(0))

    def _choose(self, index: QModelIndex) -> None:
        self.chosen.emit(index.data(ROW))


class _Field(QLineEdit):
    """Field: Esc clears, Down enters the results, Enter opens the first."""

    def __init__(self, results: SearchResults, look: Look) -> None:
        super().__init__()
        self._results, self._look = results, look

    def paintEvent(self, event: QPaintEvent) -> None:
        """Draw a magnifier that scales with the text: an action's icon is always 16 pixels."""
        super().paintEvent(event)
        side = self._look.px(16)
        place = QRect(self._look.px(8), (self.height() - side) // 2, side, side)
        place = QStyle.visualRect(self.layoutDirection(), self.rect(), place)
        with QPainter(self) as painter:
            icon("search", self._look.theme.muted).paint(painter, place)

    def event(self, event: QEvent) -> bool:
        """Handle Esc, else it triggers the window's shortcut."""
        asked = event.type() == QEvent.Type.ShortcutOverride and isinstance(event, QKeyEvent)
        if asked and self.text() and event.key() == Qt.Key.Key_Escape:  # type: ignore[attr-defined]
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.clear()
        elif event.key() == Qt.Key.Key_Down and self._results.chats:
            self._results.setFocus()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self._results.chats:
            self._results.chosen.emit(self._results.chats[0])
        else:
            super().keyPressEvent(event)


class SearchPanel(QWidget):
    def __init__(self, look: Look, below: QWidget) -> None:
        super().__init__()
        self._look = look
        self.results = SearchResults(look)
        self.field = _Field(self.results, look)
        self.field.setPlaceholderText(_("Search all chats"))
        self.field.setAccessibleName(_("Search all chats"))
        self.field.setToolTip(f"{self.field.placeholderText()} (Ctrl+Shift+F)")
        self.field.setClearButtonEnabled(True)
        for button in self.field.findChildren(QToolButton):
            button.setAccessibleName(_("Clear the search field"))
        self.words = label(kind="small", wraps=True)
        self.words.setContentsMargins(10, 2, 10, 0)
        found = QWidget()
        column(self.words, (self.results, 1), on=found, margins=0)
        self.pages = QStackedWidget()
        self.pages.addWidget(below)
        self.pages.addWidget(found)
        column(self.field, (self.pages, 1), on=self, spacing=6, margins=0)
        look.changed.connect(self._restyle)
        self._restyle()

    def show_found(self, found: ChatSearchResult) -> None:
        self.results.show_chats(found.chats)
        unfinished = "" if found.complete else _("Older messages are still being indexed.")
        self.words.setText(sentences("" if found.chats else _("Nothing found."), unfinished))
        self.words.setVisible(bool(self.words.text()))
        self.pages.setCurrentIndex(1)

    def show_none(self) -> None:
        self.results.show_chats(())
        self.pages.setCurrentIndex(0)

    def focus(self) -> None:
        self.field.setFocus()
        self.field.selectAll()

    def _restyle(self) -> None:
        margin = self._look.px(20)
        self.field.setTextMargins(*((0, 0, margin, 0) if self.isRightToLeft() else (margin, 0, 0, 0)))
        self.field.update()
