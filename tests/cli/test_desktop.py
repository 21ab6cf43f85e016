"""Detection of the tray and the keyring, with a real session bus and a real X server."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from jeepney import message_bus
from jeepney.io.blocking import Proxy, open_dbus_connection
from keyring.backends import chainer, fail

from kvchat.cli.doctor import AVAILABLE, MISSING, UNKNOWN, find_keyring, find_tray
from tests.desktop_bus import display, session_bus
from tests.systems import not_on_windows

WATCHER = "org.kde.StatusNotifierWatcher"


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[str]:
    with session_bus(tmp_path) as bus:
        yield bus.address


def test_a_status_notifier_host_is_found(bus):
    environment = {"DBUS_SESSION_BUS_ADDRESS": bus}
    assert find_tray(environment)["presence"] == MISSING
    connection = open_dbus_connection(bus=bus)
    try:
        Proxy(message_bus, connection).RequestName(WATCHER)
        assert find_tray(environment)["presence"] == AVAILABLE
    finally:
        connection.close()
    assert find_tray(environment)["presence"] == MISSING


@not_on_windows("the tray is part of Windows")
@pytest.mark.parametrize("address", ["unix:path=/nowhere/at/all", "nonsense"])
def test_a_bus_or_display_that_does_not_answer_is_unknown(address):
    assert find_tray({})["presence"] == MISSING
    finding = find_tray({"DISPLAY": ":4711"})
    assert finding["presence"] == MISSING
    assert "session bus" in finding["detail"]
    assert find_tray({"DBUS_SESSION_BUS_ADDRESS": address})["presence"] == UNKNOWN


def test_an_x11_tray_is_found():
    with display() as (name, _):
        environment = {"DISPLAY": name}
        assert find_tray(environment)["presence"] == MISSING
        x11 = ctypes.CDLL("libX11.so.6")
        x11.XOpenDisplay.restype = ctypes.c_void_p
        x11.XInternAtom.restype = x11.XDefaultRootWindow.restype = x11.XCreateSimpleWindow.restype = ctypes.c_ulong
        connection = ctypes.c_void_p(x11.XOpenDisplay(name.encode()))
        root = ctypes.c_ulong(x11.XDefaultRootWindow(connection))
        window = ctypes.c_ulong(x11.XCreateSimpleWindow(connection, root, 0, 0, 1, 1, 0, 0, 0))
        selection = ctypes.c_ulong(x11.XInternAtom(connection, b"_NET_SYSTEM_TRAY_S0", 0))
        x11.XSetSelectionOwner(connection, selection, window, ctypes.c_ulong(0))
        x11.XSync(connection, 0)
        try:
            assert find_tray(environment)["presence"] == AVAILABLE
        finally:
            x11.XCloseDisplay(connection)


def test_the_keyring_is_available_missing_or_broken(monkeypatch):
    def broken() -> None:
        raise RuntimeError("no such plugin")

    for backend, presence in ((fail.Keyring, MISSING), (chainer.ChainerBackend, AVAILABLE), (broken, UNKNOWN)):
        monkeypatch.setattr(keyring, "get_keyring", backend)
        finding = find_keyring()
        assert finding["presence"] == presence
        assert finding["detail"]
    assert "no such plugin" in finding["detail"]
