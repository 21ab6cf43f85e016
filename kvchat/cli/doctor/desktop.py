"""What the desktop offers, found out without Qt: a tray for the icon, a keyring for secrets."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import Enum

_TIMEOUT_S = 2.0
_WATCHER = "org.kde.StatusNotifierWatcher"  # what StatusNotifierItem trays own on the session bus


class Presence(Enum):
    """Whether something is there, with an honest third answer."""

    AVAILABLE = "available"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """An answer and how it was come by."""

    presence: Presence
    detail: str


def find_tray(environment: Mapping[str, str] = os.environ) -> Finding:
    """Whether the desktop shows tray icons: a StatusNotifier host on the session bus, or an X11 system tray."""
    if sys.platform != "linux":
        return Finding(Presence.AVAILABLE, "part of the system")
    bus = _bus_tray(environment)
    if bus.presence is Presence.AVAILABLE or not environment.get("DISPLAY"):
        return bus
    x11 = _x11_tray(environment["DISPLAY"])
    return x11 if x11.presence is not Presence.UNKNOWN else bus


def _bus_tray(environment: Mapping[str, str]) -> Finding:
    """Ask the session bus whether anyone owns the StatusNotifierWatcher name."""
    address = environment.get("DBUS_SESSION_BUS_ADDRESS")
    if not address:
        return Finding(Presence.MISSING, "there is no session bus")
    try:
        from jeepney import DBusErrorResponse, message_bus
        from jeepney.io.blocking import Proxy, open_dbus_connection
    except ImportError:
        return Finding(Presence.UNKNOWN, "jeepney, which would ask the session bus, is not installed")
    try:
        with closing(open_dbus_connection(bus=address)) as connection:
            (owned,) = Proxy(message_bus, connection, timeout=_TIMEOUT_S).NameHasOwner(_WATCHER)
    except (OSError, ValueError, RuntimeError, DBusErrorResponse) as error:
        return Finding(Presence.UNKNOWN, f"the session bus does not answer: {error or type(error).__name__}")
    if owned:
        return Finding(Presence.AVAILABLE, "a StatusNotifier host is on the session bus")
    return Finding(Presence.MISSING, "no StatusNotifier host is on the session bus")


def _x11_tray(display: str) -> Finding:
    """Ask the X server whether anyone owns its first screen's tray selection (freedesktop.org system tray protocol)."""
    try:
        x11 = ctypes.CDLL("libX11.so.6")
    except OSError:
        return Finding(Presence.UNKNOWN, "libX11 is not installed")
    x11.XOpenDisplay.restype = ctypes.c_void_p
    x11.XInternAtom.restype = x11.XGetSelectionOwner.restype = ctypes.c_ulong
    x11.XGetSelectionOwner.argtypes = [ctypes.c_void_p, ctypes.c_ulong]
    x11.XInternAtom.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    x11.XCloseDisplay.argtypes = [ctypes.c_void_p]
    connection = x11.XOpenDisplay(display.encode())
    if not connection:
        return Finding(Presence.UNKNOWN, f"the X display {display} cannot be reached")
    try:
        owner = x11.XGetSelectionOwner(connection, x11.XInternAtom(connection, b"_NET_SYSTEM_TRAY_S0", 0))
    finally:
        x11.XCloseDisplay(connection)
    if owner:
        return Finding(Presence.AVAILABLE, f"the X display {display} has a system tray")
    return Finding(Presence.MISSING, f"neither the session bus nor the X display {display} has a tray")


def find_keyring() -> Finding:
    """Whether secrets could be kept in the system's keyring. Nothing is written or read."""
    try:
        import keyring
        from keyring.backends import fail, null

        backend = keyring.get_keyring()
    except Exception as error:  # backends are plugins of other packages and may fail in their own ways
        return Finding(Presence.UNKNOWN, f"the keyring failed: {error or type(error).__name__}")
    if isinstance(backend, fail.Keyring | null.Keyring):
        return Finding(Presence.MISSING, "no keyring service is running")
    return Finding(Presence.AVAILABLE, backend.name)
