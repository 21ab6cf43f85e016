"""A quiet heading that opens and closes what stands below it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QPushButton, QSizePolicy, QVBoxLayout, QWidget


class Fold(QWidget):
    """Closed until it is clicked."""

    toggled = Signal()

    def __init__(self, heading: str, body: QWidget, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._heading = heading
        self.button = QPushButton()
        self.button.setProperty("kind", "quiet")
        self.button.setCursor(Qt.CursorShape.PointingHandCursor)
        self.button.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        self.button.clicked.connect(self._toggle)
        self._frame = QFrame()
        self._frame.setProperty("kind", "quote")
        self._frame.hide()
        inner = QVBoxLayout(self._frame)
        inner.setContentsMargins(14, 2, 0, 2)
        inner.addWidget(body)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(4)
        column.addWidget(self.button)
        column.addWidget(self._frame)
        self._write()

    @property
    def is_open(self) -> bool:
        """Whether the body is to be seen."""
        return not self._frame.isHidden()

    def set_heading(self, heading: str) -> None:
        """Say something else above the fold."""
        if heading != self._heading:
            self._heading = heading
            self._write()

    def _toggle(self) -> None:
        self._frame.setVisible(not self.is_open)
        self._write()
        self.toggled.emit()

    def _write(self) -> None:
        self.button.setText(f"{self._heading} {'▾' if self.is_open else '▸'}")
        self.button.setAccessibleName(f"{self._heading}, {'open' if self.is_open else 'folded'}")
