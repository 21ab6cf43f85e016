"""The global shortcut that opens the small window from any app, and requests to the desktop's portal.

On Linux, the portal asks the user for permission. Windows and macOS give the shortcut to the first app that asks.
https://flatpak.github.io/xdg-desktop-portal/docs/doc-org.freedesktop.portal.GlobalShortcuts.html
"""

import asyncio
import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable
from ctypes import wintypes
from typing import Any

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QGuiApplication

from kvchat import APP_ID
from kvchat.errors import KvchatError
from kvchat.system.login import is_missing_from_menu
from kvchat.system.session_bus import BusUnavailable, Service, SessionBus
from kvchat.text.language import N_, _

PORTAL_NAME, _PATH = "org.freedesktop.portal.Desktop", "/org/freedesktop/portal/desktop"
_CANCELLED = 1

Results = dict[str, tuple[str, Any]]  # name: D-Bus signature and value


class PortalDeclined(BusUnavailable):
    """The user canceled the portal's dialog."""


class PortalFailed(BusUnavailable):
    """The portal reported an error, for example because it does not know the app."""


def portal(interface: str) -> Service:
    return Service(PORTAL_NAME, _PATH, f"org.freedesktop.portal.{interface}")


async def request(
    bus: SessionBus, interface: str, method: str, signature: str, body: tuple[Any, ...], options: Results
) -> Results:
    """Call a portal method and return its results, which may take until the user responds. Raises BusUnavailable.

    https://flatpak.github.io/xdg-desktop-portal/docs/doc-org.freedesktop.portal.Request.html
    """
    token = f"kvchat_{method}"
    sender = (await bus.unique_name()).lstrip(":").replace(".", "_")
    response = Service(PORTAL_NAME, f"{_PATH}/request/{sender}/{token}", "org.freedesktop.portal.Request")
    answer: asyncio.Future[tuple[int, Results]] = asyncio.get_running_loop().create_future()

    def set_answer(code: int, results: Results) -> None:
        if not answer.done():
            answer.set_result((code, results))

    stop = await bus.listen(response, "Response", set_answer)
    try:
        await bus.call(portal(interface), method, signature, *body, options | {"handle_token": ("s", token)})
        code, results = await answer
    finally:
        stop()
    if code and not results:  # GNOME 48.0 returns a random code with a bound shortcut (shell_grab_accelerators_done)
        raise PortalDeclined if code == _CANCELLED else PortalFailed(f"{method}: {code}")
    return results


KEY = "Ctrl+Alt+K"
_SHORTCUTS = "GlobalShortcuts"
_REGISTRY = portal(_SHORTCUTS)._replace(interface="org.freedesktop.host.portal.Registry")
_DESCRIPTION = N_("Ask a quick question")


class GlobalKeyUnavailable(KvchatError):
    def __init__(self, reason: str, advice: str = "") -> None:
        other_way = _("Assign the command “kvchat quick” to a shortcut in your desktop’s settings instead.")
        super().__init__(_("The quick question shortcut is not available"), reason, advice or other_way)


class GlobalKey(QObject):
    pressed = Signal(str)  # activation token from the desktop, if it gave one

    def __init__(self, bus: SessionBus, parent: QObject) -> None:
        super().__init__(parent)
        self._bus = bus
        self._release: Callable[[], object] | None = None
        self._change_lock = asyncio.Lock()

    async def set_enabled(self, is_enabled: bool) -> None:
        """Register or release the shortcut. Raises GlobalKeyUnavailable."""
        async with self._change_lock:
            if is_enabled and self._release is None:
                self._release = await self._register()
            elif not is_enabled:
                self.close()

    def close(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None

    async def _register(self) -> Callable[[], object]:
        platform = QGuiApplication.platformName()
        if platform == "xcb" or platform.startswith("wayland"):
            try:
                return await bind_by_portal(self._bus, self.pressed.emit)
            except BusUnavailable as error:
                if isinstance(error, PortalFailed) and await asyncio.to_thread(is_missing_from_menu):  # GNOME 48
                    raise GlobalKeyUnavailable(
                        _("kvchat is not in the desktop’s app menu, which some desktops require."),
                        _("Turn on “Show in the app menu” in Settings, General, then try again."),
                    ) from error
                reason = _("Your desktop does not support global shortcuts for apps.")
                if isinstance(error, PortalDeclined | PortalFailed):
                    reason = _("Your desktop did not assign the shortcut to kvchat.")
                raise GlobalKeyUnavailable(reason) from error
        register = {"windows": register_on_windows, "cocoa": register_on_mac}.get(platform)
        if register is None:
            raise GlobalKeyUnavailable(_("This display does not support global shortcuts."))
        release = register(lambda: self.pressed.emit(""))
        if release is None:
            raise GlobalKeyUnavailable(_("Another app uses {key}.", key=KEY))
        return release


async def bind_by_portal(bus: SessionBus, pressed: Callable[[str], object]) -> Callable[[], object]:
    """Register the shortcut with the portal; each press calls `pressed` with an activation token.

    Return a function that releases the shortcut. Raises BusUnavailable. The desktop asks the user once, and may assign
    keys other than `KEY`.
    """
    with contextlib.suppress(BusUnavailable):  # newer portals need the app id if kvchat was not started from a menu
        await bus.call(_REGISTRY, "Register", "sa{sv}", APP_ID, {})
    created = await request(bus, _SHORTCUTS, "CreateSession", "a{sv}", (), {"session_handle_token": ("s", "kvchat")})
    session = created.get("session_handle", ("s", ""))[1]

    def handle(session_handle: str, _shortcut_id: str, _timestamp: int, options: Results) -> None:
        if session_handle == session:
            pressed(str(options.get("activation_token", ("s", ""))[1]))

    stop = await bus.listen(portal(_SHORTCUTS), "Activated", handle)

    def release() -> None:
        stop()
        bus.send(Service(PORTAL_NAME, session, "org.freedesktop.portal.Session"), "Close")

    trigger = KEY.upper().replace("+K", "+k")
    shortcuts = [("quick", {"description": ("s", _(_DESCRIPTION)), "preferred_trigger": ("s", trigger)})]
    try:
        await request(bus, _SHORTCUTS, "BindShortcuts", "oa(sa{sv})sa{sv}", (session, shortcuts, ""), {})
    except BaseException:
        release()
        raise
    return release


def register_on_windows(pressed: Callable[[], object]) -> Callable[[], object] | None:
    """Register the shortcut; each press calls `pressed` on another thread.

    Return a function that releases the shortcut, or None if another app has it.
    https://learn.microsoft.com/windows/win32/api/winuser/nf-winuser-registerhotkey
    """
    control, alt, no_repeat = 0x2, 0x1, 0x4000
    wm_hotkey, wm_quit = 0x312, 0x12
    windows: Any = getattr(ctypes, "windll")  # noqa: B009 - of Windows alone
    started: queue.Queue[int] = queue.Queue()  # thread id; 0: another program has the key

    def serve() -> None:
        if not windows.user32.RegisterHotKey(None, 1, control | alt | no_repeat, ord("K")):
            started.put(0)
            return
        message = wintypes.MSG()
        windows.user32.PeekMessageW(ctypes.byref(message), None, 0, 0, 0)  # makes the thread's queue
        started.put(windows.kernel32.GetCurrentThreadId())
        while windows.user32.GetMessageW(ctypes.byref(message), None, 0, 0) > 0:
            if message.message == wm_hotkey:
                pressed()
        windows.user32.UnregisterHotKey(None, 1)

    thread = threading.Thread(target=serve, name="global key", daemon=True)
    thread.start()
    number = started.get()
    if not number:
        return None

    def release() -> None:
        windows.user32.PostThreadMessageW(number, wm_quit, 0, 0)
        thread.join()

    return release


class _EventKind(ctypes.Structure):
    _fields_ = (("group", ctypes.c_uint32), ("kind", ctypes.c_uint32))


class _HotKeyId(ctypes.Structure):
    _fields_ = (("signature", ctypes.c_uint32), ("id", ctypes.c_uint32))


_Handler = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def register_on_mac(pressed: Callable[[], object]) -> Callable[[], object] | None:
    """Register the shortcut; each press calls `pressed`. Carbon's RegisterEventHotKey needs no permission.

    Return a function that releases the shortcut, or None if another app has it.
    """
    control, option, letter_k = 1 << 12, 1 << 11, 0x28  # of Events.h
    keyboard, hot_key_pressed = int.from_bytes(b"keyb", "big"), 5
    carbon = ctypes.CDLL("/System/Library/Frameworks/Carbon.framework/Carbon")
    carbon.GetApplicationEventTarget.restype = ctypes.c_void_p
    target = ctypes.c_void_p(carbon.GetApplicationEventTarget())

    def handle(_next: object, _event: object, _data: object) -> int:
        pressed()
        return 0

    handler, key, installed = _Handler(handle), ctypes.c_void_p(), ctypes.c_void_p()
    id, kind = _HotKeyId(int.from_bytes(b"kvch", "big"), 1), _EventKind(keyboard, hot_key_pressed)
    if carbon.RegisterEventHotKey(letter_k, control | option, id, target, 0, ctypes.byref(key)):
        return None
    carbon.InstallEventHandler(target, handler, 1, ctypes.byref(kind), None, ctypes.byref(installed))

    def release() -> _Handler:  # type: ignore[valid-type]
        carbon.UnregisterEventHotKey(key)
        carbon.RemoveEventHandler(installed)
        return handler  # must live as long as the key

    return release
