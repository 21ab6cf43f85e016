"""The engine's log: followed, searched, by level, copied."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QCheckBox, QPlainTextEdit, QWidget

from kvchat.engine.running.log import Level, at_least
from kvchat.ui.base.building import STRETCH, button, column, plain_text, row
from kvchat.ui.base.theme import Look, page_font
from kvchat.ui.widgets.entries import ChoiceBox
from kvchat.ui.widgets.text_search import TextSearch
from kvchat.words.language import N_, _

_LEVELS = ((Level.DETAIL, N_("Everything")), (Level.WARNING, N_("Warnings and errors")), (Level.ERROR, N_("Errors")))


class LogPage(QWidget):
    """Shows the lines it is given. Scrolling up stops following; the box, or the end, begins it again."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._lines: list[str] = []
        self._shown: list[str] = []
        self._showing = False
        self.level = ChoiceBox(look)
        self.level.setAccessibleName(_("Which lines"))
        for level, words in _LEVELS:
            self.level.addItem(_(words), level.value)
        self.follow = QCheckBox(_("Follow"))
        self.follow.setChecked(True)
        self.follow.setAccessibleDescription(_("Stay at the newest line"))
        self.copy = button(_("Copy"), self._copy, name=_("Copy the log"))
        self.text = plain_text(_("Engine log"), page_font(look.type.mono, look.type.small))
        self.text.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.text.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # what an engine says is English
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.search = TextSearch(look, _("Search the log"), self.text)
        below = row(self.level, self.follow, self.search.found, STRETCH, self.copy, spacing=10)
        column(self.search, below, (self.text, 1), on=self, spacing=10, margins=0)
        self.text.verticalScrollBar().valueChanged.connect(self._scrolled)
        self.search.reached.connect(lambda: self.follow.setChecked(False))
        self.level.activated.connect(lambda _: self._show())
        self.follow.toggled.connect(self._follow)

    def show_lines(self, lines: list[str]) -> None:
        if lines != self._lines:
            self._lines = lines
            self._show()

    def _show(self) -> None:
        """Only what is new is added, so that a selection stays."""
        wanted = at_least(self._lines, Level(self.level.currentData()))
        bar = self.text.verticalScrollBar()
        at = bar.value()
        self._showing = True
        if self._shown and wanted[: len(self._shown)] == self._shown:
            if added := wanted[len(self._shown) :]:
                self.text.appendPlainText("\n".join(added))
        else:
            self.text.setPlainText("\n".join(wanted))
        self._shown = wanted
        self.search.mark_all()
        bar.setValue(bar.maximum() if self.follow.isChecked() else at)
        self._showing = False

    def _scrolled(self, value: int) -> None:
        if not self._showing:  # then it was the reader
            self.follow.setChecked(value >= self.text.verticalScrollBar().maximum() - 1)

    def _follow(self, on: bool) -> None:
        if on:
            self.text.verticalScrollBar().setValue(self.text.verticalScrollBar().maximum())

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText("\n".join(self._shown))
