"""Reports to read and to copy: a bug, and what an import could not take in."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFont, QGuiApplication
from PySide6.QtWidgets import QWidget

from kvchat import __version__
from kvchat.ui.base.building import STRETCH, button, column, label, plain_text, row
from kvchat.ui.base.theme import Look, page_font
from kvchat.ui.widgets.layouts import RoomyDialog
from kvchat.words.language import N_, _, number, sentences

_LETTERS = 48  # at least, wide
_REQUEST = N_(
    "kvchat met something it did not expect. Your chats are safe on disk. "
    "If you report this, please add the text below, after a look at it: it may quote what you wrote."
)


class ReportDialog(RoomyDialog):
    """A few words and, below them, text that can be copied."""

    def __init__(self, title: str, words: str, text: str, font: QFont, parent: QWidget | None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(title)
        self.least = QSize(self.fontMetrics().averageCharWidth() * _LETTERS, 0)
        self.resize(620, 420)
        self.text = plain_text(_("Report"), font, text)
        self.copy = button(_("Copy"), self._copy, name=_("Copy the report"))
        close = button(_("Close"), self.close, name=_("Close the report"))
        close.setDefault(True)
        buttons = row(STRETCH, self.copy, close)
        said = label(words, wraps=True)
        self.column = column(said, (self.text, 1), buttons, on=self, spacing=12, margins=(20, 18, 20, 16))

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.text.toPlainText())


class BugReportDialog(ReportDialog):
    """Shows a traceback, and more of them while it is open."""

    def __init__(self, look: Look, text: str, parent: QWidget | None = None) -> None:
        font = page_font(look.type.mono, look.type.small)
        super().__init__(_("Something unexpected happened"), _(_REQUEST), f"{_versions()}\n\n{text}", font, parent)
        self.copy.setDefault(True)

    def add(self, text: str) -> None:
        self.text.appendPlainText("\n" + text)


class ImportReportDialog(ReportDialog):
    """What was imported, what was known, and each problem."""

    def __init__(self, look: Look, title: str, known: str, problems: Sequence[str], parent: QWidget) -> None:
        failed = _("One was not taken in, or not as a whole:")
        if len(problems) > 1:
            failed = _("{count} were not taken in, or not as a whole:", count=number(len(problems)))
        words = sentences(known, failed)
        super().__init__(_("Import"), words, "\n".join(problems), page_font(look.type.family, look.type.base), parent)
        self.setAccessibleName(title)
        self.column.insertWidget(0, label(title, "title"))


def _versions() -> str:
    parts = f"kvchat {__version__}", platform.platform(), f"Python {platform.python_version()}"
    return "\n".join(parts)  # in English: for who is sent the report
