"""Quitting: asks before work is cut short, and shows progress while large saves finish."""

from __future__ import annotations

import asyncio

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QDialog, QSystemTrayIcon, QWidget

from kvchat.library.remote.downloads import RUNS
from kvchat.runtime import Runtime
from kvchat.session.slots import Unfinished
from kvchat.ui.app.window_place import WindowMemory
from kvchat.ui.base.building import STRETCH, button, column, label, row
from kvchat.ui.controllers.sidebar import SidebarController
from kvchat.ui.controllers.transfer import TransferController
from kvchat.ui.dialogs.confirm import ConfirmDialog, confirm, fit_height
from kvchat.ui.models.first_start import FirstStart
from kvchat.words.language import N_, _, sentences, several

_NO_TRAY = N_(
    "Closing the window quits kvchat because this desktop has no system tray. On GNOME, the "
    "extension “AppIndicator and KStatusNotifierItem Support” adds one."
)
_LETTERS = 56  # wide
SHOWN_AFTER_S, UPDATED_EVERY_S = 1.0, 0.5


class QuitController(QObject):
    agreed = Signal()
    hidden_first_time = Signal()  # closed to the tray for the first time

    def __init__(
        self,
        runtime: Runtime,
        conversations: SidebarController,
        transfer: TransferController,
        first_start: FirstStart,
        window: QWidget,
        memory: WindowMemory,
    ) -> None:
        super().__init__(window)
        self.keep_in_tray = False  # set by the Tray
        self._memory = memory
        self._runtime, self._list = runtime, conversations
        self._transfer, self._first_start, self._window = transfer, first_start, window
        self.question: ConfirmDialog | None = None

    def ask(self, why: str = "") -> None:
        """Quit; ask first if that ends something. why: another reason to ask"""
        words = [*filter(None, (why,)), *self._what_ends()]
        if not words:
            self.agreed.emit()
        elif self.question is None:
            self._window.show()
            self.question = confirm(
                self._window, _("Quit now?"), sentences(*words), _("Quit"), self.agreed.emit, keep=_("Keep running")
            )
            self.question.finished.connect(self._forget)

    def close_window(self) -> None:
        if not (self.keep_in_tray and QSystemTrayIcon.isSystemTrayAvailable()):
            self.ask(_(_NO_TRAY) if self.keep_in_tray and self._is_first("told_about_no_tray") else "")
            return
        self._window.hide()
        if self._is_first("told_about_tray"):
            self.hidden_first_time.emit()

    def _is_first(self, time: str) -> bool:
        first = not self._memory.is_true(time, False)
        self._memory.keep(**{time: True})
        return first

    def _what_ends(self) -> list[str]:
        ends = [
            _("A reply is being generated in “{title}”. The text so far is saved.", title=self._list.title(chat))
            for chat in self._runtime.chat.answering
        ]
        if count := sum(download.state in RUNS for download in self._runtime.models.downloads.all()):
            ends.append(
                several(
                    count,
                    "{count} model is being downloaded. You can resume the download later.",
                    "{count} models are being downloaded. You can resume the downloads later.",
                )
            )
        if self._first_start.is_fetching:
            ends.append(_("The starter model is being downloaded."))
        if self._runtime.engines.fetching is not None:
            ends.append(_("An engine is being downloaded. You can resume the download later."))
        if self._runtime.chat.library.reading:
            ends.append(_("Documents are being processed for the library. The progress so far is saved."))
        if self._runtime.door.under_way:
            ends.append(_("A reply to an app is being generated and will be cut off."))
        ends += [
            _("{work} will be canceled, and nothing will be saved.", work=words.rstrip("…"))
            for words in self._transfer.going_on
        ]
        return ends

    def _forget(self) -> None:
        self.question = None


class FinishingBox(QDialog):
    def __init__(self) -> None:
        super().__init__(None, Qt.WindowType.Dialog | Qt.WindowType.CustomizeWindowHint | Qt.WindowType.WindowTitleHint)
        self.setWindowTitle("kvchat")
        self.title = label(_("Saving chat memory"), "title", wraps=True)
        self.words = label(kind="muted", wraps=True)
        tip = _("The last message will be reprocessed next time. No messages are lost.")
        self.leave = button(_("Quit now"), tip=tip)
        parts = self.title, self.words, row(STRETCH, self.leave)
        column(*parts, on=self, spacing=10, margins=(24, 22, 24, 18))

    def say(self, unfinished: Unfinished | None) -> None:
        self.words.setText(unfinished.words if unfinished else _("Stopping the engine"))
        fit_height(self, _LETTERS)

    def reject(self) -> None:
        """Ignore Escape."""


async def close_and_tell(runtime: Runtime) -> None:
    """Close the runtime. If it takes long, a box says why, and `Quit now` ends it."""
    closing, box = asyncio.ensure_future(runtime.close()), None
    await asyncio.wait({closing}, timeout=SHOWN_AFTER_S)
    while not closing.done():
        if box is None and runtime.unfinished:
            box = FinishingBox()
            box.leave.clicked.connect(runtime.give_up_saving)
            box.show()
        if box is not None:
            box.say(runtime.unfinished)
        await asyncio.wait({closing}, timeout=UPDATED_EVERY_S)
    if box is not None:
        box.accept()
    await closing
