"""Responsive widgets that Qt lacks: elided texts, rows that wrap, pages that scroll."""

from __future__ import annotations

import html
import re

from PySide6.QtCore import QEvent, QPoint, QRect, QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QApplication,
    QDialog,
    QLabel,
    QLayout,
    QLayoutItem,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QStyle,
    QWidget,
)

from kvchat.ui.base.building import leading_alignment, styled
from kvchat.words.wording import one_line

_SEPARATORS = re.compile(r"[/\\._-]")
_LONG_RUN = re.compile(r"[^\s\u200b]{24}")
COLUMN_WIDTH = 760  # pixels at 100 % text of the messages and aligned widgets, where there is room


def plain_tip(text: str) -> str:
    """Return a tooltip that shows `text` verbatim: Qt would render anything like HTML."""
    return f"<qt>{html.escape(text).replace(chr(10), '<br>')}</qt>" if text else ""


def breakable(text: str) -> str:
    """Add zero-width spaces where a label may wrap a path or file name."""
    return _LONG_RUN.sub("\\g<0>\u200b", _SEPARATORS.sub("\\g<0>\u200b", text))


class ElidedLabel(QLabel):
    def __init__(self, kind: str = "") -> None:
        super().__init__()
        styled(self, kind).setTextFormat(Qt.TextFormat.PlainText)
        self.whole = ""  # the full text
        self.setAlignment(leading_alignment() | Qt.AlignmentFlag.AlignVCenter)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)

    def set_text(self, text: str) -> None:
        self.whole = one_line(text)
        self.setAccessibleName(self.whole)
        self._elide()
        self.updateGeometry()

    def minimumSizeHint(self) -> QSize:
        return QSize(24, super().minimumSizeHint().height())

    def sizeHint(self) -> QSize:
        return QSize(self.fontMetrics().horizontalAdvance(self.whole) + 4, super().sizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._elide()

    def _elide(self) -> None:
        shown = self.fontMetrics().elidedText(self.whole, Qt.TextElideMode.ElideRight, max(self.width(), 24))
        self.setText(shown)
        self.setToolTip(plain_tip(self.whole) if shown != self.whole else "")


class ElidedButton(QPushButton):
    """One-line button that elides its text but never its tail."""

    def __init__(self, kind: str, beside: int = 14) -> None:
        """beside: pixels the style adds to the text's width, both ends together"""
        super().__init__()
        styled(self, kind)
        self._beside = beside
        self._whole = self._tail = self._tip = ""
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)

    def set_text(self, text: str, tail: str, tip: str = "") -> None:
        self._whole, self._tail, self._tip = text, tail, tip
        self._elide()
        self.updateGeometry()

    def minimumSizeHint(self) -> QSize:
        return QSize(60, super().sizeHint().height())

    def sizeHint(self) -> QSize:
        wide = self.fontMetrics().horizontalAdvance(f"{self._whole} {self._tail}")
        return QSize(wide + 18, super().sizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._elide()

    def _elide(self) -> None:
        metrics = self.fontMetrics()
        room = max(self.width() - self._beside - metrics.horizontalAdvance(f" {self._tail}"), 24)
        shown = metrics.elidedText(self._whole, Qt.TextElideMode.ElideRight, room)
        self.setText(f"{shown} {self._tail}")
        self.setToolTip(plain_tip(self._tip or (self._whole if shown != self._whole else "")))


class FlowLayout(QLayout):
    """Wrapping row, aligned to the start or `at_end`. Hidden widgets take no room."""

    def __init__(self, parent: QWidget | None = None, spacing: int = 8, *, at_end: bool = False) -> None:
        super().__init__(parent)
        self._items: list[QLayoutItem] = []
        self._at_end = at_end
        self.setContentsMargins(0, 0, 0, 0)
        self.setSpacing(spacing)

    def addItem(self, item: QLayoutItem) -> None:
        self._items.append(item)

    def count(self) -> int:
        return len(self._items)

    def itemAt(self, index: int) -> QLayoutItem | None:
        return self._items[index] if 0 <= index < len(self._items) else None

    def takeAt(self, index: int) -> QLayoutItem | None:
        return self._items.pop(index) if 0 <= index < len(self._items) else None

    def expandingDirections(self) -> Qt.Orientation:
        return Qt.Orientation.Horizontal

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return self._place(QRect(0, 0, width, 0), move=False)

    def setGeometry(self, rect: QRect) -> None:
        super().setGeometry(rect)
        self._place(rect, move=True)

    def sizeHint(self) -> QSize:
        sizes = [item.sizeHint() for item in self._items if not item.isEmpty()]
        wide = sum(size.width() for size in sizes) + self.spacing() * max(len(sizes) - 1, 0)
        return QSize(wide, max((size.height() for size in sizes), default=0)).grownBy(self.contentsMargins())

    def minimumSize(self) -> QSize:
        least = QSize(0, 0)
        for item in self._items:
            least = least if item.isEmpty() else least.expandedTo(item.minimumSize())
        return least.grownBy(self.contentsMargins())

    def _place(self, rect: QRect, *, move: bool) -> int:
        margins = self.contentsMargins()
        room = rect.marginsRemoved(margins)
        lines: list[list[tuple[QLayoutItem, QSize]]] = [[]]
        wide = 0
        for item in self._items:
            if item.isEmpty():
                continue
            most = QSize(max(room.width(), item.minimumSize().width()), item.sizeHint().height())
            size = item.sizeHint().boundedTo(most)
            if lines[-1] and wide + size.width() > room.width():
                lines.append([])
                wide = 0
            lines[-1].append((item, size))
            wide += size.width() + self.spacing()
        y = room.y()
        for line in lines:
            x, tall = room.x(), max((size.height() for _, size in line), default=0)
            if self._at_end:
                x += room.width() - sum(size.width() for _, size in line) - self.spacing() * (len(line) - 1)
            for item, size in line:
                if move:
                    place = QRect(QPoint(x, y + (tall - size.height()) // 2), size)
                    item.setGeometry(QStyle.visualRect(QApplication.layoutDirection(), room, place))
                x += size.width() + self.spacing()
            y += tall + self.spacing()
        return y - self.spacing() - rect.y() + margins.bottom()


def flow(*widgets: QWidget, at_end: bool = False) -> FlowLayout:
    made = FlowLayout(at_end=at_end)
    for widget in widgets:
        made.addWidget(widget)
    return made


def height_for_width(layout: QLayout, width: int) -> int:
    """Return a layout's height at that width, in pixels, whether or not it depends on the width."""
    return layout.totalHeightForWidth(width) if layout.hasHeightForWidth() else layout.totalSizeHint().height()


class ScrollPage(QScrollArea):
    """Page that scrolls vertically; horizontally only if the screen is narrower than its `ground`."""

    def __init__(self, name: str) -> None:
        """name: object name of the ground"""
        super().__init__(widgetResizable=True)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.ground = _Ground()
        self.ground.setObjectName(name)
        self.setWidget(self.ground)

    def minimumSizeHint(self) -> QSize:
        wide = self.ground.minimumSizeHint().width() + self.verticalScrollBar().sizeHint().width()
        return QSize(wide, super().minimumSizeHint().height())


class GivingWay(ScrollPage):
    """Page as high as its contents; scrolls if there is less room."""

    def __init__(self) -> None:
        super().__init__("")
        self.ground.setAutoFillBackground(False)  # transparent
        policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Maximum)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        layout = self.ground.layout()
        return height_for_width(layout, width) if layout is not None else 0

    def sizeHint(self) -> QSize:
        hint = self.ground.sizeHint()
        return QSize(hint.width(), self.heightForWidth(hint.width()))

    def minimumSizeHint(self) -> QSize:
        return QSize(super().minimumSizeHint().width(), 0)


class _Ground(QWidget):
    """Contents as wide as the area. A plain QWidget would be as tall as its labels at their narrowest."""

    def minimumSizeHint(self) -> QSize:
        """Return no minimum height if it depends on the width: the area then asks for it."""
        layout, least = self.layout(), super().minimumSizeHint()
        depends = layout is not None and layout.hasHeightForWidth()
        return QSize(least.width(), 0 if depends else least.height())

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest and (port := self.parentWidget()) is not None:
            port.parentWidget().updateGeometry()  # type: ignore[union-attr]  # the area that the port is of
        return super().event(event)


class RoomyDialog(QDialog):
    """Window no smaller than its contents need, as far as the screen allows."""

    least = QSize(0, 0)  # minimum pixels

    def event(self, event: QEvent) -> bool:
        concerned = event.type() in (QEvent.Type.LayoutRequest, QEvent.Type.Resize)  # other events may delete it
        done = super().event(event)
        if concerned and self.minimumWidth() < self.maximumWidth():
            keep_least(self, self.layout(), self.least)
        return done


def keep_least(window: QWidget, layout: QLayout | None, least: QSize) -> None:
    """Keep `window` at least as large as `least` and as `layout` needs, within the screen."""
    if layout is not None:
        needed = layout.totalMinimumSize()
        if layout.hasHeightForWidth():
            needed.setHeight(layout.totalMinimumHeightForWidth(max(window.width(), needed.width())))
        least = least.expandedTo(needed)
    window.setMinimumSize(least.boundedTo(room_on_screen()))


def room_on_screen() -> QSize:
    """Return the largest window size in pixels; its frame must also fit on the screen."""
    return QApplication.primaryScreen().availableSize() - QSize(16, 48)
