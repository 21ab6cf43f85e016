"""A long reply that ends where nobody looks is told by the desktop; a click on that opens its chat."""

from __future__ import annotations

import html

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication

from kvchat.chat.events import Event, ReplyFinished, TurnFailed
from kvchat.runtime import Runtime
from kvchat.system.session_bus import NoAnswer, Service, SessionBus
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.app.tray import Tray
from kvchat.ui.base.icons import LogoState, tray_icon
from kvchat.words.language import _
from kvchat.words.wording import one_line, rough_duration

LONG_S = 10.0  # who waits longer may have gone on to something else
_DESKTOP = Service("org.freedesktop.Notifications", "/org/freedesktop/Notifications", "org.freedesktop.Notifications")


class Attention(QObject):
    """Tells by way of the desktop's own notifications, else of the tray's."""

    def __init__(self, runtime: Runtime, window: MainWindow, tray: Tray, bus: SessionBus) -> None:
        super().__init__(window)
        self._window, self._tray, self._bus = window, tray, bus
        self._chats: dict[int, str] = {}  # by the desktop's number of what was told
        self._last = ""  # the chat that the tray told of
        self._token = ""  # with which the desktop lets the window come to the front, told just before the click
        self._listens = False
        self._unsubscribe = runtime.events.subscribe(self._hear)
        tray.icon.messageClicked.connect(lambda: self._open(self._last))

    def close(self) -> None:
        self._unsubscribe()
        self._chats.clear()  # the desktop may still tell of a click

    def _hear(self, event: Event) -> None:
        if QApplication.activeWindow() is not None:
            return
        match event:
            case ReplyFinished(conversation_id=id, receipt=receipt) if receipt and receipt.whole_s >= LONG_S:
                self._tell(id, _("The reply is there, after {time}.", time=rough_duration(receipt.whole_s)))
            case TurnFailed(conversation_id=id, error=error):
                self._tell(id, _("There is no reply: {error}.", error=error.title))

    def _tell(self, chat: str, words: str) -> None:
        title = one_line(self._window.chat.conversations.title(chat))
        self._window.runner.start(self._notify(chat, title, words))

    async def _notify(self, chat: str, title: str, words: str) -> None:
        """https://specifications.freedesktop.org/notification-spec, which has no title of markup and a body of it."""
        told = "kvchat", 0, "kvchat", title, html.escape(words), ["default", _("Open")]
        hints = {"desktop-entry": ("s", "kvchat"), "category": ("s", "im.received")}
        try:
            await self._listen()
            (number,) = await self._bus.call(_DESKTOP, "Notify", "susssasa{sv}i", *told, hints, -1)
            self._chats[number] = chat
        except NoAnswer:
            self._last = chat
            self._tray.icon.showMessage(title, words, tray_icon(LogoState.READY))

    async def _listen(self) -> None:
        if not self._listens:
            await self._bus.listen(_DESKTOP, "ActivationToken", self._take_token)
            await self._bus.listen(_DESKTOP, "ActionInvoked", self._clicked)
            self._listens = True

    def _take_token(self, number: int, token: str) -> None:
        if number in self._chats:
            self._token = token

    def _clicked(self, number: int, _action: str) -> None:
        if (chat := self._chats.pop(number, None)) is not None:
            self._open(chat)

    def _open(self, chat: str) -> None:
        token, self._token = self._token, ""
        self._window.show_chat(chat, token)
