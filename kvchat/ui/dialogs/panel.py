"""Notices, dialogs with a report to copy, and the base class of secondary windows."""

import asyncio
import platform
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from PySide6.QtCore import QEvent, QPoint, QSize, Qt, QTimer, QUrl, Signal
from PySide6.QtGui import QDesktopServices, QFont, QGuiApplication, QHideEvent, QShowEvent
from PySide6.QtWidgets import QDialog, QFrame, QPushButton, QWidget

from kvchat import __version__
from kvchat.chat.events import Event
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.text.language import N_, _, format_number, join_sentences
from kvchat.text.safe_text import redact
from kvchat.ui.base.accessibility import announce
from kvchat.ui.base.building import STRETCH, button, column, label, plain_text, row, styled, tool_button
from kvchat.ui.base.tasks import ErrorHandler, TaskRunner
from kvchat.ui.base.theme import Look, page_font
from kvchat.ui.widgets.layouts import ShrinkingPage, allow_line_breaks, max_window_size

_MAX_NOTICES = 3
_NOTICE_MS = 12_000
_MAX_UNDOS = 20
_MIN_REPORT_LETTERS = 48  # minimum width of a report in average characters
_BUG_TEXT = N_(
    "kvchat ran into an unexpected error. Your chats are safe on disk. If you report it, include the "
    "text below. Check it first: it may contain text you wrote."
)


class NoticeView(QFrame):
    dismissed = Signal()

    def __init__(self, look: Look, title: str, detail: str, tone: str) -> None:
        super().__init__()
        self.texts = (title, detail)
        self.on_click: Callable[[], object] | None = None
        styled(self, "notice", tone).setAccessibleName(join_sentences(title, detail))
        picture = label()
        glyph = look.icon("warning", "warn") if tone == "warn" else look.icon("info", "accent")
        picture.setPixmap(glyph.pixmap(QSize(1, 1) * look.px(18)))
        kinds = (title, "strong" if tone else ""), (allow_line_breaks(detail), "muted")
        lines = [label(text, kind, wraps=True, selectable=True) for text, kind in kinds if text]
        self.close_button = tool_button(_("Close this notice"), self.dismiss, icon=look.icon("close"))
        parts = picture, (column(*lines, spacing=2), 1), self.close_button
        self._row = row(*parts, on=self, spacing=10, margins=(12, 6, 6, 6))

    def add_button(self, text: str, on_click: Callable[[], object]) -> None:
        self.on_click = on_click
        result = button(text, lambda: on_click(), "link")
        result.clicked.connect(self.dismiss)
        self._row.insertWidget(self._row.count() - 1, result)

    def dismiss(self) -> None:
        self.hide()
        self.setParent(None)
        self.deleteLater()
        self.dismissed.emit()


class Notices(ShrinkingPage):
    """The notices on a page, newest last. A text that is already shown is not shown twice."""

    changed = Signal()  # notice added or removed

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.report: BugReportDialog | None = None
        self.undos: list[Callable[[], object]] = []  # newest last
        self._column = column(on=self.content, spacing=6, margins=0)

    @property
    def visible_notices(self) -> list[NoticeView]:
        return self.findChildren(NoticeView)

    def notify(self, title: str, detail: str = "") -> None:
        self._add(title, detail)

    def notify_with_action(
        self, title: str, action: str, on_click: Callable[[], object], detail: str = "", *, is_permanent: bool = False
    ) -> None:
        """Show a notice with a button. It disappears after a while unless it `is_permanent`."""
        self._dismiss((title, detail))
        if (notice := self._add(title, detail, is_permanent=is_permanent)) is not None:
            notice.add_button(action, on_click)

    def notify_new_version(self, number: str, page: str) -> None:
        title = _("kvchat {number} is available", number=number)
        self.notify_with_action(title, _("Show"), lambda: QDesktopServices.openUrl(QUrl(page)), is_permanent=True)

    def notify_file_saved(self, title: str, target: Path) -> None:
        folder = QUrl.fromLocalFile(str(target.parent))
        self.notify_with_action(title, _("Open folder"), lambda: QDesktopServices.openUrl(folder), str(target))

    def offer_undo(self, title: str, undo: Callable[[], object]) -> None:
        def undo_once() -> None:
            if undo_once in self.undos:
                self.undos.remove(undo_once)
                undo()

        self.undos = [*self.undos, undo_once][-_MAX_UNDOS:]
        self.notify_with_action(title, _("Undo"), undo_once)

    def undo_last(self) -> None:
        if self.undos:
            undo = self.undos[-1]
            for notice in self.visible_notices:
                if notice.on_click is undo:
                    notice.dismiss()
            undo()

    def show_error(self, error: KvchatError) -> None:
        self._add(error.title, error.explanation, "warn")

    def withdraw_error(self, error: KvchatError) -> None:
        self._dismiss((error.title, error.explanation))

    def show_bug(self, error: BaseException) -> None:
        text = redact("".join(traceback.format_exception(error)))
        if self.report is not None:
            self.report.text.appendPlainText(f"\n{text}")
            return
        self.report = BugReportDialog(self._look, text, self.window())
        self.report.finished.connect(self._forget_report)
        self.report.open()

    def _add(self, title: str, detail: str, tone: str = "", *, is_permanent: bool = False) -> NoticeView | None:
        if any(notice.texts == (title, detail) for notice in self.visible_notices):
            return None
        for old in self.visible_notices[: max(0, len(self.visible_notices) - _MAX_NOTICES + 1)]:
            old.dismiss()
        notice = NoticeView(self._look, title, detail, tone)
        self._column.addWidget(notice)
        notice.show()
        announce(notice, notice.accessibleName(), is_urgent=tone == "warn")
        notice.dismissed.connect(self.changed)
        if not (tone or is_permanent):  # errors stay until closed
            QTimer.singleShot(_NOTICE_MS, notice, notice.dismiss)
        self.changed.emit()
        return notice

    def _dismiss(self, texts: tuple[str, str]) -> None:
        for notice in self.visible_notices:
            if notice.texts == texts:
                notice.dismiss()

    def _forget_report(self) -> None:
        self.report = None


class FittingDialog(QDialog):
    """Dialog that cannot become smaller than its contents need, unless the screen is smaller."""

    min_size = QSize(0, 0)  # lower limit in pixels, even if the contents need less

    def event(self, event: QEvent) -> bool:
        may_not_fit = event.type() in (
            QEvent.Type.LayoutRequest,
            QEvent.Type.Resize,
        )  # other events may delete this dialog
        done = super().event(event)
        if may_not_fit and self.minimumWidth() < self.maximumWidth():
            self.update_minimum_size()
        return done

    def update_minimum_size(self) -> None:
        size = self.min_size
        if (layout := self.layout()) is not None:
            needed = layout.totalMinimumSize()
            if layout.hasHeightForWidth():
                needed.setHeight(layout.totalMinimumHeightForWidth(max(self.width(), needed.width())))
            size = size.expandedTo(needed)
        self.setMinimumSize(size.boundedTo(max_window_size()))


class ReportDialog(FittingDialog):
    def __init__(self, title: str, explanation: str, text: str, font: QFont, parent: QWidget | None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(title)
        self.min_size = QSize(self.fontMetrics().averageCharWidth() * _MIN_REPORT_LETTERS, 0)
        self.resize(620, 420)
        self.text = plain_text(_("Report"), font, text)
        copy = QGuiApplication.clipboard().setText
        self.copy_button = button(_("Copy"), lambda: copy(self.text.toPlainText()), name=_("Copy the report"))
        close = button(_("Close"), self.close, name=_("Close the report"))
        close.setDefault(True)
        parts = label(explanation, wraps=True), (self.text, 1), row(STRETCH, self.copy_button, close)
        self.column = column(*parts, on=self, spacing=12, margins=(20, 18, 20, 16))


class BugReportDialog(ReportDialog):
    def __init__(self, look: Look, text: str, parent: QWidget | None = None) -> None:
        # In English: the report is for the developers.
        versions = f"kvchat {__version__}\n{platform.platform()}\nPython {platform.python_version()}"
        font = page_font(look.fonts.mono, look.fonts.small)
        super().__init__(_("Unexpected error"), _(_BUG_TEXT), f"{versions}\n\n{text}", font, parent)
        self.copy_button.setDefault(True)


class ImportReportDialog(ReportDialog):
    def __init__(self, look: Look, title: str, summary: str, problems: Sequence[str], parent: QWidget) -> None:
        failed = _("One item was not imported, or only in part:")
        if len(problems) > 1:
            failed = _("{count} items were not imported, or only in part:", count=format_number(len(problems)))
        font, text = page_font(look.fonts.family, look.fonts.base), "\n".join(problems)
        super().__init__(_("Import"), join_sentences(summary, failed), text, font, parent)
        self.setAccessibleName(title)
        self.column.insertWidget(0, label(title, "title"))


_T = TypeVar("_T")


class Panel(FittingDialog):
    """Secondary window. It has its own `notices`, as it may cover the main window; subclasses add them to a layout."""

    close_button: QPushButton | None = None  # gets the focus first: a list would open with a focus ring

    def __init__(
        self,
        runtime: Runtime,
        look: Look,
        runner: TaskRunner,
        title: str,
        parent: QWidget | None = None,
        *,
        size: tuple[int, int] = (0, 0),
        min_size: tuple[int, int] = (0, 0),
    ) -> None:
        """`size`, `min_size`: pixels at 100 % text size. Both grow with the text as far as the screen allows."""
        super().__init__(parent)
        self.setWindowTitle(title)
        self.setAccessibleName(title)
        self._runtime, self.runner = runtime, runner
        self.notices = Notices(look)
        self._look, self._min_size = look, min_size
        self.resize(self._scaled(size))
        look.changed.connect(self._rescale)  # a lambda would keep a closed window alive
        self._rescale()
        self._position: QPoint | None = None  # the frame's position when the window was last closed
        self._subscriptions: list[Callable[[], Callable[[], None]]] = []
        self._unsubscribe: list[Callable[[], None]] = []
        self.subscribe_while_open(runtime.events.subscribe, self._handle_event)

    def _handle_event(self, event: Event) -> None:
        """Handle an event of the runtime. This is called only while the window is open."""

    def bring_forward(self) -> None:
        self.show()
        self.raise_()
        self.activateWindow()

    def subscribe_while_open(self, subscribe: Callable[[_T], Callable[[], None]], handler: _T) -> None:
        """Subscribe `handler` whenever the window is open. `subscribe` must return a function that unsubscribes."""
        self._subscriptions.append(lambda: subscribe(handler))
        if self._unsubscribe:  # it is open
            self._unsubscribe.append(subscribe(handler))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._unsubscribe:
            self._unsubscribe = [subscribe() for subscribe in self._subscriptions]
        if self.close_button is not None:
            self.close_button.setFocus()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        while self._unsubscribe:
            self._unsubscribe.pop()()

    def run(self, coroutine: Coroutine[Any, Any, Any], on_error: ErrorHandler | None = None) -> asyncio.Task[Any]:
        """Run a coroutine as a task. Its error is shown here or, if this window is closed, in the main window."""
        return self.runner.start(coroutine, on_error or self.show_error)

    def show_error(self, error: KvchatError) -> None:
        if self.isVisible():
            self.notices.show_error(error)
        else:
            self.runner.on_error(error)

    def _rescale(self) -> None:
        self.min_size = self._scaled(self._min_size)
        self.update_minimum_size()

    def _scaled(self, size: tuple[int, int]) -> QSize:
        return QSize(*map(self._look.px, size)).boundedTo(max_window_size())

    def setVisible(self, visible: bool) -> None:
        """Fit the window to the screen and restore its position.

        The position of the frame is restored here, because Qt would apply it to the window's contents.
        """
        for child in self.findChildren(QPushButton):
            child.setAutoDefault(False)  # Enter in a field must not press it
        if visible and not self.isVisible():
            self.resize(self.size().boundedTo(max_window_size()))
            if self._position is not None:
                self.move(self._position)
        elif not visible and self.isVisible():
            handle = self.windowHandle()
            self._position = handle.framePosition() if handle else self.pos()
        super().setVisible(visible)
