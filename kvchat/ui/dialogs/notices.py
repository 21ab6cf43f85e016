"""The one door through which trouble reaches the user: quiet notices, and a report for bugs."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from PySide6.QtCore import QSize, Qt, QTimer, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QSizePolicy, QToolButton, QVBoxLayout, QWidget

from kvchat.errors import KvchatError
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.report import BugReportDialog
from kvchat.ui.widgets.elided import breakable
from kvchat.words.redaction import redact, this_person

_AT_MOST = 3
_INFO_MS = 12_000
_MOST_UNDOS = 20


class NoticeView(QFrame):
    """One notice, until it is closed."""

    gone = Signal()

    def __init__(self, look: Look, title: str, detail: str, tone: str) -> None:
        super().__init__()
        self.words = (title, detail)
        self.on_click: Callable[[], object] | None = None
        self.setProperty("kind", "notice")
        self.setProperty("tone", tone)
        self.setAccessibleName(f"{title} {detail}")
        sign = QLabel()
        colour = look.theme.warn if tone == "warn" else look.theme.accent
        sign.setPixmap(icon("warning" if tone == "warn" else "info", colour).pixmap(QSize(1, 1) * look.px(18)))
        texts = QVBoxLayout()
        texts.setSpacing(2)
        for text, kind in ((title, "strong" if tone else ""), (breakable(detail), "muted")):
            label = QLabel(text)
            label.setProperty("kind", kind)
            label.setTextFormat(Qt.TextFormat.PlainText)
            label.setWordWrap(True)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            texts.addWidget(label)
            if not text:
                label.hide()
        self.close_button = QToolButton()
        self.close_button.setIcon(icon("close", look.theme.muted))
        self.close_button.setAccessibleName("Close this notice")
        self.close_button.clicked.connect(self.dismiss)
        row = QHBoxLayout(self)
        row.setContentsMargins(12, 6, 6, 6)
        row.setSpacing(10)
        row.addWidget(sign)
        row.addLayout(texts, 1)
        row.addWidget(self.close_button)
        self._row = row

    def add_button(self, words: str, on_click: Callable[[], object]) -> None:
        """A button before the one that closes; the notice goes with the click."""
        self.on_click = on_click
        button = QPushButton(words)
        button.setProperty("kind", "link")
        button.setAccessibleName(words)
        button.clicked.connect(lambda: on_click())
        button.clicked.connect(self.dismiss)
        self._row.insertWidget(self._row.count() - 1, button)

    def dismiss(self) -> None:
        """Take the notice away."""
        self.hide()
        self.setParent(None)
        self.deleteLater()
        self.gone.emit()


class Notices(QWidget):
    """The notices on show, newest last, the same one never twice. In a layout, or over a page's lower end."""

    changed = Signal()  # there is one more, or one less

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._look = look
        self.report: BugReportDialog | None = None
        self._undos: list[Callable[[], object]] = []  # the newest last
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(6)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Maximum)

    @property
    def on_show(self) -> list[NoticeView]:
        """What is on show."""
        return self.findChildren(NoticeView)

    def tell(self, title: str, detail: str = "") -> None:
        """Something worth knowing; goes away by itself."""
        notice = self._add(title, detail, "")
        if notice is not None:
            QTimer.singleShot(_INFO_MS, notice, notice.dismiss)

    def offer(self, title: str, action: str, on_click: Callable[[], object], detail: str = "") -> None:
        """Something that was done, with a button; goes away by itself, or with the click."""
        for old in self.on_show:
            if old.words == (title, detail):
                old.dismiss()
        notice = self._add(title, detail, "")
        if notice is not None:
            notice.add_button(action, on_click)
            QTimer.singleShot(_INFO_MS, notice, notice.dismiss)

    def offer_undo(self, done: str, undo: Callable[[], object]) -> None:
        """Something that was done and can be undone, here or, once the notice has gone, by `undo_last`."""

        def once() -> None:
            if once in self._undos:
                self._undos.remove(once)
                undo()

        self._undos = [*self._undos, once][-_MOST_UNDOS:]
        self.offer(done, "Undo", once)

    def undo_last(self) -> None:
        """Undo what was done last and has not been undone."""
        if self._undos:
            for notice in self.on_show:
                if notice.on_click is self._undos[-1]:
                    notice.dismiss()
            self._undos[-1]()

    def show_error(self, error: KvchatError) -> None:
        """Something asked for that could not be done; stays until it is closed."""
        self._add(*_words(error), "warn")

    def take_back(self, error: KvchatError) -> None:
        """It is no longer of this page."""
        for notice in self.on_show:
            if notice.words == _words(error):
                notice.dismiss()

    def show_bug(self, error: BaseException) -> None:
        """Something kvchat did not expect: a report to copy."""
        text = redact("".join(traceback.format_exception(error)), this_person())
        if self.report is not None:
            self.report.add(text)
            return
        self.report = BugReportDialog(self._look, text, self.window())
        self.report.finished.connect(self._forget_report)
        self.report.open()

    def _add(self, title: str, detail: str, tone: str) -> NoticeView | None:
        if any(notice.words == (title, detail) for notice in self.on_show):
            return None
        for old in self.on_show[: max(0, len(self.on_show) - _AT_MOST + 1)]:
            old.dismiss()
        notice = NoticeView(self._look, title, detail, tone)
        self._column.addWidget(notice)
        notice.show()
        notice.gone.connect(self.changed)
        self.changed.emit()
        return notice

    def _forget_report(self) -> None:
        self.report = None


def _words(error: KvchatError) -> tuple[str, str]:
    return error.title, " ".join(part for part in (error.detail, error.advice) if part)
