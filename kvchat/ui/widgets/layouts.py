"""Widgets and layouts that adapt to their width: elided texts, rows that wrap, pages that scroll."""

import html
import re
from functools import reduce

from PySide6.QtCore import QEvent, QPoint, QRect, QSize, Qt
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QLabel, QLayout, QLayoutItem, QPushButton, QScrollArea, QSizePolicy, QStyle, QWidget

from kvchat.text.formatting import one_line
from kvchat.ui.base.building import leading_alignment, styled

_SEPARATORS = re.compile(r"[/\\._-]")
_LONG_RUN = re.compile(r"[^\s\u200b]{24}")
COLUMN_WIDTH = 760  # pixels at 100 % text: maximum width of the messages and the widgets aligned with them


def plain_tip(text: str) -> str:
    """Return a tooltip that shows `text` as is. Qt would render text that looks like HTML."""
    return f"<qt>{html.escape(text).replace(chr(10), '<br>')}</qt>" if text else ""


def allow_line_breaks(text: str) -> str:
    """Add zero-width spaces to a path or file name, so that a label can wrap it."""
    return _LONG_RUN.sub("\\g<0>\u200b", _SEPARATORS.sub("\\g<0>\u200b", text))


class ElidedLabel(QLabel):
    def __init__(self, kind: str = "") -> None:
        super().__init__()
        styled(self, kind).setTextFormat(Qt.TextFormat.PlainText)
        self.full_text = ""  # text before eliding
        self.setAlignment(leading_alignment() | Qt.AlignmentFlag.AlignVCenter)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)

    def set_text(self, text: str) -> None:
        if (text := one_line(text)) != self.full_text:
            self.full_text = text
            self.setAccessibleName(text)
            self._elide()
            self.updateGeometry()

    def minimumSizeHint(self) -> QSize:
        return QSize(24, super().minimumSizeHint().height())

    def sizeHint(self) -> QSize:
        return QSize(self.fontMetrics().horizontalAdvance(self.full_text) + 4, super().sizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._elide()

    def _elide(self) -> None:
        elided = self.fontMetrics().elidedText(self.full_text, Qt.TextElideMode.ElideRight, max(self.width(), 24))
        self.setText(elided)
        self.setToolTip(plain_tip(self.full_text) if elided != self.full_text else "")


class ElidedButton(QPushButton):
    mode = Qt.TextElideMode.ElideRight

    def __init__(self, kind: str, padding: int = 14) -> None:
        """`padding` is the sum of the left and right padding in the style sheet, in pixels."""
        super().__init__()
        styled(self, kind)
        self._padding = padding
        self._full_text = self._tail = self._tip = ""
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)

    def set_text(self, text: str, tail: str, tip: str = "") -> None:
        self._full_text, self._tail, self._tip = text, tail, tip
        self._elide()
        self.updateGeometry()

    def minimumSizeHint(self) -> QSize:
        return QSize(60, super().sizeHint().height())

    def sizeHint(self) -> QSize:
        width = self.fontMetrics().horizontalAdvance(f"{self._full_text} {self._tail}")
        return QSize(width + 18, super().sizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._elide()

    def _elide(self) -> None:
        metrics = self.fontMetrics()
        room = max(self.width() - self._padding - metrics.horizontalAdvance(f" {self._tail}"), 24)
        elided = metrics.elidedText(self._full_text, self.mode, room)
        self.setText(f"{elided} {self._tail}".replace("&", "&&"))
        self.setToolTip(plain_tip(self._tip or (self._full_text if elided != self._full_text else "")))


class FlowLayout(QLayout):
    """Row that wraps, aligned to its start or, if `at_end`, to its end. Hidden widgets take no space."""

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
        width = sum(size.width() for size in sizes) + self.spacing() * max(len(sizes) - 1, 0)
        return QSize(width, max((size.height() for size in sizes), default=0)).grownBy(self.contentsMargins())

    def minimumSize(self) -> QSize:
        sizes = (item.minimumSize() for item in self._items if not item.isEmpty())
        return reduce(QSize.expandedTo, sizes, QSize(0, 0)).grownBy(self.contentsMargins())

    def _place(self, rect: QRect, *, move: bool) -> int:
        area = rect.marginsRemoved(self.contentsMargins())
        lines: list[list[tuple[QLayoutItem, QSize]]] = [[]]
        line_width = 0
        for item in self._items:
            if item.isEmpty():
                continue
            limit = QSize(max(area.width(), item.minimumSize().width()), item.sizeHint().height())
            size = item.sizeHint().boundedTo(limit)
            if lines[-1] and line_width + size.width() > area.width():
                lines.append([])
                line_width = 0
            lines[-1].append((item, size))
            line_width += size.width() + self.spacing()
        y = area.y()
        for line in lines:
            x, height = area.x(), max((size.height() for _, size in line), default=0)
            if self._at_end:
                x += area.width() - sum(size.width() for _, size in line) - self.spacing() * (len(line) - 1)
            for item, size in line:
                if move:
                    box = QRect(QPoint(x, y + (height - size.height()) // 2), size)
                    item.setGeometry(QStyle.visualRect(QGuiApplication.layoutDirection(), area, box))
                x += size.width() + self.spacing()
            y += height + self.spacing()
        return y - self.spacing() - rect.y() + self.contentsMargins().bottom()


def flow(*widgets: QWidget, at_end: bool = False) -> FlowLayout:
    layout = FlowLayout(at_end=at_end)
    for widget in widgets:
        layout.addWidget(widget)
    return layout


def height_for_width(layout: QLayout, width: int) -> int:
    return layout.totalHeightForWidth(width) if layout.hasHeightForWidth() else layout.totalSizeHint().height()


class ScrollPage(QScrollArea):
    """Page that scrolls vertically. It scrolls horizontally only if the screen is too narrow for its `content`."""

    def __init__(self, name: str) -> None:
        super().__init__(widgetResizable=True)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.content = _PageContent()
        self.content.setObjectName(name)
        self.setWidget(self.content)

    def minimumSizeHint(self) -> QSize:
        width = self.content.minimumSizeHint().width() + self.verticalScrollBar().sizeHint().width()
        return QSize(width, super().minimumSizeHint().height())

    def content_changed(self) -> None:
        self.updateGeometry()


class ShrinkingPage(ScrollPage):
    """Page as high as its content. It scrolls if there is less space."""

    def __init__(self) -> None:
        super().__init__("")
        self.content.setAutoFillBackground(False)  # transparent
        policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Maximum)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        layout = self.content.layout()
        return height_for_width(layout, width) if layout is not None else 0

    def sizeHint(self) -> QSize:
        """Return the height at the minimum width: a layout uses heightForWidth, but never exceeds this."""
        return QSize(self.content.sizeHint().width(), self.heightForWidth(self.minimumSizeHint().width()))

    def minimumSizeHint(self) -> QSize:
        return QSize(super().minimumSizeHint().width(), 0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._hide_needless_bar()
        super().resizeEvent(event)

    def content_changed(self) -> None:
        self._hide_needless_bar()
        super().content_changed()

    def _hide_needless_bar(self) -> None:
        """Hide the scroll bar if all fits without it. Qt keeps a bar as long as the content does not fit beside it."""
        fits, policy = self.heightForWidth(self.width()) <= self.height(), Qt.ScrollBarPolicy
        self.setVerticalScrollBarPolicy(policy.ScrollBarAlwaysOff if fits else policy.ScrollBarAsNeeded)


class _PageContent(QWidget):
    """Content of a page, which may be as low as its text allows at the current width.

    A plain QWidget would never be lower than its text needs at the minimum width.
    """

    def minimumSizeHint(self) -> QSize:
        hint = super().minimumSizeHint()
        if (layout := self.layout()) is not None and layout.hasHeightForWidth():
            hint.setHeight(0)  # the scroll area then asks for the height
        return hint

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest and (viewport := self.parentWidget()) is not None:
            viewport.parentWidget().content_changed()  # type: ignore[union-attr]  # the scroll area
        return super().event(event)


def max_window_size() -> QSize:
    """Return the largest size of a window, in pixels, with which its frame still fits on the screen."""
    return QGuiApplication.primaryScreen().availableSize() - QSize(16, 48)
