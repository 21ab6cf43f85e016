"""Connection of runtime, window and tray after the first frame, and shutdown."""

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable
from typing import Any

from PySide6.QtCore import QTimer

from kvchat.chat.events import Event, SettingsChanged
from kvchat.chat.record.database_file import ChatsDamaged
from kvchat.errors import KvchatError
from kvchat.library.remote.github import watch_updates
from kvchat.runtime import Runtime, open_runtime
from kvchat.settings import Settings
from kvchat.system.owner import StartRequest
from kvchat.system.paths import Paths
from kvchat.system.session_bus import SessionBus
from kvchat.text.language import _, join_sentences
from kvchat.transfer.backup import repair
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.app.start_requests import StartRequestHandler
from kvchat.ui.app.tray import ReplyNotifier, Tray, close_with_progress
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import ask_in_box, show_error_box
from kvchat.ui.settings.settings_window import SettingsWindow

_TIDY_INTERVAL_MS = 2_000


async def open_or_repair(paths: Paths, settings: Settings, release: Callable[[], Awaitable[None]]) -> Runtime | None:
    """Open the runtime and offer to repair damaged chats; return None if the user declines. Raises KvchatError.

    `release` closes the database that the startup window has open.
    """
    try:
        return await open_runtime(paths, settings)
    except ChatsDamaged as error:
        message = _("The repair recovers all readable messages and adds those from the newest automatic backup.")
        await release()
        if not await ask_in_box(
            error.title,
            join_sentences(message, _("kvchat keeps the damaged file under another name.")),
            error.detail,
            _("Repair"),
        ):
            return None
        repaired = await asyncio.to_thread(repair, paths)
        if repaired is None:
            raise
        await ask_in_box(repaired.title, repaired.text, "", "")
        return await open_runtime(paths, settings)


class Application:
    def __init__(self, runtime: Runtime, look: Look, window: MainWindow, quitting: asyncio.Event) -> None:
        self.quitting = quitting
        self.should_restart = False  # after quitting
        self._runtime, self._look = runtime, look
        self._bus = SessionBus()
        self._language = runtime.settings.language
        self._window = window
        window.join(runtime)
        window.quit_requested.connect(self.quitting.set)
        self._tray = Tray(runtime, window)
        self._reply_notifier = ReplyNotifier(runtime, window, self._tray, self._bus)
        window.transfer.restart_requested.connect(self._restart)
        self.start_requests = StartRequestHandler(runtime, window, self._look, self._bus)
        self._tray.quick_requested.connect(lambda: self.start_requests.handle(StartRequest(quick=True)))
        self._unsubscribe = runtime.events.subscribe(self._handle_event)

    async def start(self, *, starter: bool, hidden: bool) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._handle_exception)
        self._tidying = QTimer(interval=_TIDY_INTERVAL_MS)
        self._tidying.timeout.connect(lambda: release_cancelled_timers(loop))
        self._tray.icon.show()
        if not hidden:
            self._window.show()
        elif not (self._tray.icon.isVisible() and self._tray.icon.isSystemTrayAvailable()):
            self._window.showMinimized()  # the window stays reachable until a tray appears
        await self._window.start()
        state, wanted = self._runtime.paths.state, lambda: self._runtime.settings.update_notice
        self._window.runner.start(watch_updates(state, wanted, self._window.notices.notify_new_version))
        gc.freeze()  # else each full collection would scan all Qt classes and block the app
        self._tidying.timeout.connect(collect_garbage)
        self._tidying.start()
        await self._runtime.start()
        self.start_requests.update_global_key()
        if starter and not self._runtime.settings.model_path:
            self._window.first_start.fetch_starter()

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, SettingsChanged) and self._runtime.settings.language != self._language:
            self._language = self._runtime.settings.language
            message = _("The new language takes effect after a restart")
            settings = self._window.findChild(SettingsWindow)
            above = settings if settings is not None and settings.isVisible() else self._window
            above.notices.notify_with_action(message, _("Restart kvchat"), self._restart, is_permanent=True)

    async def close(self) -> None:
        """Hide the window immediately, then finish saving and stop the engine."""
        self._unsubscribe()
        self._window.hide()
        for part in (self.start_requests, self._reply_notifier, self._tray):
            part.close()  # before the messages are stored, which may take long
        try:
            await self._window.finish()
        except KvchatError as error:
            await show_error_box(error)  # the user may have freed disk space
            with contextlib.suppress(KvchatError):
                await self._window.chat.drafts.save()
        await self._bus.close()
        await close_with_progress(self._runtime)

    def _restart(self) -> None:
        self.should_restart = True
        self.quitting.set()

    def _handle_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            self._window.notices.show_bug(error)
        else:
            loop.default_exception_handler(context)


def release_cancelled_timers(loop: asyncio.AbstractEventLoop) -> int:
    """Delete cancelled timers, which qasync keeps until they are due, and return their number.

    Each chunk of a reply sets a timeout, so cancelled timers would pile up for minutes. qasync stores them in private
    attributes (https://github.com/CabbageDevelopment/qasync/blob/v0.28.0/src/qasync/__init__.py); if a version lacks
    them, this function does nothing.
    """
    timers = getattr(loop, "_timer", None)
    handles = getattr(timers, "_SimpleTimer__callbacks", None)
    if timers is None or handles is None:
        return 0
    cancelled = [number for number, handle in handles.items() if handle.cancelled()]
    for number in cancelled:
        timers.killTimer(number)
        del handles[number]
    return len(cancelled)


def collect_garbage() -> None:
    """Collect garbage as Python would, but in the window's thread: Qt may crash if another one deletes a widget."""
    for generation in (2, 1, 0):
        if gc.get_count()[generation] > gc.get_threshold()[generation]:
            gc.collect(generation)
            return
