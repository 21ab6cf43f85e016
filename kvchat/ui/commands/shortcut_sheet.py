"""The sheet with every key, drawn from the table."""

from __future__ import annotations

from itertools import groupby

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QGridLayout, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from kvchat.ui.commands.shortcuts import SHORTCUTS, Shortcut, shown_keys


class ShortcutSheet(QDialog):
    """Two columns of groups. Esc, Enter and F1 close it."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Keyboard shortcuts")
        self.setAccessibleName("Keyboard shortcuts")
        title = QLabel("Keyboard shortcuts")
        title.setProperty("kind", "title")
        sides = QHBoxLayout()
        sides.setSpacing(44)
        columns = QVBoxLayout(), QVBoxLayout()
        with_keys = [shortcut for shortcut in SHORTCUTS if shortcut.keys]
        for group, entries in groupby(with_keys, lambda shortcut: shortcut.group):
            least = min(columns, key=lambda column: column.count())
            least.addLayout(_group(group, list(entries)))
        for column in columns:
            column.setSpacing(18)
            column.addStretch(1)
            sides.addLayout(column)
        close = QPushButton("Close")
        close.setAccessibleName("Close the shortcuts")
        close.setDefault(True)
        close.clicked.connect(self.close)
        around = QVBoxLayout(self)
        around.setContentsMargins(28, 24, 28, 20)
        around.setSpacing(16)
        around.addWidget(title)
        around.addLayout(sides)
        around.addWidget(close, 0, Qt.AlignmentFlag.AlignRight)


def _group(name: str, entries: list[Shortcut]) -> QGridLayout:
    grid = QGridLayout()
    grid.setHorizontalSpacing(26)
    grid.setVerticalSpacing(7)
    heading = QLabel(name)
    heading.setProperty("kind", "strong")
    grid.addWidget(heading, 0, 0, 1, 2)
    for row, shortcut in enumerate(entries, 1):
        keys = QLabel(shown_keys(shortcut))
        keys.setProperty("kind", "key")
        grid.addWidget(QLabel(shortcut.words), row, 0)
        grid.addWidget(keys, row, 1, Qt.AlignmentFlag.AlignRight)
    grid.setColumnStretch(0, 1)
    return grid
