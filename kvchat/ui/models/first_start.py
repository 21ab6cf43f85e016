"""The first run: what was seen of this computer, a model to choose, an engine for a card that would go unused.

Nothing of it has to be done, and all of it can be done later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QCheckBox, QFileDialog, QLabel, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from kvchat.errors import KvchatError
from kvchat.library.memory.verdict import Verdict
from kvchat.library.model_library import JudgedModel
from kvchat.ui.base.building import STRETCH, button, column, label, progress_bar, row
from kvchat.ui.base.icons import app_icon
from kvchat.ui.base.theme import restyle
from kvchat.ui.dialogs.confirm import file_dialog
from kvchat.ui.dialogs.engine_offer import EngineOffer, Start
from kvchat.ui.dialogs.metered import ask_if_metered
from kvchat.ui.models.model_choice import found_row
from kvchat.ui.widgets.controls import Card
from kvchat.ui.widgets.layouts import ElidedButton, ScrollPage
from kvchat.words.language import _, beside
from kvchat.words.wording import size

STARTER_SIZE = 98_000_000  # bytes, of the model
_MOST = 3  # models of those that are here already
_LETTERS = 66  # wide


class FirstStart(QWidget):
    """The page that leads to a model. It does no work itself: it says what was asked for."""

    pick_requested = Signal(object)  # Path of a GGUF file
    starter_requested = Signal()
    cancel_requested = Signal()
    login_requested = Signal(bool)  # starts at login from now on

    def __init__(self, offer: EngineOffer, start: Start) -> None:
        """`offer`: an engine for the graphics card; on show where a card would go unused. `start` begins what waits."""
        super().__init__()
        self.offer, self._start = offer, start
        self.machine, self.saving = label(kind="small", wraps=True), label(kind="small", wraps=True)
        self.found: list[QPushButton] = []  # models that are here already
        self.login = QCheckBox(_("Start kvchat at login, in the tray"))
        self.login.clicked.connect(self.login_requested)
        self._starter_is_here = False
        self.setObjectName("firstStart")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.starter = _wide_button(starter_words(here=False), self.fetch_starter, "primary")
        self.models = _wide_button(_("Find or get another model…"))
        self.pick = _wide_button(_("Choose a model file…"), self.open_file_dialog)
        self.back = _wide_button(_("Not now"), kind="flat")
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
        return not self._progress.isHidden()

    def show_fetched(self) -> None:
        self._show_fetching(False)

    def show_error(self, error: KvchatError) -> None:
        self._show_fetching(False)
        self.error.say(error.title, error.detail, error.advice)
        self.error.show()

    def show_starter(self, *, is_here: bool) -> None:
        self._starter_is_here = is_here
        self.starter.setText(starter_words(here=is_here))
        self.starter.setAccessibleName(self.starter.text())

    def show_choices(self) -> None:
        self._show_fetching(False)
        self.error.hide()
        self.offer.look()

    def show_machine(self, seen: str, saving: str, *, at_login: bool | None) -> None:
        """What was seen of this computer, what saving costs, and whether kvchat starts at login; None: it cannot."""
        for line, words in ((self.machine, seen), (self.saving, saving)):
            line.setText(words)
        self.login.setVisible(at_login is not None)
        self.login.setChecked(bool(at_login))

    def show_found(self, found: Sequence[JudgedModel]) -> None:
        """The models on this computer that would do best: those that fit, the largest first."""
        usable = [one for one in found if one.judgement and one.judgement.verdict is not Verdict.NO]
        usable.sort(key=lambda one: (one.judgement.verdict is not Verdict.FITS, -one.model.size))  # type: ignore[union-attr]
        for old in self.found:
            old.deleteLater()
        self.found = []
        for one in usable[:_MOST]:
            shown = found_row(one, None)
            use = ElidedButton("", beside=52)
            words = _("Use {model}", model=shown.title)
            use.set_text(words.replace("&", "&&"), f"· {shown.chip}", f"{shown.words}\n{shown.tip}")
            use.setAccessibleName(beside((words, shown.chip)))
            use.clicked.connect(partial(self.pick_requested.emit, one.model.path))
            _widen(use)
            self._found.addWidget(use)
            self.found.append(use)
        for button_, kind in ((self.starter, "" if self.found else "primary"), *((one, "") for one in self.found[1:])):
            restyle(button_, "kind", kind)
        if self.found:
            restyle(self.found[0], "kind", "primary")
        self._show_fetching(self.is_fetching)

    def open_file_dialog(self) -> None:
        open_gguf_dialog(self, self.pick_requested.emit)

    def fetch_starter(self) -> None:
        if self._starter_is_here:
            self._fetch()
        else:
            what = _("The starter model, {size}", size=size(STARTER_SIZE))
            ask_if_metered(self, self._start, what, self._fetch)

    def _fetch(self) -> None:
        self.show_progress(0, 0)
        self.amount.setText(_("Asking for it…"))
        self.starter_requested.emit()

    def _cancel(self) -> None:
        self._show_fetching(False)
        self.cancel_requested.emit()

    def _show_fetching(self, fetching: bool) -> None:
        self._progress.setVisible(fetching)
        for choice in (*self.found, self.starter, self.models, self.pick, self.back):
            choice.setVisible(not fetching)
        if fetching:
            self.error.hide()

    def _build_column(self) -> QVBoxLayout:
        box = QWidget()
        box.setMaximumWidth(self.fontMetrics().averageCharWidth() * _LETTERS)
        self._found = column(spacing=12)
        choices = self._found, self.starter, self.models, self.pick, self._build_progress(), self.error, self.back
        more = self.saving, self.login, self.offer
        column(*_greeting(), self.machine, 8, *choices, 8, *more, on=box, spacing=12, margins=24)
        return column(STRETCH, STRETCH, box, STRETCH, STRETCH, STRETCH)

    def _build_progress(self) -> QWidget:
        self._progress = QWidget()
        self.bar = progress_bar(_("Fetching the starter model"))
        self.amount = label(kind="muted")
        self.cancel = button(_("Cancel"), self._cancel, name=_("Cancel fetching"))
        column(self.bar, row((self.amount, 1), self.cancel), on=self._progress, spacing=10, margins=(0, 4, 0, 0))
        self._progress.hide()
        return self._progress


def starter_words(*, here: bool) -> str:
    """What the button says that leads to the starter model; `here`: it comes with kvchat."""
    if here:
        return _("Use kvchat’s own starter model")
    return _("Fetch the starter model ({size})", size=size(STARTER_SIZE))


def open_gguf_dialog(parent: QWidget, on_pick: Callable[[Path], object]) -> None:
    one = QFileDialog.FileMode.ExistingFile
    dialog = file_dialog(parent, _("Choose a model file"), one, _("Models (*.gguf);;All files (*)"))
    dialog.fileSelected.connect(lambda name: on_pick(Path(name)))
    dialog.open()


def _greeting() -> tuple[QLabel, QLabel, QLabel]:
    logo = QLabel()
    logo.setPixmap(app_icon().pixmap(QSize(64, 64)))
    title = label(_("Choose a model to talk to"), "hero", wraps=True)
    words = _(
        "Everything stays on this computer. kvchat keeps what the model worked out about each "
        "chat, so that it answers at once when you come back."
    )
    return logo, title, label(words, "muted", wraps=True)


def _wide_button(words: str, on_click: Any = None, kind: str = "") -> QPushButton:
    return _widen(button(words, on_click, kind))


def _widen(made: QPushButton) -> QPushButton:
    made.setMinimumHeight(38)
    made.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
    return made
