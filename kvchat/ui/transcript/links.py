"""Links in messages: nobody knows where a model's link leads, so kvchat says it and asks before it opens one."""

from __future__ import annotations

from urllib.parse import urlsplit

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication, QShowEvent
from PySide6.QtWidgets import QDialog, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from kvchat.ui.dialogs.panel import fit_height
from kvchat.ui.rendering.markdown import is_web_link
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


_LETTERS = 66  # wide


class LinkDialog(QDialog):
    """Shows where a link leads. Opening nothing is the default."""

    def __init__(self, parent: QWidget, url: str) -> None:
        super().__init__(parent)
        self.url = url
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self.setWindowTitle("kvchat")
        self.setAccessibleName("Open this link?")
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 22, 24, 18)
        column.setSpacing(8)
        address = QUrl(url).toString(QUrl.ComponentFormattingOption.FullyEncoded)
        shown = address if len(address) <= _LONGEST else f"{address[:_LONGEST]}…"
        for words, kind in (
            ("Open this link in your browser?" if not url.startswith("mailto:") else "Write to this address?", "muted"),
            (real_place(url), "title"),
            (shown, "small"),
        ):
            label = QLabel(_breakable(words))
            label.setProperty("kind", kind)
            label.setTextFormat(Qt.TextFormat.PlainText)
            label.setWordWrap(True)
            column.addWidget(label)
        self.open_button, self.copy_button, self.cancel = (
            QPushButton("Open"),
            QPushButton("Copy"),
            QPushButton("Cancel"),
        )
        self.copy_button.setToolTip("Copy the address")
        self.cancel.setDefault(True)
        row = QHBoxLayout()
        row.setContentsMargins(0, 10, 0, 0)
        row.addStretch(1)
        for button in (self.open_button, self.copy_button, self.cancel):
            button.setAccessibleName(button.toolTip() or button.text())
            row.addWidget(button)
        column.addLayout(row)
        self.open_button.clicked.connect(self._open)
        self.copy_button.clicked.connect(self._copy)
        self.cancel.clicked.connect(self.reject)

    def showEvent(self, event: QShowEvent) -> None:
        """All of its words are seen."""
        super().showEvent(event)
        fit_height(self, _LETTERS)

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
