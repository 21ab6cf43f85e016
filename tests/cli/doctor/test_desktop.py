"""What the desktop offers, asked of a real session bus and a real X server."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jeepney import message_bus
from jeepney.io.blocking import Proxy, open_dbus_connection

from kvchat.cli.doctor.desktop import Presence, find_keyring, find_tray

WATCHER = "org.kde.StatusNotifierWatcher"


@contextmanager
def running(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.terminate()
        process.wait(120)
        if process.stdout:
            process.stdout.close()


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[str]:
    """The address of a session bus of our own."""
    command = ["dbus-daemon", "--session", "--nofork", "--print-address", f"--address=unix:dir={tmp_path}"]
    with running(command, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        yield daemon.stdout.readline().decode().strip()


@pytest.fixture
def display() -> Iterator[str]:
    """The name of an X display of our own."""
    reader, writer = os.pipe()
    with open(reader, "rb") as numbers:  # noqa: PTH123 - a file descriptor
        try:
            command = ["Xvfb", "-displayfd", str(writer), "-screen", "0", "64x64x24", "-nolisten", "tcp", "-noreset"]
            with running(command, pass_fds=[writer]):
                yield f":{numbers.readline().decode().strip()}"
        finally:
            os.close(writer)


def test_no_session_bus_no_tray() -> None:
    assert find_tray({}).presence is Presence.MISSING


def test_a_status_notifier_host_is_found(bus: str) -> None:
    environment = {"DBUS_SESSION_BUS_ADDRESS": bus}
    assert find_tray(environment).presence is Presence.MISSING
    connection = open_dbus_connection(bus=bus)
    try:
        Proxy(message_bus, connection).RequestName(WATCHER)
        assert find_tray(environment).presence is Presence.AVAILABLE
    finally:
        connection.close()
    assert find_tray(environment).presence is Presence.MISSING


@pytest.mark.parametrize("address", ["unix:path=/nowhere/at/all", "nonsense"])
def test_a_bus_that_does_not_answer_leaves_it_open(address: str) -> None:
    assert find_tray({"DBUS_SESSION_BUS_ADDRESS": address}).presence is Presence.UNKNOWN


def test_an_x11_tray_is_found(display: str) -> None:
    environment = {"DISPLAY": display}
    assert find_tray(environment).presence is Presence.MISSING
    x11 = ctypes.CDLL("libX11.so.6")
    x11.XOpenDisplay.restype = ctypes.c_void_p
    x11.XInternAtom.restype = x11.XDefaultRootWindow.restype = x11.XCreateSimpleWindow.restype = ctypes.c_ulong
    connection = ctypes.c_void_p(x11.XOpenDisplay(display.encode()))
    root = ctypes.c_ulong(x11.XDefaultRootWindow(connection))
    window = ctypes.c_ulong(x11.XCreateSimpleWindow(connection, root, 0, 0, 1, 1, 0, 0, 0))
    selection = ctypes.c_ulong(x11.XInternAtom(connection, b"_NET_SYSTEM_TRAY_S0", 0))
    x11.XSetSelectionOwner(connection, selection, window, ctypes.c_ulong(0))
    x11.XSync(connection, 0)
    try:
        assert find_tray(environment).presence is Presence.AVAILABLE
    finally:
        x11.XCloseDisplay(connection)


def test_an_x_display_that_is_not_there_falls_back_to_what_the_bus_said() -> None:
    finding = find_tray({"DISPLAY": ":4711"})
    assert finding.presence is Presence.MISSING
    assert "session bus" in finding.detail


def test_the_keyring_that_cannot_keep_anything_is_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import keyring
    from keyring.backends import fail

    monkeypatch.setattr(keyring, "get_keyring", fail.Keyring)
    assert find_keyring().presence is Presence.MISSING


def test_a_keyring_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import keyring
    from keyring.backends import chainer

    monkeypatch.setattr(keyring, "get_keyring", chainer.ChainerBackend)
    finding = find_keyring()
    assert finding.presence is Presence.AVAILABLE
    assert finding.detail


def test_a_keyring_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import keyring

    def broken() -> None:
        raise RuntimeError("no such plugin")

    monkeypatch.setattr(keyring, "get_keyring", broken)
    finding = find_keyring()
    assert finding.presence is Presence.UNKNOWN
    assert "no such plugin" in finding.detail
