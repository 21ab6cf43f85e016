"""Asks before something is lost, without stopping the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QDialog, QPushButton, QWidget

from kvchat.ui.base.building import STRETCH, column, label, row
from kvchat.ui.dialogs.panel import fit_height
from kvchat.words.language import _

_LETTERS = 64  # wide


class Question(QDialog):
    """Some words and buttons over a window. Subclasses say what the buttons do; the last is the default one."""

    def __init__(self, parent: QWidget, name: str, lines: Iterable[tuple[str, str]], *answers: QPushButton) -> None:
        """lines: texts and their kinds; name: accessible name"""
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self.setWindowTitle("kvchat")
        self.setAccessibleName(name)
        for answer in answers:
            answer.setAccessibleName(answer.toolTip() or answer.text())
        said = [label(words, kind, wraps=True) for words, kind in lines]
        buttons = row(STRETCH, *answers, margins=(0, 10, 0, 0))
        column(*said, buttons, on=self, spacing=8, margins=(24, 22, 24, 18))
        answers[-1].setDefault(True)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        fit_height(self, _LETTERS)


class ConfirmDialog(Question):
    """A question with two answers; keeping things is the default one."""

    def __init__(self, parent: QWidget, title: str, text: str, action: str, keep: str = "") -> None:
        self.yes, self.keep = QPushButton(action), QPushButton(keep or _("Keep"))
        super().__init__(parent, title, ((title, "title"), (text, "muted")), self.yes, self.keep)
        self.yes.setProperty("kind", "danger")
        self.yes.clicked.connect(self.accept)
        self.keep.clicked.connect(self.reject)


def confirm(
    parent: QWidget, title: str, text: str, action: str, on_yes: Callable[[], object], *, keep: str = ""
) -> ConfirmDialog:
    """Open a question over `parent`; `on_yes` runs if the button `action` is pressed. Returns at once."""
    dialog = ConfirmDialog(parent, title, text, action, keep)
    dialog.accepted.connect(on_yes)
    dialog.open()
    return dialog
