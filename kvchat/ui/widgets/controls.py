"""Small controls that Qt lacks or cannot draw in every theme and text size: switch, round bar, copy button, card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from PySide6.QtCore import QPoint, QRectF, QSize, Qt, QTimer
from PySide6.QtGui import QColor, QGuiApplication, QHideEvent, QPainter, QPainterPath, QPaintEvent, QPen, QShowEvent
from PySide6.QtWidgets import QCheckBox, QFrame, QPushButton, QSizePolicy, QWidget

from kvchat.ui.base.accessibility import announce
from kvchat.ui.base.building import button, column, label, styled
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.layouts import FlowLayout
from kvchat.words.language import _, sentences

HEIGHT = 14  # pixels of a round bar unless a subclass overrides it
_WIDTH, _HEIGHT, _GAP = 38, 22, 3  # pixels of a switch at 100 % text; gap between track and knob
_SAID_MS = 1500  # "Copied"
_SETTLES_MS = 300  # text shown only briefly is not announced


class Switch(QCheckBox):
    """Toggle switch at the end of the line, in the accent colour while on. Accessible as a check box."""

    def __init__(self, look: Look, name: str = "", description: str = "") -> None:
        super().__init__()
        self._look = look
        self.setAccessibleName(name)
        self.setAccessibleDescription(description)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        look.changed.connect(self.updateGeometry)

    def sizeHint(self) -> QSize:
        return QSize(self._look.px(_WIDTH) + 4, self._look.px(_HEIGHT) + 4)

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def hitButton(self, position: QPoint) -> bool:
        return self.rect().contains(position)

    def paintEvent(self, event: QPaintEvent) -> None:
        theme, track = self._look.theme, QRectF(self.rect()).adjusted(2, 2, -2, -2)
        side, round_ = track.height() - 2 * _GAP, track.height() / 2
        at_end = self.isChecked() != self.isRightToLeft()
        left = track.right() - side - _GAP if at_end else track.left() + _GAP
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setOpacity(1.0 if self.isEnabled() else 0.5)
            if self.hasFocus():
                painter.setPen(QPen(QColor(theme.accent), 1.4))
                painter.drawRoundedRect(track.adjusted(-1, -1, 1, 1), round_ + 1, round_ + 1)
            painter.setPen(Qt.PenStyle.NoPen if self.isChecked() else QPen(QColor(theme.muted), 1))
            painter.setBrush(QColor(theme.accent if self.isChecked() else theme.selected))
            painter.drawRoundedRect(track.adjusted(0.5, 0.5, -0.5, -0.5), round_, round_)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(theme.on_accent if self.isChecked() else theme.muted))
            painter.drawEllipse(QRectF(left, track.top() + _GAP, side, side))


class RoundBar(QWidget):
    """Bar with round ends. Subclasses paint it left to right; it is mirrored for right-to-left languages."""

    def __init__(self, look: Look, width: int = 200, height: int = HEIGHT) -> None:
        super().__init__()
        self._look, self._size = look, QSize(width, height)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        look.changed.connect(self.update)

    def sizeHint(self) -> QSize:
        return self._size

    def paintEvent(self, event: QPaintEvent) -> None:
        box, path = QRectF(self.rect()), QPainterPath()
        path.addRoundedRect(box, box.height() / 2, box.height() / 2)
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setClipPath(path)
            if self.isRightToLeft():
                painter.translate(box.width(), 0)
                painter.scale(-1, 1)
            self.paint_inside(painter, box)

    def paint_inside(self, painter: QPainter, box: QRectF) -> None:
        """Paint the bar's contents, clipped to its shape."""
        raise NotImplementedError


def mix(a: str, b: str, share: float) -> QColor:
    """Mix two colours, "#rrggbb": `share` of the first."""
    first, second = QColor(a), QColor(b)
    pairs = ((first.red(), second.red()), (first.green(), second.green()), (first.blue(), second.blue()))
    return QColor(*(round(x * share + y * (1 - share)) for x, y in pairs))


class CopyButton(QPushButton):
    def __init__(self, what: str, text: Callable[[], str]) -> None:
        super().__init__(_("Copy"))
        self.setAccessibleName(_("Copy {what}", what=what))
        self._text = text
        self._back = QTimer(self, singleShot=True, interval=_SAID_MS)
        self._back.timeout.connect(lambda: self.setText(_("Copy")))
        self.clicked.connect(self._copy)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._text())
        self.setText(_("Copied"))
        self._back.start()


class Card(QFrame):
    def __init__(self) -> None:
        super().__init__()
        self._announced = ""
        self._soon = QTimer(self, singleShot=True, interval=_SETTLES_MS)
        self._soon.timeout.connect(self._announce)
        styled(self, "card")
        self.title, self.detail, self.advice = said = [
            label(kind=kind, wraps=True, selectable=True) for kind in ("strong", "", "muted")
        ]
        for part in said:
            part.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
        self._button_row = QWidget()
        self._button_row.hide()
        self.buttons = FlowLayout(self._button_row)
        self.buttons.setContentsMargins(0, 6, 0, 0)
        column(*said, self._button_row, on=self, spacing=5, margins=(18, 14, 18, 14))

    def set_text(self, title: str, detail: str, advice: str) -> None:
        for part, words in ((self.title, title), (self.detail, detail), (self.advice, advice)):
            part.setText(words)
            part.setVisible(bool(words))
        self.setAccessibleName(sentences(title, detail, advice))
        self._soon.start()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._soon.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        if not event.spontaneous():
            self._announced = ""  # announce again when shown

    def _announce(self) -> None:
        if self.isVisible() and self.accessibleName() != self._announced:
            self._announced = self.accessibleName()
            announce(self, self._announced, urgent=self.property("tone") == "bad")

    def show_buttons(self, *wanted: QPushButton | Literal[False]) -> None:
        for offered in self._button_row.findChildren(QPushButton):
            offered.setVisible(offered in wanted)
        self._button_row.setVisible(any(wanted))

    def add_button(self, words: str, kind: str = "", on_click: Any = None) -> QPushButton:
        made = button(words, on_click, kind)
        self.buttons.addWidget(made)
        self._button_row.show()
        return made
