"""A quiet heading that opens and closes what stands below it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QPushButton, QSizePolicy, QWidget

_LEFT, _ABOVE, _BELOW = 16, 4, 4  # pixels around the body


class Fold(QWidget):
    """Closed until it is clicked."""

    toggled = Signal()

    def __init__(self, heading: str, body: QWidget, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._heading = heading
        self._body = body
        self.button = QPushButton(self)
        self.button.setProperty("kind", "quiet")
        self.button.setCursor(Qt.CursorShape.PointingHandCursor)
        self.button.clicked.connect(self._toggle)
        self._frame = QFrame(self)
        self._frame.setProperty("kind", "quote")
        self._frame.hide()
        body.setParent(self._frame)
        policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
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

    def hasHeightForWidth(self) -> bool:
        """The body is taller where it is narrower."""
        return True

    def heightForWidth(self, width: int) -> int:
        """The heading, and the body if it is open."""
        heading = self.button.sizeHint().height()
        return heading + (_ABOVE + self._body.heightForWidth(width - _LEFT) + _BELOW if self.is_open else 0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Put the parts in their places."""
        width, heading = self.width(), self.button.sizeHint().height()
        self.button.setGeometry(0, 0, min(self.button.sizeHint().width(), width), heading)
        height = max(self.height() - heading - _ABOVE, 0)
        self._frame.setGeometry(0, heading + _ABOVE, width, height)
        self._body.setGeometry(_LEFT, 0, width - _LEFT, max(height - _BELOW, 0))

    def _toggle(self) -> None:
        self._frame.setVisible(not self.is_open)
        self._write()
        self.toggled.emit()

    def _write(self) -> None:
        self.button.setText(f"{self._heading} {'▾' if self.is_open else '▸'}")
        self.button.setAccessibleName(f"{self._heading}, {'open' if self.is_open else 'folded'}")
        self.button.resize(self.button.sizeHint())
