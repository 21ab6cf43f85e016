"""What nearly every widget is built with: a label, a button, a row, a column."""

from __future__ import annotations

from typing import Any, TypeVar

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QLabel, QLayout, QPushButton, QVBoxLayout, QWidget

STRETCH = "stretch"  # room that grows, as a part of a row or a column

# A widget or layout, alone or with its stretch and alignment; pixels of room; STRETCH.
Part = QWidget | QLayout | tuple[QWidget | QLayout, int] | tuple[QWidget, int, Qt.AlignmentFlag] | int | str
Margins = int | tuple[int, int, int, int]

B = TypeVar("B", bound=QBoxLayout)


def label(words: str = "", kind: str = "", *, wraps: bool = False) -> QLabel:
    """Words in a look of the style sheet's, as they are: what stands in them is never read as HTML."""
    made = QLabel(words)
    made.setTextFormat(Qt.TextFormat.PlainText)
    made.setWordWrap(wraps)
    if kind:
        made.setProperty("kind", kind)
    return made


def button(words: str, on_click: Any = None, kind: str = "", *, name: str = "", tip: str = "") -> QPushButton:
    """A button; `on_click` is a callable or a signal, `name` what a screen reader says where the words do not do."""
    made = QPushButton(words)
    made.setAccessibleName(name or words)
    made.setToolTip(tip)
    if kind:
        made.setProperty("kind", kind)
    if on_click is not None:
        made.clicked.connect(on_click)
    return made


def row(
    *parts: Part, on: QWidget | None = None, spacing: int | None = None, margins: Margins | None = None
) -> QHBoxLayout:
    """Parts beside each other, as the layout of `on` if it is given; spacing and margins in pixels, else Qt's own."""
    return _filled(QHBoxLayout(), parts, on, spacing, margins)


def column(
    *parts: Part, on: QWidget | None = None, spacing: int | None = None, margins: Margins | None = None
) -> QVBoxLayout:
    """Parts below each other; see `row`."""
    return _filled(QVBoxLayout(), parts, on, spacing, margins)


def _filled(layout: B, parts: tuple[Part, ...], on: QWidget | None, spacing: int | None, margins: Margins | None) -> B:
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
