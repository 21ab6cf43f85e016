"""Links in messages: nobody knows where a model's link leads, so kvchat says it and asks before it opens one."""

from __future__ import annotations

from urllib.parse import urlsplit

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication
from PySide6.QtWidgets import QPushButton, QWidget

from kvchat.ui.dialogs.confirm import Question
from kvchat.words.language import _
from kvchat.words.markdown import is_web_link
from kvchat.words.safe_text import spelled_out

_LONGEST = 300  # characters of an address on show


def real_place(url: str) -> str:
    """Where a link leads: the host as the network knows it (punycode, no user name), or the address of a mail."""
    parsed = QUrl(url)
    if urlsplit(url).scheme.lower() == "mailto":
        return spelled_out(parsed.path(QUrl.ComponentFormattingOption.FullyEncoded))
    host = parsed.host(QUrl.ComponentFormattingOption.FullyEncoded)
    port = parsed.port()
    return host if port < 0 else f"{host}:{port}"


class LinkDialog(Question):
    """Shows where a link leads. Opening nothing is the default."""

    def __init__(self, parent: QWidget, url: str) -> None:
        self.url = url
        address = QUrl(url).toString(QUrl.ComponentFormattingOption.FullyEncoded)
        shown = address if len(address) <= _LONGEST else f"{address[:_LONGEST]}…"
        asked = _("Open this link in your browser?") if not url.startswith("mailto:") else _("Write to this address?")
        lines = (asked, "muted"), (_breakable(real_place(url)), "title"), (_breakable(shown), "small")
        self.open_button, self.copy_button, self.cancel = map(QPushButton, (_("Open"), _("Copy"), _("Cancel")))
        self.copy_button.setToolTip(_("Copy the address"))
        super().__init__(parent, _("Open this link?"), lines, self.open_button, self.copy_button, self.cancel)
        self.open_button.clicked.connect(self._open)
        self.copy_button.clicked.connect(self._copy)
        self.cancel.clicked.connect(self.reject)

    def _open(self) -> None:
        QDesktopServices.openUrl(QUrl(self.url))
        self.accept()

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.url)
        self.reject()


def ask_to_open(parent: QWidget, url: str) -> LinkDialog | None:
    """Ask whether to open a link. None, and nothing happens, for anything but a web link or an address of a mail."""
    if not is_web_link(url):
        return None
    dialog = LinkDialog(parent, url)
    dialog.open()
    return dialog


def _breakable(address: str) -> str:
    """A label breaks lines at words only: allow it anywhere, by zero-width spaces."""
    return "\u200b".join(address) if len(address) > 60 and " " not in address else address
