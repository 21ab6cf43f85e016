"""A card: what is going on or failed, and what can be done about it."""

from __future__ import annotations

from typing import Any, Literal

from PySide6.QtCore import QTimer
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QPushButton, QSizePolicy, QWidget

from kvchat.ui.base.building import button, column, label, styled
from kvchat.ui.base.speaking import announce
from kvchat.ui.widgets.layouts import FlowLayout
from kvchat.words.language import sentences

_SETTLES_MS = 300  # what is shown for a moment only is not announced


class Card(QFrame):
    """Title, detail, advice, and a row of buttons."""

    def __init__(self) -> None:
        super().__init__()
        self._announced = ""
        self._soon = QTimer(self, singleShot=True, interval=_SETTLES_MS)
        self._soon.timeout.connect(self._announce)
        styled(self, "card")
        self.title, self.detail, self.advice = said = [
            label(kind=one, wraps=True, selectable=True) for one in ("strong", "", "muted")
        ]
        for one in said:
            one.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
        self._button_row = QWidget()
        self._button_row.hide()
        self.buttons = FlowLayout(self._button_row)
        self.buttons.setContentsMargins(0, 6, 0, 0)
        column(*said, self._button_row, on=self, spacing=5, margins=(18, 14, 18, 14))

    def say(self, title: str, detail: str, advice: str) -> None:
        for one, words in ((self.title, title), (self.detail, detail), (self.advice, advice)):
            one.setText(words)
            one.setVisible(bool(words))
        self.setAccessibleName(sentences(title, detail, advice))
        self._soon.start()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._soon.start()

    def hideEvent(self, event: QHideEvent) -> None:
        """Shown again, it is news again."""
        super().hideEvent(event)
        if not event.spontaneous():
            self._announced = ""

    def _announce(self) -> None:
        if self.isVisible() and self.accessibleName() != self._announced:
            self._announced = self.accessibleName()
            announce(self, self._announced, urgent=self.property("tone") == "bad")

    def offer(self, *wanted: QPushButton | Literal[False]) -> None:
        for place in range(self.buttons.count()):
            item = self.buttons.itemAt(place)
            if item is not None and (one := item.widget()) is not None:
                one.setVisible(one in wanted)
        self._button_row.setVisible(any(wanted))

    def add_button(self, words: str, kind: str = "", on_click: Any = None) -> QPushButton:
        made = button(words, on_click, kind)
        self.buttons.addWidget(made)
        self._button_row.show()
        return made
