"""The round button that leads back to the newest message."""

from __future__ import annotations

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QPushButton, QWidget

from kvchat.ui.base.icons import icon

_SIZE, _FROM_BELOW = 32, 14  # pixels
JUMP_ROOM = _SIZE + 2 * _FROM_BELOW  # what it takes of a page's lower end


class JumpButton(QPushButton):
    """Stands in the middle of a page's lower edge while the reader is elsewhere."""

    def __init__(self, page: QWidget, colour: str) -> None:
        super().__init__(page)
        self._page = page
        self.setProperty("kind", "jump")
        self.setFixedSize(_SIZE, _SIZE)
        self.setIconSize(QSize(18, 18))
        self.setAccessibleName("Go to the newest message")
        self.set_colour(colour)
        self.hide()

    def set_colour(self, colour: str) -> None:
        """The theme changed."""
        self.setIcon(icon("arrow-down", colour))

    def place(self) -> None:
        """The page has another size."""
        page = self._page
        self.move((page.width() - _SIZE) // 2, page.height() - _SIZE - _FROM_BELOW)
