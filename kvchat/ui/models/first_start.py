"""No model yet: pick a file, or fetch the starter model; and an engine for a card that would go unused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QFileDialog, QLabel, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from kvchat.errors import KvchatError
from kvchat.ui.base.building import STRETCH, button, column, label, progress_bar, row
from kvchat.ui.base.file_dialog import file_dialog
from kvchat.ui.base.icons import app_icon
from kvchat.ui.widgets.card import Card
from kvchat.ui.widgets.engine_offer import EngineOffer
from kvchat.ui.widgets.layouts import ScrollPage
from kvchat.words.language import N_, _
from kvchat.words.wording import size

STARTER = N_("Fetch the starter model (98 MB)")
_LETTERS = 66  # wide


class FirstStart(QWidget):
    """The page that leads to a model. It does no work itself: it says what was asked for."""

    pick_requested = Signal(object)  # Path of a GGUF file
    starter_requested = Signal()
    cancel_requested = Signal()

    def __init__(self, offer: EngineOffer) -> None:
        """`offer`: an engine for the graphics card; on show where a card would go unused."""
        super().__init__()
        self.offer = offer
        self.setObjectName("firstStart")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.starter = _wide_button(_(STARTER), self.fetch_starter, "primary")
        self.models = _wide_button(_("Find models on this computer, or get another…"))
        self.pick = _wide_button(_("Choose a model file…"), self.open_file_dialog)
        self.back = _wide_button(_("Back"), kind="flat")
        self._can_go_back = False
        self.back.hide()
        self.error = Card()
        for widget in (self.error, self.error.title):
            widget.setProperty("tone", "bad")
        self.error.hide()
        area = ScrollPage("page")
        row(STRETCH, (self._build_column(), 1000), STRETCH, on=area.ground)
        column(area, on=self, margins=0)

    def show_progress(self, done: int, total: int) -> None:
        """The fetch goes on: bytes so far, bytes in all (0: not known)."""
        self._show_fetching(True)
        self.bar.setRange(0, 1000 if total else 0)
        self.bar.setValue(int(1000 * done / total) if total else 0)
        self.amount.setText(
            _("{done} of {total}", done=size(done), total=size(total)) if total else _("{done} so far", done=size(done))
        )

    @property
    def is_fetching(self) -> bool:
        """Whether the starter model is on its way."""
        return not self._progress.isHidden()

    def show_fetched(self) -> None:
        """The starter model is here: nothing is on its way any more."""
        self._show_fetching(False)

    def show_error(self, error: KvchatError) -> None:
        """It did not work."""
        self._show_fetching(False)
        self.error.say(error.title, error.detail, error.advice)
        self.error.show()

    def show_choices(self, can_go_back: bool) -> None:
        """Back to the beginning, with nothing running and nothing wrong."""
        self._can_go_back = can_go_back
        self._show_fetching(False)
        self.error.hide()
        self.offer.look()

    def open_file_dialog(self) -> None:
        """Let the user pick a GGUF file; the choice comes as `pick_requested`."""
        open_gguf_dialog(self, self.pick_requested.emit)

    def fetch_starter(self) -> None:
        """Ask for the starter model."""
        self.show_progress(0, 0)
        self.amount.setText(_("Asking for it…"))
        self.starter_requested.emit()

    def _cancel(self) -> None:
        self._show_fetching(False)
        self.cancel_requested.emit()

    def _show_fetching(self, fetching: bool) -> None:
        self._progress.setVisible(fetching)
        for choice in (self.starter, self.models, self.pick):
            choice.setVisible(not fetching)
        self.back.setVisible(self._can_go_back and not fetching)
        if fetching:
            self.error.hide()

    def _build_column(self) -> QVBoxLayout:
        box = QWidget()
        box.setMaximumWidth(self.fontMetrics().averageCharWidth() * _LETTERS)
        choices = self.starter, self.models, self.pick, self._build_progress(), self.error, self.offer, self.back
        column(*_greeting(), 8, *choices, on=box, spacing=12, margins=24)
        return column(STRETCH, STRETCH, box, STRETCH, STRETCH, STRETCH)

    def _build_progress(self) -> QWidget:
        self._progress = QWidget()
        self.bar = progress_bar(_("Fetching the starter model"))
        self.amount = label(kind="muted")
        self.cancel = button(_("Cancel"), self._cancel, name=_("Cancel fetching"))
        column(self.bar, row((self.amount, 1), self.cancel), on=self._progress, spacing=10, margins=(0, 4, 0, 0))
        self._progress.hide()
        return self._progress


def open_gguf_dialog(parent: QWidget, on_pick: Callable[[Path], object]) -> None:
    """Let the user pick a GGUF file; returns at once."""
    one = QFileDialog.FileMode.ExistingFile
    dialog = file_dialog(parent, _("Choose a model file"), one, _("Models (*.gguf);;All files (*)"))
    dialog.fileSelected.connect(lambda name: on_pick(Path(name)))
    dialog.open()


def _greeting() -> tuple[QLabel, QLabel, QLabel]:
    logo = QLabel()
    logo.setPixmap(app_icon().pixmap(QSize(64, 64)))
    title = label(_("Choose a model to talk to"), "hero")
    words = _(
        "Everything stays on this computer. kvchat keeps what the model worked out about each "
        "chat, so that it answers at once when you come back."
    )
    return logo, title, label(words, "muted", wraps=True)


def _wide_button(words: str, on_click: Any = None, kind: str = "") -> QPushButton:
    made = button(words, on_click, kind)
    made.setMinimumHeight(38)
    made.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
    return made
