"""A field with a button that empties it. Qt's own button stays small beside large letters, and dark in the dark."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLineEdit

from kvchat.ui.base.building import tool_button
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look

_ICON, _AROUND = 12, 10  # pixels at 100 % text: the cross, and what the button has around it


class ClearableField(QLineEdit):
    """The button is there as long as there is anything to empty."""

    def __init__(self, look: Look, name: str, placeholder: str) -> None:
        """`name` is what a screen reader says."""
        super().__init__(placeholderText=placeholder)
        self._look = look
        self.setAccessibleName(name)
        self.empty = tool_button("Empty the field", self._empty, "quiet")
        self.empty.setParent(self)
        self.empty.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # from the keyboard there are shorter ways
        self.empty.setCursor(Qt.CursorShape.ArrowCursor)
        self.empty.hide()
        self.textChanged.connect(lambda text: self.empty.setVisible(bool(text)))
        look.changed.connect(self._restyle)
        self._restyle()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """The button stays at the right edge."""
        super().resizeEvent(event)
        self._place()

    def _empty(self) -> None:
        self.clear()
        self.setFocus()

    def _restyle(self) -> None:
        self.empty.setIcon(icon("close", self._look.theme.muted))
        self.empty.setIconSize(QSize(1, 1) * self._look.px(_ICON))
        self.empty.setFixedSize(QSize(1, 1) * self._look.px(_ICON + _AROUND))
        self.setTextMargins(0, 0, self.empty.width(), 0)
        self._place()

    def _place(self) -> None:
        side = self.empty.width()
        self.empty.move(self.width() - side - 3, (self.height() - side) // 2)
