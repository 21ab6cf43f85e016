"""Event loop, and startup after the first frame: shows chats, keeps what the user types, and imports the rest."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import signal
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

import qasync
from PySide6.QtCore import qInstallMessageHandler
from PySide6.QtWidgets import QApplication

from kvchat.chat.record.database import Database
from kvchat.cli.terminal import set_signal_handler
from kvchat.errors import KvchatError
from kvchat.settings import Settings
from kvchat.system.concurrency import LoopThreads, Worker
from kvchat.system.owner import InstanceLock
from kvchat.system.paths import Paths
from kvchat.text.language import _
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.dialogs.confirm import show_error_box

if TYPE_CHECKING:
    from kvchat.app import KvchatApplication
    from kvchat.runtime import Runtime

RESTART = -1  # returned instead of an exit code
_SWITCH_INTERVAL_S = 0.0005  # a thread that loads 10,000 chats delays each of the window's Qt calls by this
_SAVE_TIMEOUT_S = 10.0  # for remaining saves when the display is lost
# Modules without Qt that `kvchat.application` needs. They are imported in another thread.
_PRELOADED_MODULES = (
    *("kvchat.runtime", "kvchat.library.remote.starter", "kvchat.transfer.backup", "kvchat.text.markdown"),
    *("httpcore2", "anyio.streams.tls"),  # httpx2 imports these on the first request
)


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


def run_loop(qt: QApplication, running: Coroutine[Any, Any, int]) -> int:
    """Run the event loop until `running` ends; return its exit code, or 1 if the display was lost."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=lambda: _Loop(qt)) as runner:
        code = runner.run(running)
        return 1 if cast(_Loop, runner.get_loop()).display_gone else code


async def run(
    qt: KvchatApplication,
    window: MainWindow,
    ownership: InstanceLock,
    paths: Paths,
    settings: Settings,
    database: Database | None,
    *,
    starter: bool,
    hidden: bool,
) -> int:
    """Run the app until it quits and return the exit code, or RESTART."""
    loop, quitting = asyncio.get_running_loop(), asyncio.Event()
    loop.set_default_executor(LoopThreads())
    window.quit_requested.connect(quitting.set)
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
        try:
            loop.add_signal_handler(number, on_quit_signal)
        except NotImplementedError:  # Windows
            set_signal_handler(lambda _number: loop.call_soon_threadsafe(on_quit_signal))
    if qt.is_quitting:  # requested before
        quitting.set()
    drafts = _StartupDrafts(window, database)
    try:
        from kvchat.cli.owned import CommandRunner

        commands = CommandRunner(paths, _("the kvchat window"))
        commands.show_window = qt.open_requested.emit
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
    app = Application(runtime, window.look, window, quitting)
    try:
        await drafts.close()
        await app.start(starter=starter, hidden=hidden)
        qt.open_requested.connect(app.start_requests.handle)
        for request in tuple(qt.waiting):
            app.start_requests.handle(request)
        await quitting.wait()
    finally:
        ownership.stop_listening()
        await commands.close()
        await app.close()
    return RESTART if app.should_restart else 0


class _StartupDrafts:
    """Saves drafts until the runtime has opened the database, which reports the errors that are ignored here."""

    def __init__(self, window: MainWindow, database: Database | None) -> None:
        self._database, self._worker = database, Worker("first-drafts")
        self._unsaved: dict[str, str] = {}
        self._writing: asyncio.Task[None] | None = None
        window.startup_drafts.changed.connect(self._save)
        window.startup_drafts.emit_changed()  # typed before

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
