"""Questions and file dialogs that do not block the event loop, and message boxes for use before the main window."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QPalette, QShowEvent
from PySide6.QtWidgets import QDialog, QFileDialog, QLineEdit, QMessageBox, QPushButton, QToolButton, QWidget

from kvchat.errors import KvchatError
from kvchat.text.language import _
from kvchat.ui.base.building import STRETCH, Part, button, column, label, line_edit, row
from kvchat.ui.base.icons import icon
from kvchat.ui.widgets.layouts import max_window_size

_WIDTH_IN_LETTERS = 64  # width of a question in average characters
_ARROW_ICONS = {"backButton": "chevron-left", "forwardButton": "chevron-right", "toParentButton": "arrow-up"}


def fit_to_text(dialog: QDialog, line_length: int) -> None:
    """Fix the dialog's width at `line_length` average characters, and its height so that all text fits.

    Qt's own size hint cuts off wrapped text.
    """
    layout = dialog.layout()
    assert layout is not None
    for widget in dialog.findChildren(QWidget):
        widget.ensurePolished()
    dialog.setFixedWidth(min(dialog.fontMetrics().averageCharWidth() * line_length, max_window_size().width()))
    layout.activate()
    dialog.setFixedHeight(layout.totalHeightForWidth(dialog.width()))


_NETWORK_MANAGER = "org.freedesktop.NetworkManager"
_METERED_STATES = (1, 3)  # yes, probably: https://networkmanager.dev/docs/api/latest/nm-dbus-types.html#NMMetered


class Question(QDialog):
    """Dialog with text and buttons. The last button is the default; subclasses connect the buttons."""

    def __init__(self, parent: QWidget, name: str, parts: Iterable[Part], *answers: QPushButton) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self.setWindowTitle("kvchat")
        self.setAccessibleName(name)
        for answer in answers:
            answer.setAccessibleName(answer.toolTip() or answer.text())
        buttons = row(STRETCH, *answers, margins=(0, 10, 0, 0))
        column(*parts, buttons, on=self, spacing=8, margins=(24, 22, 24, 18))
        answers[-1].setDefault(True)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        fit_to_text(self, _WIDTH_IN_LETTERS)


class ConfirmDialog(Question):
    def __init__(
        self, parent: QWidget, title: str, text: str, action: str, keep: str, details: QWidget | None = None
    ) -> None:
        self.confirm_button, self.keep_button = QPushButton(action), QPushButton(keep)
        lines = label(title, "title", wraps=True), label(text, "muted", wraps=True), *([details] if details else [])
        super().__init__(parent, title, lines, self.confirm_button, self.keep_button)
        self.confirm_button.setProperty("kind", "" if details else "danger")
        self.confirm_button.clicked.connect(self.accept)
        self.keep_button.clicked.connect(self.reject)


def confirm(
    parent: QWidget,
    title: str,
    text: str,
    action: str,
    on_yes: Callable[[], object],
    *,
    keep: str = "",
    details: QWidget | None = None,
) -> ConfirmDialog:
    """Ask over `parent` without blocking. The button labeled `action` calls `on_yes`; `details` are below the text."""
    dialog = ConfirmDialog(parent, title, text, action, keep or _("Keep"), details)
    dialog.accepted.connect(on_yes)
    dialog.open()
    return dialog


def ask_if_metered(
    parent: QWidget,
    run: Callable[[Coroutine[Any, Any, None]], object],
    what: str,
    size: str,
    download: Callable[[], object],
) -> None:
    """Call `download`, but ask the user first on a metered connection."""

    async def check() -> None:
        if not await is_metered():
            download()
            return
        text = _("kvchat will download {what} ({size}). Your provider may charge for it.", what=what, size=size)
        title, action = _("Download over a metered connection?"), _("Download")
        confirm(parent, title, text, action, download, keep=_("Not now"))

    run(check())


async def is_metered() -> bool:
    """Return True if the network connection is known to be metered."""
    if sys.platform != "linux":
        from PySide6.QtNetwork import QNetworkInformation

        if QNetworkInformation.instance() is None:
            QNetworkInformation.loadBackendByFeatures(QNetworkInformation.Feature.Metered)
        network = QNetworkInformation.instance()
        return network is not None and network.isMetered()
    from kvchat.system.session_bus import BusUnavailable, Service, SessionBus  # not needed for the first frame

    manager = Service(_NETWORK_MANAGER, "/org/freedesktop/NetworkManager", "org.freedesktop.DBus.Properties")
    bus = SessionBus("SYSTEM")
    try:
        ((_kind, metered),) = await bus.call(manager, "Get", "ss", _NETWORK_MANAGER, "Metered")
    except BusUnavailable:
        return False
    finally:
        await bus.close()
    return metered in _METERED_STATES


class PassphraseDialog(Question):
    """Dialog that asks for a passphrase. If `optional`, it is for encrypting a new file and must be typed twice."""

    def __init__(self, parent: QWidget, title: str, text: str, action: str, *, optional: bool) -> None:
        self.field = line_edit(_("Passphrase"), _("Passphrase (optional)") if optional else _("Passphrase"))
        self.repeat_field = line_edit(_("Repeat the passphrase"), _("Repeat the passphrase"))
        self.mismatch_label = label(kind="refusal")
        self.show_button = button(_("Show"), name=_("Show passphrase"))
        self.show_button.setCheckable(True)
        self.show_button.setAutoDefault(False)  # Enter must not press it
        self.confirm_button, self.cancel_button = QPushButton(action), QPushButton(_("Cancel"))
        lines = (
            label(title, "title", wraps=True),
            label(text, "muted", wraps=True),
            row((self.field, 1), self.show_button),
        )
        repeat = (self.repeat_field, self.mismatch_label) if optional else ()
        super().__init__(parent, title, (*lines, *repeat), self.cancel_button, self.confirm_button)
        for field in (self.field, self.repeat_field):
            field.textChanged.connect(self._check)
        self._optional = optional
        self.show_button.toggled.connect(self._show_passphrase)
        self._show_passphrase(False)
        self._check()
        self.confirm_button.setProperty("kind", "primary")
        self.confirm_button.clicked.connect(self.accept)
        self.cancel_button.clicked.connect(self.reject)
        self.field.setFocus()

    def _show_passphrase(self, is_shown: bool) -> None:
        for field in (self.field, self.repeat_field):
            field.setEchoMode(QLineEdit.EchoMode.Normal if is_shown else QLineEdit.EchoMode.Password)

    def _check(self) -> None:
        first, again = self.field.text(), self.repeat_field.text()
        self.confirm_button.setEnabled(first == again if self._optional else bool(first))
        self.repeat_field.setEnabled(bool(first or again))
        self.mismatch_label.setText("" if first.startswith(again) else _("The passphrases do not match."))


def ask_passphrase(
    parent: QWidget, title: str, text: str, action: str, on_accept: Callable[[str], object], *, optional: bool = False
) -> PassphraseDialog:
    dialog = PassphraseDialog(parent, title, text, action, optional=optional)
    dialog.accepted.connect(lambda: on_accept(dialog.field.text()))
    dialog.open()
    return dialog


def file_dialog(parent: QWidget, title: str, mode: QFileDialog.FileMode, filters: str = "") -> QFileDialog:
    """Return a file dialog, not yet open, that starts in the home folder.

    Example of filters: "Models (*.gguf);;All files (*)"
    """
    dialog = QFileDialog(parent, title, str(Path.home()), filters)
    dialog.setFileMode(mode)
    dialog.finished.connect(dialog.deleteLater)
    colour = dialog.palette().color(QPalette.ColorRole.WindowText).name()
    for name, glyph in _ARROW_ICONS.items():  # Qt's own arrows are black in dark mode
        button = dialog.findChild(QToolButton, name)
        if isinstance(button, QToolButton):
            button.setIcon(icon(glyph, colour))
    return dialog


def save_dialog(parent: QWidget, title: str, name: str, filters: str, on_pick: Callable[[Path], object]) -> None:
    dialog = file_dialog(parent, title, QFileDialog.FileMode.AnyFile, filters)
    dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
    dialog.selectFile(str(Path.home() / name))
    dialog.setDefaultSuffix(Path(name).suffix[1:])
    dialog.filterSelected.connect(lambda kind: dialog.setDefaultSuffix(kind.partition("(*.")[2].rstrip(")").split()[0]))
    dialog.fileSelected.connect(lambda picked: on_pick(Path(picked)))
    dialog.open()


async def show_error_box(error: KvchatError) -> None:
    await ask_in_box(error.title, error.explanation, "", "")


async def ask_in_box(title: str, text: str, detail: str, action: str) -> bool:
    """Show a message box and return True if the user presses `action`. If `action` is empty, show only OK."""
    closed = asyncio.Event()
    box = QMessageBox(QMessageBox.Icon.Critical if action else QMessageBox.Icon.Warning, "kvchat", title)
    box.setInformativeText("\n\n".join(filter(None, (text, detail))))
    accept = box.addButton(action, QMessageBox.ButtonRole.AcceptRole) if action else None
    if accept is not None:
        box.setDefaultButton(accept)
        box.addButton(_("Quit"), QMessageBox.ButtonRole.RejectRole)
    box.finished.connect(lambda _: closed.set())
    box.open()
    await closed.wait()
    return accept is not None and box.clickedButton() is accept
