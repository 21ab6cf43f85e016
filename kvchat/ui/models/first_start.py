"""No model yet: pick a file, or fetch the starter model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import (
    QFileDialog,
    QFrame,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from kvchat.errors import KvchatError
from kvchat.ui.base.file_dialog import file_dialog
from kvchat.ui.base.icons import app_icon
from kvchat.ui.widgets.layouts import ScrollGround
from kvchat.words.wording import size

STARTER = "Fetch the starter model (98 MB)"
_LETTERS = 66  # wide


class FirstStart(QWidget):
    """The page that leads to a model. It does no work itself: it says what was asked for."""

    pick_requested = Signal(object)  # Path of a GGUF file
    models_requested = Signal()  # those on this computer, and more
    starter_requested = Signal()
    cancel_requested = Signal()
    back_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("firstStart")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.starter = _wide_button(STARTER, "primary")
        self.models = _wide_button("Find models on this computer, or get another…", "")
        self.pick = _wide_button("Choose a model file…", "")
        self.back = _wide_button("Back", "flat")
        self._can_go_back = False
        self.back.hide()
        self.starter.clicked.connect(self.fetch_starter)
        self.models.clicked.connect(self.models_requested)
        self.pick.clicked.connect(self.open_file_dialog)
        self.back.clicked.connect(self.back_requested)
        ground = ScrollGround("page")
        across = QHBoxLayout(ground)
        across.addStretch(1)
        across.addLayout(self._build_column(), 1000)
        across.addStretch(1)
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setWidget(ground)
        page = QVBoxLayout(self)
        page.setContentsMargins(0, 0, 0, 0)
        page.addWidget(area)

    def show_progress(self, done: int, total: int) -> None:
        """The fetch goes on: bytes so far, bytes in all (0: not known)."""
        self._show_fetching(True)
        self.bar.setRange(0, 1000 if total else 0)
        self.bar.setValue(int(1000 * done / total) if total else 0)
        self.amount.setText(f"{size(done)} of {size(total)}" if total else f"{size(done)} so far")

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
        self.error_title.setText(error.title)
        self.error_words.setText(" ".join(part for part in (error.detail, error.advice) if part))
        self._error.show()

    def show_choices(self, can_go_back: bool) -> None:
        """Back to the beginning, with nothing running and nothing wrong."""
        self._can_go_back = can_go_back
        self._show_fetching(False)
        self._error.hide()

    def open_file_dialog(self) -> None:
        """Let the user pick a GGUF file; the choice comes as `pick_requested`."""
        open_gguf_dialog(self, self.pick_requested.emit)

    def fetch_starter(self) -> None:
        """Wish for the starter model."""
        self.show_progress(0, 0)
        self.amount.setText("Asking for it…")
        self.starter_requested.emit()

    def _cancel(self) -> None:
        self._show_fetching(False)
        self.cancel_requested.emit()

    def _show_fetching(self, fetching: bool) -> None:
        self._progress.setVisible(fetching)
        self.starter.setVisible(not fetching)
        self.models.setVisible(not fetching)
        self.pick.setVisible(not fetching)
        self.back.setVisible(self._can_go_back and not fetching)
        if fetching:
            self._error.hide()

    def _build_column(self) -> QVBoxLayout:
        box = QWidget()
        box.setMaximumWidth(self.fontMetrics().averageCharWidth() * _LETTERS)
        column = QVBoxLayout(box)
        column.setContentsMargins(24, 24, 24, 24)
        column.setSpacing(12)
        for label in _greeting():
            column.addWidget(label)
        column.addSpacing(8)
        for widget in (self.starter, self.models, self.pick, self._build_progress(), self._build_error(), self.back):
            column.addWidget(widget)
        middle = QVBoxLayout()
        middle.addStretch(2)
        middle.addWidget(box)
        middle.addStretch(3)
        return middle

    def _build_progress(self) -> QWidget:
        self._progress = QWidget()
        self.bar = QProgressBar()
        self.bar.setTextVisible(False)
        self.bar.setAccessibleName("Fetching the starter model")
        self.amount = QLabel()
        self.amount.setProperty("kind", "muted")
        self.cancel = QPushButton("Cancel")
        self.cancel.setAccessibleName("Cancel fetching")
        self.cancel.clicked.connect(self._cancel)
        row = QHBoxLayout()
        row.addWidget(self.amount, 1)
        row.addWidget(self.cancel)
        column = QVBoxLayout(self._progress)
        column.setContentsMargins(0, 4, 0, 0)
        column.setSpacing(10)
        column.addWidget(self.bar)
        column.addLayout(row)
        self._progress.hide()
        return self._progress

    def _build_error(self) -> QWidget:
        self._error = QFrame()
        self._error.setProperty("kind", "card")
        self._error.setProperty("tone", "bad")
        self.error_title, self.error_words = QLabel(), QLabel()
        self.error_title.setProperty("tone", "bad")
        column = QVBoxLayout(self._error)
        column.setContentsMargins(16, 12, 16, 12)
        for label in (self.error_title, self.error_words):
            label.setWordWrap(True)
            label.setTextFormat(Qt.TextFormat.PlainText)
            column.addWidget(label)
        self._error.hide()
        return self._error


def open_gguf_dialog(parent: QWidget, on_pick: Callable[[Path], object]) -> None:
    """Let the user pick a GGUF file; returns at once."""
    one = QFileDialog.FileMode.ExistingFile
    dialog = file_dialog(parent, "Choose a model file", one, "Models (*.gguf);;All files (*)")
    dialog.fileSelected.connect(lambda name: on_pick(Path(name)))
    dialog.open()


def _greeting() -> tuple[QLabel, QLabel, QLabel]:
    mark = QLabel()
    mark.setPixmap(app_icon().pixmap(QSize(64, 64)))
    title = QLabel("Choose a model to talk to")
    title.setProperty("kind", "hero")
    words = QLabel(
        "Everything stays on this computer. kvchat keeps what the model worked out about each "
        "chat, so that it answers at once when you come back."
    )
    words.setProperty("kind", "muted")
    words.setWordWrap(True)
    return mark, title, words


def _wide_button(words: str, kind: str) -> QPushButton:
    button = QPushButton(words)
    button.setProperty("kind", kind)
    button.setAccessibleName(words)
    button.setMinimumHeight(38)
    button.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
    return button
