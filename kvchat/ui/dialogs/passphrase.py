"""Asks for the passphrase that seals a file, or opens it."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtWidgets import QLineEdit, QPushButton, QVBoxLayout, QWidget

from kvchat.ui.base.building import button, label, line_edit, row
from kvchat.ui.dialogs.confirm import Question
from kvchat.words.language import _


class PassphraseDialog(Question):
    """Some words, one field, and what is done with it. It is kept nowhere.

    An `optional` passphrase seals a file. It is typed twice: a slip could not be undone.
    """

    def __init__(self, parent: QWidget, title: str, text: str, action: str, *, optional: bool) -> None:
        self.field = line_edit(_("Passphrase"), _("Passphrase (optional)") if optional else _("Passphrase"))
        self.again = line_edit(_("Repeat the passphrase"), _("Repeat the passphrase"))
        self.differs = label(kind="refusal")
        self.shown = button(_("Show"), name=_("Show what is typed"))
        self.shown.setCheckable(True)
        self.shown.setAutoDefault(False)  # Enter is not meant for it
        self.go, self.cancel = QPushButton(action), QPushButton(_("Cancel"))
        super().__init__(parent, title, ((title, "title"), (text, "muted")), self.cancel, self.go)
        layout = self.layout()
        assert isinstance(layout, QVBoxLayout)
        layout.insertLayout(2, row((self.field, 1), self.shown))
        if optional:
            for place, widget in enumerate((self.again, self.differs), 3):
                layout.insertWidget(place, widget)
        for field in (self.field, self.again):
            field.textChanged.connect(self._check)
        self._optional = optional
        self.shown.toggled.connect(self._show_typed)
        self._show_typed(False)
        self._check()
        self.go.setProperty("kind", "primary")
        self.go.clicked.connect(self.accept)
        self.cancel.clicked.connect(self.reject)
        self.field.setFocus()

    def _show_typed(self, on: bool) -> None:
        for field in (self.field, self.again):
            field.setEchoMode(QLineEdit.EchoMode.Normal if on else QLineEdit.EchoMode.Password)

    def _check(self) -> None:
        """Allow a passphrase typed alike twice, or none if it is optional."""
        given, again = self.field.text(), self.again.text()
        self.go.setEnabled(given == again if self._optional else bool(given))
        self.again.setEnabled(bool(given) or bool(again))
        self.differs.setText("" if given.startswith(again) else _("The two passphrases differ."))


def ask_passphrase(
    parent: QWidget, title: str, text: str, action: str, on_given: Callable[[str], object], *, optional: bool = False
) -> PassphraseDialog:
    """Open the question over `parent`; `on_given` runs with what was typed. Returns at once."""
    dialog = PassphraseDialog(parent, title, text, action, optional=optional)
    dialog.accepted.connect(lambda: on_given(dialog.field.text()))
    dialog.open()
    return dialog
