"""A QR code, dark on light in every theme, because not every camera reads an inverted one."""

import segno
from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from kvchat.text.language import _
from kvchat.ui.base.theme import Look

_QUIET_ZONE = 4  # modules of light border, as ISO 18004 requires
_MODULE = 5  # pixels of a module at 100 % text


class QrCode(QWidget):
    """Shows a link; screen readers read it out."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._rows: tuple[bytearray, ...] = ()
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(_("QR code"))
        look.changed.connect(self.updateGeometry)

    @property
    def has_code(self) -> bool:
        return bool(self._rows)

    def show_text(self, text: str) -> None:
        """Show the code of a text, or nothing if it is empty."""
        self._rows = segno.make(text, micro=False).matrix if text else ()
        self.setAccessibleDescription(text)
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        side = self._look.px(_MODULE) * (len(self._rows) + 2 * _QUIET_ZONE)
        return QSize(side, side)

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def paintEvent(self, event: QPaintEvent) -> None:
        module = self.width() / (len(self._rows) + 2 * _QUIET_ZONE)
        with QPainter(self) as painter:
            painter.fillRect(self.rect(), QColor(Qt.GlobalColor.white))
            for y, row in enumerate(self._rows):
                for x, is_dark in enumerate(row):
                    if is_dark:
                        place = QRectF((x + _QUIET_ZONE) * module, (y + _QUIET_ZONE) * module, module, module)
                        painter.fillRect(place, QColor(Qt.GlobalColor.black))
