"""The tray icon with its menu, notifications of replies that end while kvchat is in the background, and quitting."""

from __future__ import annotations

import asyncio
import html
import sys
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, cast

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication, QDialog, QMenu, QSystemTrayIcon

from kvchat import APP_ID
from kvchat.chat.events import CallsChanged, EngineChanged, Event, ReplyFinished, TurnFailed
from kvchat.engine.api.connection import EngineState
from kvchat.library.remote.downloads import ACTIVE_STATES
from kvchat.runtime import Runtime
from kvchat.session.slots import PendingSave
from kvchat.system.session_bus import BusUnavailable, Service, SessionBus
from kvchat.text.formatting import format_rough_duration, one_line
from kvchat.text.language import N_, _, join_parts, join_sentences, plural
from kvchat.ui.base.building import STRETCH, button, column, label, row
from kvchat.ui.base.icons import LogoState, tray_icon
from kvchat.ui.controllers.views import Controller
from kvchat.ui.dialogs.confirm import ConfirmDialog, confirm, fit_to_text
from kvchat.ui.transcript.call_card import tool_label

if TYPE_CHECKING:
    from kvchat.ui.app.main_window import MainWindow

_RECENT_CHATS, _MAX_TITLE_LETTERS = 5, 40  # chats in the menu, and letters of their titles

_LOGOS = {
    EngineState.STARTING: LogoState.LOADING,
    EngineState.LOADING: LogoState.LOADING,
    EngineState.READY: LogoState.READY,
    EngineState.FAILED: LogoState.FAILED,
}


class Tray(Controller):
    """The tray icon and its menu. While a tray exists, closing the window keeps the app running."""

    quick_requested = Signal()  # open the quick window

    def __init__(self, runtime: Runtime, window: MainWindow) -> None:
        super().__init__(runtime, window, window)
        self._window = window
        self._shown_icon: tuple[LogoState, str] | None = None
        self.icon = QSystemTrayIcon(self)
        self.menu = menu = QMenu()
        self.open_action = menu.addAction(_("Open kvchat"), window.raise_window)
        self.hide_action = menu.addAction(_("Hide"), window.hide)
        self.new_chat_action = menu.addAction(_("New chat"), lambda: window.show_chat(None))
        menu.addAction(_("Quick question"), self.quick_requested.emit)
        self.recent: list[QAction] = []  # recently used chats
        self._below_recent = menu.addSeparator()
        start = window.runner.start
        self.start_action = menu.addAction(_("Start engine"), lambda: start(runtime.start_engine()))
        self.stop_action = menu.addAction(_("Stop engine"), lambda: start(runtime.stop_engine()))
        self.restart_action = menu.addAction(_("Restart engine"), lambda: start(runtime.restart_engine()))
        menu.addSeparator()
        self.settings_action = menu.addAction(_("Settings…"), lambda: window.side_windows.open_settings())
        self.quit_action = menu.addAction(_("Quit"), window.quit_controller.ask)
        menu.aboutToShow.connect(self.refresh)
        self.icon.setContextMenu(menu)
        if sys.platform == "darwin":  # a click on this icon opens its menu, and one on the Dock icon activates the app
            cast(QApplication, QApplication.instance()).applicationStateChanged.connect(self._show_if_hidden)
        else:
            self.icon.activated.connect(self._toggle_window)
        window.quit_controller.keep_in_tray = True
        window.shown_changed.connect(self.refresh)
        window.quit_controller.hidden_first_time.connect(self._notify_in_tray)
        window.chat.conversations.content_changed.connect(self._show_recent)
        self.refresh()

    def close(self) -> None:
        if not self._closed:
            # Shutdown may still emit chats.
            self._window.chat.conversations.content_changed.disconnect(self._show_recent)
            self._window.shown_changed.disconnect(self.refresh)
            self.icon.hide()
            self.menu.deleteLater()
        super().close()

    @property
    def logo(self) -> LogoState:
        state = self._runtime.engine.status.state
        is_busy = state is EngineState.READY and self._runtime.chat.answering_chats
        return LogoState.BUSY if is_busy else _LOGOS.get(state, LogoState.STOPPED)

    def refresh(self) -> None:
        state, logo = self._runtime.engine.status.state, self.logo
        tooltip = join_parts(("kvchat", _(state.value), self._runtime.model.label or ""))
        if (logo, tooltip) != self._shown_icon:
            self._shown_icon = (logo, tooltip)
            self.icon.setIcon(tray_icon(logo))
            self.icon.setToolTip(tooltip)
        self.hide_action.setVisible(self._window.isVisible())
        running = state in (EngineState.READY, EngineState.LOADING, EngineState.STARTING)
        self.start_action.setEnabled(state in (EngineState.STOPPED, EngineState.UNLOADED, EngineState.FAILED))
        self.stop_action.setEnabled(running)
        self.restart_action.setEnabled(running or state is EngineState.FAILED)

    def _show_recent(self) -> None:
        recent = []
        for id, title in islice(self._window.chat.conversations.titles.items(), _RECENT_CHATS):
            text = one_line(title)
            text = text if len(text) <= _MAX_TITLE_LETTERS else f"{text[:_MAX_TITLE_LETTERS].rstrip()}…"
            recent.append((id, text.replace("&", "&&")))
        if [(action.data(), action.text()) for action in self.recent] == recent:
            return
        for action in self.recent:
            self.menu.removeAction(action)
            action.deleteLater()
        self.recent = [QAction(text, self.menu) for _id, text in recent]
        self.menu.insertActions(self._below_recent, self.recent)
        for action, (id, _text) in zip(self.recent, recent, strict=True):
            action.setData(id)
            action.triggered.connect(partial(self._window.show_chat, id, ""))

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, EngineChanged) or self._shown_icon is None or self._shown_icon[0] is not self.logo:
            self.refresh()

    def _toggle_window(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason is QSystemTrayIcon.ActivationReason.Trigger:
            (self._window.hide if self._window.isVisible() else self._window.raise_window)()

    def _show_if_hidden(self, state: Qt.ApplicationState) -> None:
        is_hidden = not any(widget.isVisible() for widget in QApplication.topLevelWidgets())
        if state is Qt.ApplicationState.ApplicationActive and is_hidden and not self._closed:
            self._window.raise_window()

    def _notify_in_tray(self) -> None:
        self.icon.showMessage(
            _("kvchat is still running"),
            _("It stays in the tray so that replies start without delay. To quit, use the tray menu."),
            tray_icon(LogoState.READY),
        )


_TRAY_NOTIFICATION_ID = -1  # the last notification of the tray icon; ids from the desktop are positive
LONG_REPLY_S = 10.0  # after this long the user may be elsewhere
_DESKTOP = Service("org.freedesktop.Notifications", "/org/freedesktop/Notifications", "org.freedesktop.Notifications")


class ReplyNotifier(Controller):
    """Notifies of replies that end and tool calls that wait while no kvchat window is active.

    By the desktop or, failing that, the tray icon.
    """

    def __init__(self, runtime: Runtime, window: MainWindow, tray: Tray, bus: SessionBus) -> None:
        super().__init__(runtime, window, window)
        self._window, self._tray, self._bus = window, tray, bus
        self._chats: dict[int, str] = {}  # by the desktop's notification id
        self._asked: set[str] = set()  # ids of calls that wait for permission, once notified
        self._token = ""  # activation token to raise the window, received just before the click
        self._listens = False
        tray.icon.messageClicked.connect(
            lambda: (
                self._clicked(_TRAY_NOTIFICATION_ID) if _TRAY_NOTIFICATION_ID in self._chats else window.raise_window()
            )
        )

    def close(self) -> None:
        super().close()
        self._chats.clear()  # a click may still arrive

    def _handle_event(self, event: Event) -> None:
        if QApplication.activeWindow() is not None:
            return
        match event:
            case ReplyFinished(receipt=receipt) if receipt and receipt.total_s >= LONG_REPLY_S:
                text = _("The reply finished after {time}.", time=format_rough_duration(receipt.total_s))
            case TurnFailed(error=error):
                text = _("The reply failed: {error}.", error=error.title)
            case CallsChanged(conversation_id=id):
                calls = self._runtime.chat.turns.tool_calls.pending_in(id)
                waiting = [call for call in calls if call.is_waiting and call.key not in self._asked]
                if not waiting:
                    return
                self._asked.update(call.key for call in waiting)
                tool = waiting[0].tool
                text = _("Allow the tool “{tool}”?", tool=tool_label(tool.name, tool.source))
            case _:
                return
        self._runner.start(self._notify(event.conversation_id, text))

    async def _notify(self, chat_id: str, text: str) -> None:
        """Show a notification. The specification says that its title is plain text and its body markup.

        https://specifications.freedesktop.org/notification-spec
        """
        title, actions = one_line(self._window.chat.conversations.title(chat_id)), ["default", _("Open")]
        hints = {"desktop-entry": ("s", APP_ID), "category": ("s", "im.received")}
        notification = "kvchat", 0, "kvchat", title, html.escape(text), actions, hints, -1
        try:
            if not self._listens:
                await self._bus.listen(_DESKTOP, "ActivationToken", self._store_activation_token)
                await self._bus.listen(_DESKTOP, "ActionInvoked", self._clicked)
                self._listens = True
            (number,) = await self._bus.call(_DESKTOP, "Notify", "susssasa{sv}i", *notification)
            self._chats[number] = chat_id
        except BusUnavailable:
            self._chats[_TRAY_NOTIFICATION_ID] = chat_id
            self._tray.icon.showMessage(title, text, tray_icon(LogoState.READY))

    def _store_activation_token(self, notification_id: int, token: str) -> None:
        if notification_id in self._chats:
            self._token = token

    def _clicked(self, notification_id: int, _action: str = "") -> None:
        if (chat := self._chats.pop(notification_id, None)) is not None:
            token, self._token = self._token, ""
            self._window.show_chat(chat, token)


_NO_TRAY = N_(
    "Closing the window quits kvchat because this desktop has no system tray. On GNOME, the "
    "extension “AppIndicator and KStatusNotifierItem Support” adds one."
)
_BOX_LETTERS = 56  # width
SHOWN_AFTER_S, UPDATED_EVERY_S = 1.0, 0.5


class QuitController(QObject):
    agreed = Signal()
    hidden_first_time = Signal()  # closed to the tray for the first time

    def __init__(self, runtime: Runtime, window: MainWindow) -> None:
        super().__init__(window)
        self.keep_in_tray = False  # set by the Tray
        self._runtime, self._window = runtime, window
        self.question: ConfirmDialog | None = None

    def ask(self, reason: str = "") -> None:
        """Quit, but ask first if this would interrupt work or if a `reason` to ask is given."""
        sentences = [*filter(None, (reason,)), *self._list_unfinished()]
        if not sentences:
            self.agreed.emit()
        elif self.question is None:
            self._window.show()
            text, title = join_sentences(*sentences), _("Quit now?")
            self.question = confirm(self._window, title, text, _("Quit"), self.agreed.emit, keep=_("Keep running"))
            self.question.finished.connect(self._forget_question)

    def _forget_question(self) -> None:
        self.question = None

    def close_window(self) -> None:
        if self.keep_in_tray and QSystemTrayIcon.isSystemTrayAvailable():
            self._window.hide()
            if self._is_first_time("told_about_tray"):
                self.hidden_first_time.emit()
        else:
            self.ask(_(_NO_TRAY) if self.keep_in_tray and self._is_first_time("told_about_no_tray") else "")

    def _is_first_time(self, key: str) -> bool:
        state = self._window.window_state
        is_first = not state.is_true(key, False)
        state.store(**{key: True})
        return is_first

    def _list_unfinished(self) -> list[str]:
        title, runtime = self._window.chat.conversations.title, self._runtime
        ends = [
            _("A reply is being generated in “{title}”. The text so far is saved.", title=title(chat))
            for chat in runtime.chat.answering_chats
        ]
        if count := sum(download.state in ACTIVE_STATES for download in runtime.models.downloads.all()):
            ends.append(
                plural(
                    count,
                    "{count} model is being downloaded. You can resume the download later.",
                    "{count} models are being downloaded. You can resume the downloads later.",
                )
            )
        if self._window.first_start.is_fetching:
            ends.append(_("The starter model is being downloaded."))
        if runtime.engines.download is not None:
            ends.append(_("An engine is being downloaded. You can resume the download later."))
        if runtime.chat.library.processing:
            ends.append(_("Documents are being processed for the library. The progress so far is saved."))
        if runtime.api_server.active_requests:
            ends.append(_("A reply to an app is being generated and will be cut off."))
        ends += [
            _("{task} Quitting cancels this, and nothing is saved.", task=text)
            for text in self._window.transfer.in_progress
        ]
        return ends


class ShutdownDialog(QDialog):
    def __init__(self) -> None:
        super().__init__(None, Qt.WindowType.Dialog | Qt.WindowType.CustomizeWindowHint | Qt.WindowType.WindowTitleHint)
        self.setWindowTitle("kvchat")
        self.status = label(kind="muted", wraps=True)
        tip = _("The last message will be reprocessed next time. No messages are lost.")
        self.quit_button = button(_("Quit now"), tip=tip)
        title = label(_("Saving chat memory"), "title", wraps=True)
        column(title, self.status, row(STRETCH, self.quit_button), on=self, spacing=10, margins=(24, 22, 24, 18))

    def show_progress(self, unfinished: PendingSave | None) -> None:
        self.status.setText(unfinished.description if unfinished else _("Stopping the engine"))
        fit_to_text(self, _BOX_LETTERS)

    def reject(self) -> None:
        """Ignore Escape."""


async def close_with_progress(runtime: Runtime) -> None:
    """Close the runtime. If that takes long, show why and offer `Quit now`."""
    closing, box = asyncio.ensure_future(runtime.close()), None
    await asyncio.wait({closing}, timeout=SHOWN_AFTER_S)
    while not closing.done():
        if box is None and runtime.pending_save:
            box = ShutdownDialog()
            box.quit_button.clicked.connect(runtime.cancel_saving)
            box.show()
        if box is not None:
            box.show_progress(runtime.pending_save)
        await asyncio.wait({closing}, timeout=UPDATED_EVERY_S)
    if box is not None:
        box.accept()
    await closing
