"""A switch for a setting that is either on or off. Assistive technology sees a check box."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QCheckBox, QSizePolicy

from kvchat.ui.base.theme import Look

_WIDTH, _HEIGHT, _GAP = 38, 22, 3  # pixels at 100 % text; the gap is between the track and the knob


class Switch(QCheckBox):
    """A track with a knob: at the end of the line and in the accent colour while on."""

    def __init__(self, look: Look, name: str = "", description: str = "") -> None:
        """`name` and `description` are what a screen reader says."""
        super().__init__()
        self._look = look
        self.setAccessibleName(name)
        self.setAccessibleDescription(description)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        look.changed.connect(self.updateGeometry)

    def sizeHint(self) -> QSize:
        """As large as the text's size asks for, with room for the frame of the keyboard's focus."""
        return QSize(self._look.px(_WIDTH) + 4, self._look.px(_HEIGHT) + 4)

    def minimumSizeHint(self) -> QSize:
        """Always the same."""
        return self.sizeHint()

    def hitButton(self, position: QPoint) -> bool:
        """Accept a click anywhere: the style would look for the square of a check box."""
        return self.rect().contains(position)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Draw the track, the knob and the focus."""
        theme, track = self._look.theme, QRectF(self.rect()).adjusted(2, 2, -2, -2)
        side, gap = track.height() - 2 * _GAP, _GAP
        at_end = self.isChecked() != self.isRightToLeft()
        left = track.right() - side - gap if at_end else track.left() + gap
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setOpacity(1.0 if self.isEnabled() else 0.5)
            if self.hasFocus():
                painter.setPen(QPen(QColor(theme.accent), 1.4))
                painter.drawRoundedRect(track.adjusted(-1, -1, 1, 1), track.height() / 2 + 1, track.height() / 2 + 1)
            painter.setPen(Qt.PenStyle.NoPen if self.isChecked() else QPen(QColor(theme.muted), 1))
            painter.setBrush(QColor(theme.accent if self.isChecked() else theme.selected))
            painter.drawRoundedRect(track.adjusted(0.5, 0.5, -0.5, -0.5), track.height() / 2, track.height() / 2)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(theme.on_accent if self.isChecked() else theme.muted))
            painter.drawEllipse(QRectF(left, track.top() + gap, side, side))
