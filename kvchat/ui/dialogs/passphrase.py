"""Asks for the passphrase that seals a file, or opens it."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtWidgets import QLineEdit, QPushButton, QVBoxLayout, QWidget

from kvchat.ui.base.building import button, line_edit, row
from kvchat.ui.dialogs.confirm import Question
from kvchat.words.language import _


class PassphraseDialog(Question):
    """Some words, one field, and what is done with it. It is kept nowhere."""

    def __init__(self, parent: QWidget, title: str, text: str, action: str, *, optional: bool) -> None:
        self.field = line_edit(_("Passphrase"), _("Passphrase (optional)") if optional else _("Passphrase"))
        self.field.setEchoMode(QLineEdit.EchoMode.Password)
        self.shown = button(_("Show"), name=_("Show what is typed"))
        self.shown.setCheckable(True)
        self.shown.setAutoDefault(False)  # Enter is not meant for it
        self.go, self.cancel = QPushButton(action), QPushButton(_("Cancel"))
        super().__init__(parent, title, ((title, "title"), (text, "muted")), self.cancel, self.go)
        layout = self.layout()
        assert isinstance(layout, QVBoxLayout)
        layout.insertLayout(2, row((self.field, 1), self.shown))
        self.shown.toggled.connect(
            lambda on: self.field.setEchoMode(QLineEdit.EchoMode.Normal if on else QLineEdit.EchoMode.Password)
        )
        self.go.setProperty("kind", "primary")
        self.go.clicked.connect(self.accept)
        self.cancel.clicked.connect(self.reject)
        if not optional:
            self.go.setEnabled(False)
            self.field.textChanged.connect(lambda text: self.go.setEnabled(bool(text)))
        self.field.setFocus()


def ask_passphrase(
    parent: QWidget, title: str, text: str, action: str, on_given: Callable[[str], object], *, optional: bool = False
) -> PassphraseDialog:
    """Open the question over `parent`; `on_given` runs with what was typed. Returns at once."""
    dialog = PassphraseDialog(parent, title, text, action, optional=optional)
    dialog.accepted.connect(lambda: on_given(dialog.field.text()))
    dialog.open()
    return dialog
