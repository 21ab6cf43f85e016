"""Factories for plain widgets and layouts: label, button, field, row, column."""

from typing import Any, TypeVar

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont, QGuiApplication, QIcon
from PySide6.QtWidgets import (
    QAbstractButton,
    QBoxLayout,
    QHBoxLayout,
    QLabel,
    QLayout,
    QLineEdit,
    QPlainTextEdit,
    QProgressBar,
    QPushButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

STRETCH = "stretch"  # stretchable space in a row or column
_BOX_PADDING = 28  # pixels above and below the text of a box

# A widget or layout, alone or with stretch and alignment; pixels of space; STRETCH.
Part = QWidget | QLayout | tuple[QWidget | QLayout, int] | tuple[QWidget, int, Qt.AlignmentFlag] | int | str
Margins = int | tuple[int, int, int, int]

L = TypeVar("L", bound=QBoxLayout)
K = TypeVar("K", bound=QAbstractButton)
W = TypeVar("W", bound=QWidget)


def styled(widget: W, kind: str, tone: str = "") -> W:
    widget.setProperty("kind", kind)
    if tone:
        widget.setProperty("tone", tone)
    return widget


def is_mirrored() -> bool:
    """True if the UI language is written from right to left."""
    return QGuiApplication.layoutDirection() is Qt.LayoutDirection.RightToLeft


def leading_alignment() -> Qt.AlignmentFlag:
    """Return the side at which lines begin in the UI language, even if the text is in another language."""
    side = Qt.AlignmentFlag.AlignRight if is_mirrored() else Qt.AlignmentFlag.AlignLeft
    return Qt.AlignmentFlag.AlignAbsolute | side


def left_to_right(text: str) -> str:
    """Mark shortcut keys or a path as left-to-right, also inside right-to-left text."""
    return f"\u2066{text}\u2069" if is_mirrored() else text


def label(text: str = "", kind: str = "", *, wraps: bool = False, selectable: bool = False) -> QLabel:
    """Make a label that shows its text as is, never as HTML."""
    result = styled(QLabel(text), kind)
    result.setTextFormat(Qt.TextFormat.PlainText)
    result.setAlignment(leading_alignment() | Qt.AlignmentFlag.AlignVCenter)
    result.setWordWrap(wraps)
    if selectable:
        result.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return result


def button(text: str, on_click: Any = None, kind: str = "", *, name: str = "", tip: str = "") -> QPushButton:
    """Make a button. `on_click` is a callable or a signal; `name` is for screen readers (default: `text`)."""
    result = _button(QPushButton(text), on_click, kind, name or text, tip)
    result.setAutoDefault(False)  # Enter in a field must not press it
    return result


def tool_button(
    name: str, on_click: Any = None, kind: str = "", *, tip: str = "", icon: QIcon | None = None
) -> QToolButton:
    """Make an icon button. `name` is for screen readers, and the tooltip unless `tip` is given."""
    result = _button(QToolButton(), on_click, kind, name, tip or name)
    if icon is not None:
        result.setIcon(icon)
    return result


def line_edit(name: str, placeholder: str = "") -> QLineEdit:
    """Make a text field. `name` is for screen readers; the placeholder is also the tooltip."""
    result = QLineEdit(placeholderText=placeholder)
    result.setToolTip(placeholder)
    result.setAccessibleName(name)
    return result


def plain_text(name: str, font: QFont, text: str = "", *, lines: int = 0) -> QPlainTextEdit:
    """Make a read-only text box, `lines` lines high if given. `name` is for screen readers."""
    result = styled(QPlainTextEdit(text, readOnly=True), "log")
    result.setFont(font)
    result.setAccessibleName(name)
    if lines:
        result.setFixedHeight(_box_height(result, lines))
    return result


def text_editor(name: str, placeholder: str, lines: int, *, grows: bool = False) -> QPlainTextEdit:
    """Make an editor `lines` lines high, or at least that high if it `grows`. `name` is for screen readers."""
    result = styled(QPlainTextEdit(placeholderText=placeholder, tabChangesFocus=True), "log")
    result.setAccessibleName(name)
    (result.setMinimumHeight if grows else result.setFixedHeight)(_box_height(result, lines))
    return result


def progress_bar(name: str) -> QProgressBar:
    """Make a progress bar from 0 to 1,000 that shows no text. `name` is for screen readers."""
    result = QProgressBar(textVisible=False, maximum=1000)
    result.setAccessibleName(name)
    return result


def row(
    *parts: Part, on: QWidget | None = None, spacing: int | None = None, margins: Margins | None = None
) -> QHBoxLayout:
    """Put parts side by side; the layout belongs to the widget `on`, if given.

    Strings are stretches and numbers are gaps. `spacing` and `margins` are in pixels; None means Qt's defaults.
    """
    return _filled(QHBoxLayout(), parts, on, spacing, margins)


def column(
    *parts: Part, on: QWidget | None = None, spacing: int | None = None, margins: Margins | None = None
) -> QVBoxLayout:
    return _filled(QVBoxLayout(), parts, on, spacing, margins)


def show_text(target: QLabel, text: str) -> None:
    """Show a text, or hide its label if the text is empty."""
    target.setText(text)
    target.setVisible(bool(text))


def clear(layout: QLayout) -> None:
    """Delete all widgets of a layout and of the layouts in it."""
    while (item := layout.takeAt(0)) is not None:
        if (widget := item.widget()) is not None:
            widget.hide()
            widget.deleteLater()
        elif (inner := item.layout()) is not None:
            clear(inner)


def _button(widget: K, on_click: Any, kind: str, name: str, tip: str) -> K:
    styled(widget, kind).setAccessibleName(name)
    widget.setToolTip(tip)
    if on_click is not None:
        widget.clicked.connect(on_click)
    return widget


def _box_height(box: QPlainTextEdit, lines: int) -> int:
    return lines * box.fontMetrics().lineSpacing() + _BOX_PADDING


def _filled(layout: L, parts: tuple[Part, ...], on: QWidget | None, spacing: int | None, margins: Margins | None) -> L:
    if on is not None:
        on.setLayout(layout)
    if spacing is not None:
        layout.setSpacing(spacing)
    if margins is not None:
        layout.setContentsMargins(*((margins,) * 4 if isinstance(margins, int) else margins))
    for part in parts:
        match part:
            case str():
                layout.addStretch(1)
            case int():
                layout.addSpacing(part)
            case QWidget():
                layout.addWidget(part)
            case QLayout():
                layout.addLayout(part)
            case (QLayout() as inner, int() as stretch):
                layout.addLayout(inner, stretch)
            case (QWidget() as inner, int() as stretch, *alignment):
                layout.addWidget(inner, stretch, *alignment)
    return layout
