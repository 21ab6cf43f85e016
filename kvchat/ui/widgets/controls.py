"""Controls that Qt lacks or cannot draw in every theme and text size: switch, round bar, copy button, card."""

from collections.abc import Callable
from typing import Any, Literal

from PySide6.QtCore import QPoint, QRectF, QSize, Qt, QTimer
from PySide6.QtGui import QColor, QGuiApplication, QHideEvent, QPainter, QPainterPath, QPaintEvent, QPen, QShowEvent
from PySide6.QtWidgets import QCheckBox, QFrame, QPushButton, QSizePolicy, QWidget

from kvchat.text.language import _, join_sentences
from kvchat.ui.base.accessibility import announce
from kvchat.ui.base.building import button, column, label, show_text, styled
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.layouts import FlowLayout

BAR_HEIGHT = 14  # default height of a round bar in pixels
_SWITCH_WIDTH, _SWITCH_HEIGHT, _KNOB_GAP = 38, 22, 3  # pixels of a switch at 100 % text; gap between track and knob
_COPIED_MS = 1500  # duration of "Copied"
_SETTLE_MS = 300  # delay of an announcement: text shown only briefly is skipped


class Switch(QCheckBox):
    """Toggle switch, in the accent color while it is on. Screen readers describe it as a check box."""

    def __init__(self, look: Look, name: str = "", description: str = "") -> None:
        super().__init__()
        self._look = look
        self.setAccessibleName(name)
        self.setAccessibleDescription(description)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        look.changed.connect(self.updateGeometry)

    def sizeHint(self) -> QSize:
        return QSize(self._look.px(_SWITCH_WIDTH) + 4, self._look.px(_SWITCH_HEIGHT) + 4)

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()

    def hitButton(self, position: QPoint) -> bool:
        return self.rect().contains(position)

    def paintEvent(self, event: QPaintEvent) -> None:
        theme, track, checked = self._look.theme, QRectF(self.rect()).adjusted(2, 2, -2, -2), self.isChecked()
        side, radius = track.height() - 2 * _KNOB_GAP, track.height() / 2
        left = track.right() - side - _KNOB_GAP if checked != self.isRightToLeft() else track.left() + _KNOB_GAP
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setOpacity(1.0 if self.isEnabled() else 0.5)
            if self.hasFocus():
                painter.setPen(QPen(QColor(theme.accent), 1.4))
                painter.drawRoundedRect(track.adjusted(-1, -1, 1, 1), radius + 1, radius + 1)
            painter.setPen(Qt.PenStyle.NoPen if checked else QPen(QColor(theme.muted), 1))
            painter.setBrush(QColor(theme.accent if checked else theme.selected))
            painter.drawRoundedRect(track.adjusted(0.5, 0.5, -0.5, -0.5), radius, radius)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(theme.on_accent if checked else theme.muted))
            painter.drawEllipse(QRectF(left, track.top() + _KNOB_GAP, side, side))


class RoundBar(QWidget):
    """Bar with round ends. Subclasses paint its contents from left to right; right-to-left languages mirror them."""

    def __init__(self, look: Look, width: int = 200, height: int = BAR_HEIGHT) -> None:
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
        raise NotImplementedError


def mix_colours(first: str, second: str, weight: float) -> QColor:
    """Mix two colors of the form "#rrggbb". `weight` is the share of the first, from 0 to 1."""
    mixed = QColor(first), QColor(second)
    channels = QColor.red, QColor.green, QColor.blue
    return QColor(*(round(channel(mixed[0]) * weight + channel(mixed[1]) * (1 - weight)) for channel in channels))


class CopyButton(QPushButton):
    def __init__(self, content_name: str, text: Callable[[], str]) -> None:
        super().__init__(_("Copy"))
        self.setAccessibleName(_("Copy {what}", what=content_name))
        reset = QTimer(self, singleShot=True, interval=_COPIED_MS)
        reset.timeout.connect(lambda: self.setText(_("Copy")))
        self.clicked.connect(lambda: QGuiApplication.clipboard().setText(text()))
        self.clicked.connect(lambda: self.setText(_("Copied")))
        self.clicked.connect(reset.start)


class Card(QFrame):
    def __init__(self) -> None:
        super().__init__()
        self._announced = ""
        self._announcing = QTimer(self, singleShot=True, interval=_SETTLE_MS)
        self._announcing.timeout.connect(self._announce)
        styled(self, "card")
        texts = [label(kind=kind, wraps=True, selectable=True) for kind in ("strong", "", "muted")]
        self.title, self.detail, self.advice_label = texts
        for text in texts:
            text.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
        self._button_row = QWidget()
        self._button_row.hide()
        self._buttons = FlowLayout(self._button_row)
        self._buttons.setContentsMargins(0, 6, 0, 0)
        column(*texts, self._button_row, on=self, spacing=5, margins=(18, 14, 18, 14))

    def set_text(self, title: str, detail: str, advice: str) -> None:
        for line, text in ((self.title, title), (self.detail, detail), (self.advice_label, advice)):
            show_text(line, text)
        self.setAccessibleName(join_sentences(title, detail, advice))
        self._announcing.start()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._announcing.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        if not event.spontaneous():
            self._announced = ""  # announce again when shown

    def _announce(self) -> None:
        if self.isVisible() and self.accessibleName() != self._announced:
            self._announced = self.accessibleName()
            announce(self, self._announced, is_urgent=self.property("tone") == "bad")

    def show_buttons(self, *shown: QPushButton | Literal[False]) -> None:
        for child in self._button_row.findChildren(QPushButton):
            child.setVisible(child in shown)
        self._button_row.setVisible(any(shown))

    def add_button(self, text: str, kind: str = "", on_click: Any = None) -> QPushButton:
        result = button(text, on_click, kind)
        self._buttons.addWidget(result)
        self._button_row.show()
        return result
