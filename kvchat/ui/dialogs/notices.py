"""The one door through which trouble reaches the user: quiet notices, and a report for bugs."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QSize, QTimer, QUrl, Signal
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QFrame

from kvchat.errors import KvchatError
from kvchat.ui.base.accessible import announce
from kvchat.ui.base.building import button, column, label, row, styled, tool_button
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.report import BugReportDialog
from kvchat.ui.widgets.elided import breakable
from kvchat.ui.widgets.layouts import GivingWay
from kvchat.words.language import _, sentences
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
        styled(self, "notice", tone).setAccessibleName(sentences(title, detail))
        sign, theme = label(), look.theme
        picture = icon("warning", theme.warn) if tone == "warn" else icon("info", theme.accent)
        sign.setPixmap(picture.pixmap(QSize(1, 1) * look.px(18)))
        kinds = (title, "strong" if tone else ""), (breakable(detail), "muted")
        texts = [label(text, kind, wraps=True, selectable=True) for text, kind in kinds if text]
        self.close_button = tool_button(_("Close this notice"), self.dismiss, icon=icon("close", theme.muted))
        parts = sign, (column(*texts, spacing=2), 1), self.close_button
        self._row = row(*parts, on=self, spacing=10, margins=(12, 6, 6, 6))

    def add_button(self, words: str, on_click: Callable[[], object]) -> None:
        self.on_click = on_click
        made = button(words, lambda: on_click(), "link")
        made.clicked.connect(self.dismiss)
        self._row.insertWidget(self._row.count() - 1, made)

    def dismiss(self) -> None:
        self.hide()
        self.setParent(None)
        self.deleteLater()
        self.gone.emit()


class Notices(GivingWay):
    """The notices on show, newest last, the same one never twice. In a layout, or over a page's lower end."""

    changed = Signal()  # there is one more, or one less

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.report: BugReportDialog | None = None
        self._undos: list[Callable[[], object]] = []  # the newest last
        self._column = column(on=self.ground, spacing=6, margins=0)

    @property
    def on_show(self) -> list[NoticeView]:
        return self.findChildren(NoticeView)

    def tell(self, title: str, detail: str = "") -> None:
        self._add(title, detail)

    def offer(
        self, title: str, action: str, on_click: Callable[[], object], detail: str = "", *, stays: bool = False
    ) -> None:
        """Show a notice with a button; it disappears by itself unless it `stays`."""
        self._dismiss((title, detail))
        notice = self._add(title, detail, stays=stays)
        if notice is not None:
            notice.add_button(action, on_click)

    def tell_of_version(self, number: str, page: str) -> None:
        self.offer(
            _("kvchat {number} is out", number=number),
            _("Show"),
            lambda: QDesktopServices.openUrl(QUrl(page)),
            stays=True,
        )

    def tell_where(self, done: str, target: Path) -> None:
        folder = QUrl.fromLocalFile(str(target.parent))
        self.offer(done, _("Open folder"), lambda: QDesktopServices.openUrl(folder), str(target))

    def offer_undo(self, done: str, undo: Callable[[], object]) -> None:
        """Offer to undo something, by a notice and afterwards by `undo_last`."""

        def once() -> None:
            if once in self._undos:
                self._undos.remove(once)
                undo()

        self._undos = [*self._undos, once][-_MOST_UNDOS:]
        self.offer(done, _("Undo"), once)

    @property
    def can_undo(self) -> bool:
        return bool(self._undos)

    def undo_last(self) -> None:
        if self._undos:
            for notice in self.on_show:
                if notice.on_click is self._undos[-1]:
                    notice.dismiss()
            self._undos[-1]()

    def show_error(self, error: KvchatError) -> None:
        self._add(*_words(error), "warn")

    def take_back(self, error: KvchatError) -> None:
        self._dismiss(_words(error))

    def show_bug(self, error: BaseException) -> None:
        text = redact("".join(traceback.format_exception(error)), this_person())
        if self.report is not None:
            self.report.add(text)
            return
        self.report = BugReportDialog(self._look, text, self.window())
        self.report.finished.connect(self._forget_report)
        self.report.open()

    def _add(self, title: str, detail: str, tone: str = "", *, stays: bool = False) -> NoticeView | None:
        if any(notice.words == (title, detail) for notice in self.on_show):
            return None
        for old in self.on_show[: max(0, len(self.on_show) - _AT_MOST + 1)]:
            old.dismiss()
        notice = NoticeView(self._look, title, detail, tone)
        self._column.addWidget(notice)
        notice.show()
        announce(notice, notice.accessibleName(), urgent=tone == "warn")
        notice.gone.connect(self.changed)
        if not (tone or stays):  # a fault stays until it is closed
            QTimer.singleShot(_INFO_MS, notice, notice.dismiss)
        self.changed.emit()
        return notice

    def _dismiss(self, words: tuple[str, str]) -> None:
        for notice in self.on_show:
            if notice.words == words:
                notice.dismiss()

    def _forget_report(self) -> None:
        self.report = None


def _words(error: KvchatError) -> tuple[str, str]:
    return error.title, error.told
