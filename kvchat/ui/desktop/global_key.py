"""A key that opens the small window whatever one is at: asked for on Wayland, taken elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QGuiApplication

from kvchat.errors import KvchatError
from kvchat.system.session_bus import NoAnswer, SessionBus
from kvchat.ui.desktop import mac_key, portal_key, windows_key, x11_key
from kvchat.words.language import _

KEY = "Ctrl+Alt+K"


class KeyNotGiven(KvchatError):
    """The desktop has no such key for kvchat."""

    def __init__(self, why: str) -> None:
        super().__init__(
            _("There is no key to ask from anywhere"),
            why,
            _("Bind the command “kvchat quick” to a key in your desktop’s settings instead."),
        )


class GlobalKey(QObject):
    """Holds the key, or does not."""

    pressed = Signal(str)  # the token with which the desktop lets a window come to the front, if it gave one

    def __init__(self, bus: SessionBus, parent: QObject) -> None:
        super().__init__(parent)
        self._bus = bus
        self._release: Callable[[], object] | None = None
        self._changing = asyncio.Lock()

    async def hold(self, wanted: bool) -> None:
        """Take the key or give it back. Raises KeyNotGiven."""
        async with self._changing:
            if wanted and self._release is None:
                self._release = await self._take()
            elif not wanted and self._release is not None:
                self._release()
                self._release = None

    def close(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None

    async def _take(self) -> Callable[[], object]:
        platform = QGuiApplication.platformName()
        if platform.startswith("wayland"):
            try:
                return await portal_key.bind(self._bus, KEY, self.pressed.emit)
            except NoAnswer as error:
                raise KeyNotGiven(_("Your desktop gives applications no keys of their own.")) from error
        takers = {"xcb": x11_key.grab, "windows": windows_key.register, "cocoa": mac_key.register}
        if platform not in takers:
            raise KeyNotGiven(_("This display has no such keys."))
        try:
            release = takers[platform](lambda: self.pressed.emit(""))
        except x11_key.NoSuchKey as error:
            raise KeyNotGiven(_("This keyboard has no key {key}.", key=KEY)) from error
        if release is None:
            raise KeyNotGiven(_("Another program has {key}.", key=KEY))
        return release
