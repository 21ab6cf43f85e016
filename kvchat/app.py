"""Startup of the app until the first frame. Imports only what that needs, not even asyncio."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

from PySide6.QtCore import QEvent, QUrl, Signal, Slot
from PySide6.QtGui import QDesktopServices, QFileOpenEvent
from PySide6.QtWidgets import QApplication

from kvchat import APP_ID, __version__
from kvchat.chat.record.database import Database
from kvchat.cli.terminal import set_signal_handler
from kvchat.errors import KvchatError
from kvchat.settings import load_settings
from kvchat.system.owner import InstanceLock, StartRequest, owner_of
from kvchat.system.paths import RESTORE_FOLDER, resolve_paths
from kvchat.text.language import _
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.accessibility import report_accessible_roles, set_ui_language
from kvchat.ui.base.theme import Look
from kvchat.ui.sidebar.conversation_list import Arrangement

_SHOW_WINDOW = StartRequest()
_FIRST_CHATS = 100  # more than a window shows; the others are loaded when the user scrolls
_FIRST_FRAME_S, _POLL_S = 0.3, 0.005  # longest wait for the first frame
_COMMAND_TIMEOUT_S = 5.0  # for a running command to release the data folder
_RETRY_INTERVAL_S = 0.1  # between attempts to own the data folder


def run(*, starter: bool, hidden: bool, request: StartRequest = _SHOW_WINDOW) -> int:
    """Run the application until it quits and return the exit code.

    If kvchat already runs, send `request` to it instead. With `starter`, download the starter model without asking if
    no model is chosen. With `hidden`, start in the tray.
    """
    paths = resolve_paths()
    qt = KvchatApplication(sys.argv[:1])
    qt.setApplicationName("kvchat")
    qt.setApplicationVersion(__version__)
    qt.setDesktopFileName(APP_ID)
    qt.setQuitOnLastWindowClosed(False)
    report_accessible_roles()
    settings = load_settings(paths.settings_file)
    set_ui_language(settings.language)
    ownership = InstanceLock(paths.data, _("the kvchat window"))
    deadline = time.monotonic() + _COMMAND_TIMEOUT_S
    try:
        paths.ensure()
        while not ownership.claim():
            from kvchat.cli.owned import DataFolderInUse, show_running_window

            if show_running_window(paths, request):
                return 0
            if time.monotonic() > deadline and (owner := owner_of(paths.data)) is not None:
                raise DataFolderInUse(owner.name, owner.pid)
            time.sleep(_RETRY_INTERVAL_S)
    except KvchatError as error:
        _show_error(error)
        return 1
    if (paths.data / RESTORE_FOLDER).exists():
        from kvchat.transfer.backup import finish_restore

        try:
            finish_restore(paths)
        except KvchatError as error:
            _show_error(error)
        settings = load_settings(paths.settings_file)  # the restored settings
        set_ui_language(settings.language)
    look = Look(qt, settings.theme)
    look.apply_settings(settings)
    style_sheet = qt.styleSheet()
    qt.setStyleSheet("")  # else Qt would style each widget again and again while the window is built
    window = MainWindow(look, paths.config)
    qt.setStyleSheet(style_sheet)
    qt.quit_requested.connect(window.quit)
    window.quit_requested.connect(qt.note_quit)
    set_signal_handler(qt.note_quit)  # Qt would swallow an exception
    hidden, database = hidden or request.quick, None
    if request.targets or request.quick:
        qt.open_requested.emit(request)
    if not hidden and (settings.model_path or settings.engine_url) and paths.database.exists():
        with contextlib.suppress(KvchatError):  # reported when the runtime opens the database
            database = Database(paths.database)
            newest_first = window.sidebar.arrangement == Arrangement()
            chats = database.newest(_FIRST_CHATS) if newest_first else database.conversations()
            window.show_initial_chats(chats, database.draft_texts())
        window.show()
        latest, is_usable = time.monotonic() + _FIRST_FRAME_S, False
        while not is_usable and time.monotonic() < latest:
            is_usable = window.isActiveWindow() and window.windowHandle().isExposed()
            time.sleep(_POLL_S)
            qt.processEvents()
    from kvchat import startup  # imports what the first frame does not need

    try:
        app = startup.run(qt, window, ownership, paths, settings, database, starter=starter, hidden=hidden)
        code = startup.run_loop(qt, app)
    finally:
        ownership.release()
    if code == startup.RESTART:
        command = [argument for argument in sys.orig_argv if argument not in ("--hidden", "quick")]
        if sys.platform == "win32":  # where `os.execv` splits arguments at spaces
            subprocess.Popen(command)
            return 0
        os.execv(sys.executable, command)
    return code


def _show_error(error: KvchatError) -> None:
    import qasync

    from kvchat.ui.dialogs.confirm import show_error_box

    qasync.run(show_error_box(error))


class KvchatApplication(QApplication):
    open_requested = Signal(StartRequest)  # from the macOS Finder
    quit_requested = Signal()  # from the macOS app menu, the Dock or the end of the session

    def __init__(self, arguments: list[str]) -> None:
        super().__init__(arguments)
        self.waiting: list[StartRequest] = []  # until the window is ready
        self.open_requested.connect(self.waiting.append)
        self.is_quitting = False
        # macOS sends links here, but files as events
        QDesktopServices.setUrlHandler("kvchat", self, "open_link")  # type: ignore[arg-type]  # refuses bytes

    def note_quit(self, _signal: int = 0) -> None:
        self.is_quitting = True

    @Slot(QUrl)
    def open_link(self, url: QUrl) -> None:
        self.open_requested.emit(StartRequest((url.toString(),)))

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QFileOpenEvent):
            self.open_link(event.url())
        elif event.type() is QEvent.Type.Quit:  # Qt would close the window, which hides it, and end the event loop
            self.quit_requested.emit()
        else:
            return super().event(event)
        return True
