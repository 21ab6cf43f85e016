"""What a scroll area scrolls: exactly as tall as its contents are at their width."""

from __future__ import annotations

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QWidget


class ScrollGround(QWidget):
    """A page for a QScrollArea that grows to the area's width.

    A plain QWidget would be as tall as its wrapped labels at their narrowest, and leave a void below them.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)

    def minimumSizeHint(self) -> QSize:
        """No least height where the height depends on the width: then the area asks for it itself."""
        layout = self.layout()
        depends = layout is not None and layout.hasHeightForWidth()
        return QSize(0, 0 if depends else super().minimumSizeHint().height())
