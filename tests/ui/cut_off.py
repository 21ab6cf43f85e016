"""Detection of cut-off text, and of controls that extend beyond their parent."""

from collections.abc import Iterator

from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractScrollArea,
    QComboBox,
    QLabel,
    QLineEdit,
    QMenu,
    QScrollBar,
    QStyle,
    QStyleOptionComboBox,
    QTabBar,
    QToolButton,
    QWidget,
)

from kvchat.ui.widgets.layouts import ElidedButton, ElidedLabel

_SLACK = 2  # pixels by which figures for one text differ


def cut_off(window: QWidget) -> Iterator[str]:
    """Yield each text in a window, or part of one, that lacks room, with its parent's type and the problem."""
    window.ensurePolished()
    for widget in window.findChildren(QWidget):
        if widget.isVisible() and not isinstance(widget, QMenu) and widget.window() is window.window():
            words = _words(widget)
            why = (_lacking(widget) or _outside(widget, window)) if words else ""
            if why:
                yield f"{type(widget.parent()).__name__}: {words[:60]!r} {why}"


def _words(widget: QWidget) -> str:
    match widget:
        case QLabel() | QAbstractButton():
            return widget.text()
        case QComboBox():
            return widget.currentText()
        case QLineEdit():
            return widget.placeholderText() if not widget.text() else ""
        case QTabBar():
            return " | ".join(widget.tabText(at) for at in range(widget.count()))
        case _:
            return ""


def _lacking(widget: QWidget) -> str:
    """Describe how the widget's text is cut off; empty if it is not."""
    match widget:
        case ElidedLabel() if widget.text() == widget.full_text:
            return ""
        case ElidedLabel() | ElidedButton():
            return "" if "…" not in widget.text() or widget.toolTip() else "has no tooltip"
        case QLabel():
            return _of_label(widget)
        case QToolButton() if widget.toolButtonStyle() is Qt.ToolButtonStyle.ToolButtonIconOnly:
            return ""
        case QAbstractButton():
            needed = widget.minimumSizeHint().width()
            return f"is {widget.width()} wide and needs {needed}" if widget.width() < needed else ""
        case QComboBox():
            option = QStyleOptionComboBox()
            widget.initStyleOption(option)
            part = QStyle.SubControl.SC_ComboBoxEditField
            room = widget.style().subControlRect(QStyle.ComplexControl.CC_ComboBox, option, part, widget).width()
            return _room(widget, widget.currentText(), room) if not widget.toolTip() else ""
        case QLineEdit() if widget.placeholderText() not in widget.toolTip():
            margins = widget.textMargins().left() + widget.textMargins().right()
            return _room(widget, widget.placeholderText(), widget.contentsRect().width() - margins - 2 * _SLACK)
        case QTabBar():
            rooms = (_room(widget, widget.tabText(at), widget.tabRect(at).width()) for at in range(widget.count()))
            return next(filter(None, rooms), "") or ("" if widget.sizeHint().width() <= widget.width() else "scrolls")
        case _:
            return ""


def _of_label(label: QLabel) -> str:
    room, metrics, text = label.contentsRect(), label.fontMetrics(), label.text()
    if text.startswith("<"):  # rich text
        return f"needs {label.sizeHint()}" if not label.wordWrap() and room.width() < label.sizeHint().width() else ""
    if label.wordWrap():
        wrapped = metrics.boundingRect(QRect(0, 0, room.width(), 9_999), Qt.TextFlag.TextWordWrap, text)
        if wrapped.width() > room.width() + _SLACK:
            return f"has {room.width()} and its longest word needs {wrapped.width()}"
        if label.height() < label.heightForWidth(label.width()):
            return f"is {label.height()} high and needs {label.heightForWidth(label.width())}"
    if label.height() < metrics.height() - 1:
        return f"is {label.height()} high"
    return "" if label.wordWrap() else _room(label, text, room.width())


def _room(widget: QWidget, text: str, room: int) -> str:
    needed = max(map(widget.fontMetrics().horizontalAdvance, text.replace("&", "").split("\n")))
    return f"has {room} and needs {needed}" if needed > room + _SLACK else ""


def _outside(widget: QWidget, window: QWidget) -> str:
    """Describe how far the widget extends beyond its parents where scrolling does not help; empty if it does not."""
    wide = high = True  # still to be looked at
    around = widget.parentWidget()
    while around is not None and widget is not window and (wide or high):
        at, area = widget.mapTo(around, QPoint()), around.parentWidget()
        if isinstance(area, QAbstractScrollArea):
            wide = wide and not _scrolls(area.horizontalScrollBar(), area.horizontalScrollBarPolicy())
            high = high and not _scrolls(area.verticalScrollBar(), area.verticalScrollBarPolicy())
        aside = max(-at.x(), at.x() + widget.width() - around.width()) if wide else 0
        above = max(-at.y(), at.y() + widget.height() - around.height()) if high else 0
        if max(aside, above) > _SLACK:
            return f"sticks out of {type(around).__name__} by {aside}, {above}"
        if around is window:
            return ""
        around = around.parentWidget()
    return ""


def _scrolls(bar: QScrollBar, policy: Qt.ScrollBarPolicy) -> bool:
    return bar.maximum() > 0 and policy is not Qt.ScrollBarPolicy.ScrollBarAlwaysOff
