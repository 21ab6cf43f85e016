"""Startup and event loop of the app. Imports only what the first frame needs.

Afterwards, `kvchat.application` imports the rest, which is several times as much.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import qasync
from PySide6.QtCore import QEvent, QUrl, Signal, Slot, qInstallMessageHandler
from PySide6.QtGui import QDesktopServices, QFileOpenEvent
from PySide6.QtWidgets import QApplication

from kvchat import APP_ID, __version__
from kvchat.chat.record.database import Database
from kvchat.errors import KvchatError
from kvchat.settings import Settings, load_settings
from kvchat.system.concurrency import LoopThreads, Worker
from kvchat.system.owner import InstanceLock, StartRequest, owner_of
from kvchat.system.paths import RESTORE_FOLDER, Paths, resolve_paths
from kvchat.text.language import _
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.base.accessibility import report_accessible_roles, set_ui_language
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import show_error_box
from kvchat.ui.sidebar.conversation_list import Arrangement

if TYPE_CHECKING:
    from kvchat.runtime import Runtime

_SHOW_WINDOW = StartRequest()
_FIRST_CHATS = 100  # more than a window shows; the others are loaded when the user scrolls
_SAVE_TIMEOUT_S = 10.0  # for remaining saves when the display is lost
_COMMAND_TIMEOUT_S = 5.0  # for a running command to release the data folder
_RETRY_INTERVAL_S = 0.1  # between attempts to own the data folder
_RESTART = -1  # returned instead of an exit code
# Modules without Qt that `kvchat.application` needs. They are imported in another thread.
_PRELOADED_MODULES = (
    *("kvchat.runtime", "kvchat.library.remote.starter", "kvchat.transfer.backup", "kvchat.text.markdown"),
    *("httpcore2", "anyio.streams.tls"),  # httpx2 imports these on the first request
)


def run(*, starter: bool, hidden: bool, request: StartRequest = _SHOW_WINDOW) -> int:
    """Run the application until it quits and return the exit code.

    If kvchat already runs, send `request` to it instead. With `starter`, download the starter model without asking if
    no model is chosen. With `hidden`, start in the tray.
    """
    paths = resolve_paths()
    qt = _KvchatApplication(sys.argv[:1])
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
            from kvchat.cli.owned import DataFolderInUse, show_running_window  # the first frame needs neither

            if show_running_window(paths, request):
                return 0
            if time.monotonic() > deadline and (owner := owner_of(paths.data)) is not None:
                raise DataFolderInUse(owner.name, owner.pid)
            time.sleep(_RETRY_INTERVAL_S)
    except KvchatError as error:
        qasync.run(show_error_box(error))
        return 1
    try:
        with asyncio.Runner(loop_factory=lambda: _Loop(qt)) as runner:
            code = runner.run(_run(qt, ownership, paths, settings, request, starter=starter, hidden=hidden))
            if cast(_Loop, runner.get_loop()).display_gone:
                return 1
    finally:
        ownership.release()
    if code == _RESTART:
        command = [argument for argument in sys.orig_argv if argument not in ("--hidden", "quick")]
        if sys.platform == "win32":  # where `os.execv` splits arguments at spaces
            subprocess.Popen(command)
            return 0
        os.execv(sys.executable, command)
    return code


class _KvchatApplication(QApplication):
    open_requested = Signal(StartRequest)  # from the macOS Finder
    quit_requested = Signal()  # from the macOS app menu, the Dock or the end of the session

    def __init__(self, arguments: list[str]) -> None:
        super().__init__(arguments)
        # macOS sends links here, but files as events
        QDesktopServices.setUrlHandler("kvchat", self, "open_link")  # type: ignore[arg-type]  # refuses bytes

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


class _Loop(qasync.QEventLoop):  # type: ignore[misc]  # it has no types
    """Event loop that keeps running when the display is lost and Qt quits, so that kvchat can save its data."""

    def __init__(self, qt: QApplication) -> None:
        super().__init__(qt)
        self.display_gone = self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        super().stop()

    def run_forever(self) -> int:
        self._stopped = False
        while True:
            result: int = super().run_forever()
            if self._stopped:
                return result
            if not self.display_gone:
                self.display_gone = True
                qInstallMessageHandler(lambda *_: None)  # Qt warns in every round
                message = _("The connection to the display was lost; kvchat is saving your chats and quitting.")
                print(message, file=sys.stderr)
                for seconds in (0.0, _SAVE_TIMEOUT_S):  # the second signal skips saves and dialogs
                    self.call_later(seconds, signal.raise_signal, signal.SIGTERM)


async def _run(
    qt: _KvchatApplication,
    ownership: InstanceLock,
    paths: Paths,
    settings: Settings,
    request: StartRequest,
    *,
    starter: bool,
    hidden: bool,
) -> int:
    loop, quitting = asyncio.get_running_loop(), asyncio.Event()
    loop.set_default_executor(LoopThreads())
    waiting = [request] if request.targets or request.quick else []
    handle: Callable[[StartRequest], None] = waiting.append  # until the window is ready
    qt.open_requested.connect(lambda request: handle(request))
    if (paths.data / RESTORE_FOLDER).exists():
        from kvchat.transfer.backup import finish_restore

        try:
            finish_restore(paths)
        except KvchatError as error:
            await show_error_box(error)
        settings = load_settings(paths.settings_file)  # the restored settings
        set_ui_language(settings.language)
    look = Look(qt, settings.theme)
    look.apply_settings(settings)
    window = MainWindow(look, paths.config)
    window.quit_requested.connect(quitting.set)
    qt.quit_requested.connect(window.quit)

    runtime: Runtime | None = None

    def on_quit_signal() -> None:
        """Quit. Close an open dialog during startup or on the second signal, which also skips saving."""
        is_second = quitting.is_set()
        quitting.set()
        if is_second and runtime is not None:
            runtime.cancel_saving()
        if (is_second or runtime is None) and (box := QApplication.activeModalWidget()) is not None:
            box.close()

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, on_quit_signal)
    hidden = hidden or request.quick
    drafts = _StartupDrafts(paths.database)
    try:
        if not hidden and (settings.model_path or settings.engine_url) and paths.database.exists():
            window.show()
            await drafts.show(window)
        from kvchat.cli.owned import CommandRunner

        commands = CommandRunner(paths, _("the kvchat window"))
        commands.show_window = lambda request: handle(request)
        ownership.listen(commands.serve_connection)
        for name in _PRELOADED_MODULES:
            await asyncio.to_thread(importlib.import_module, name)
        from kvchat.application import Application, open_or_repair

        async with commands.runtime_lock:
            runtime = await open_or_repair(paths, settings, drafts.close)
            if runtime is not None:
                commands.open_runtime = runtime
    except KvchatError as error:
        await drafts.close()
        await show_error_box(error)
        return 1
    if runtime is None:
        return 1
    app = Application(runtime, look, window, quitting)
    try:
        await drafts.close()
        await app.start(starter=starter, hidden=hidden)
        handle = app.start_requests.handle
        for request in waiting:
            handle(request)
        await quitting.wait()
    finally:
        ownership.stop_listening()
        await commands.close()
        await app.close()
    return _RESTART if app.should_restart else 0


class _StartupDrafts:
    """Shows chats and saves drafts until the runtime has opened the database.

    Database errors are ignored here, because the runtime reports them.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._worker = file, Worker("first-drafts")
        self._database: Database | None = None
        self._unsaved: dict[str, str] = {}
        self._writing: asyncio.Task[None] | None = None

    async def show(self, window: MainWindow) -> None:
        run, newest_first = self._worker.run, window.sidebar.arrangement == Arrangement()
        with contextlib.suppress(KvchatError):
            self._database = database = await run(Database, self._file)
            chats = await (run(database.newest, _FIRST_CHATS) if newest_first else run(database.conversations))
            window.startup_drafts.changed.connect(self._save)
            window.show_initial_chats(chats, await run(database.draft_texts))

    def _save(self, conversation_id: str, text: str) -> None:
        self._unsaved[conversation_id] = text
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        database, self._database = self._database, None
        if database is not None:
            await self._worker.run(database.close)
        self._worker.close()

    async def _write(self) -> None:
        while self._unsaved and self._database is not None:
            drafts, self._unsaved = self._unsaved, {}
            with contextlib.suppress(KvchatError):
                await self._worker.run(self._database.store_drafts, drafts)
