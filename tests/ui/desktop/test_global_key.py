"""The global shortcut: the portal on a real bus, and fakes for Windows and macOS."""

import asyncio
import ctypes
import queue
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PySide6.QtCore import QObject
from PySide6.QtGui import QGuiApplication

from kvchat.system.session_bus import SessionBus
from kvchat.ui.desktop.global_key import GlobalKey, GlobalKeyUnavailable, register_on_mac, register_on_windows
from tests.desktop_bus import session_bus
from tests.ui.waiting import until


@pytest.mark.parametrize("display", ["wayland", "xcb"])
async def test_the_portal_is_asked_for_it_and_no_longer_heard_once_it_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, display: str
) -> None:
    name, path = "org.freedesktop.portal.Desktop", "/org/freedesktop/portal/desktop"
    shortcuts, request = "org.freedesktop.portal.GlobalShortcuts", "org.freedesktop.portal.Request"
    monkeypatch.setattr(QGuiApplication, "platformName", staticmethod(lambda: display))
    with session_bus(tmp_path) as bus:
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", bus.address)
        connection = SessionBus()
        sender = (await connection.unique_name()).lstrip(":").replace(".", "_")

        def answer(method: str, body: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]] | None:
            if method == "Register":
                return None  # an older portal
            if method == "Close":
                return "", ()
            where = f"{path}/request/{sender}/{body[-1]['handle_token'][1]}"
            results = {"session_handle": ("s", f"{path}/session/kvchat")} if method == "CreateSession" else {}
            code = 0
            if method == "BindShortcuts" and willing:  # GNOME 48.0 returns a random code
                code, results = 2, {"shortcuts": ("a(sa{sv})", [("quick", {})])}
            elif method == "BindShortcuts":
                code = 1
            portal.emit("Response", "ua{sv}", code, results, path=where, interface=request)
            return "o", (where,)

        portal, willing = bus.play(name, path, shortcuts, answer), True
        parent, other = QObject(), asyncio.all_tasks()
        key, heard = GlobalKey(connection, parent), list[str]()
        key.pressed.connect(heard.append)
        await key.set_enabled(True)
        bound = dict(portal.asked)["BindShortcuts"]
        assert bound[1][0][1]["preferred_trigger"] == ("s", "CTRL+ALT+k")
        for session in ("another", "kvchat"):
            more = {"activation_token": ("s", f"of {session}")}
            portal.emit("Activated", "osta{sv}", f"{path}/session/{session}", "quick", 1, more)
        await until(lambda: heard)
        assert heard == ["of kvchat"]
        listening = len(asyncio.all_tasks() - other)
        await key.set_enabled(False)
        await key.set_enabled(True)
        await until(lambda: len(asyncio.all_tasks() - other) == listening)
        await key.set_enabled(False)
        await until(lambda: portal.asked[-1][0] == "Close")
        willing = False
        with pytest.raises(GlobalKeyUnavailable):
            await key.set_enabled(True)
        await until(lambda: portal.asked[-1][0] == "Close" and not asyncio.all_tasks() - other)
        await connection.close()


async def test_where_there_is_no_portal_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QGuiApplication, "platformName", staticmethod(lambda: "wayland"))
    with session_bus(tmp_path) as bus:
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", bus.address)
        connection = SessionBus()
        with pytest.raises(GlobalKeyUnavailable) as raised:
            await GlobalKey(connection, QObject()).set_enabled(True)
        assert "kvchat quick" in raised.value.advice
        await connection.close()


class Windows:
    """The used parts of user32 and kernel32. `taken`: another program has the key."""

    def __init__(self, *, taken: bool = False) -> None:
        self.messages: queue.Queue[int] = queue.Queue()
        self.asked: list[tuple[Any, ...]] = []
        self.user32 = SimpleNamespace(
            RegisterHotKey=lambda *told: self.asked.append(told) or not taken,
            UnregisterHotKey=lambda *told: self.asked.append(("unregistered", *told)),
            PeekMessageW=lambda *_: 0,
            GetMessageW=self._get,
            PostThreadMessageW=lambda thread, kind, *_: self.messages.put(kind if thread == 77 else 0),
        )
        self.kernel32 = SimpleNamespace(GetCurrentThreadId=lambda: 77)

    def _get(self, message: Any, *_: object) -> int:
        message._obj.message = self.messages.get()
        return 0 if message._obj.message == 0x12 else 1


def test_windows_registers_a_hot_key(monkeypatch: pytest.MonkeyPatch) -> None:
    windows, pressed = Windows(), queue.Queue[bool]()
    monkeypatch.setattr(ctypes, "windll", windows, raising=False)
    release = register_on_windows(lambda: pressed.put(True))
    assert release is not None
    windows.messages.put(0x200)  # a mouse that moves
    windows.messages.put(0x312)
    assert pressed.get(timeout=60)
    release()
    assert pressed.empty()
    assert windows.asked == [(None, 1, 0x4003, ord("K")), ("unregistered", None, 1)]
    monkeypatch.setattr(ctypes, "windll", Windows(taken=True))
    assert register_on_windows(lambda: None) is None


def test_macos_registers_with_carbon(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    handlers: list[Any] = []

    class Carbon:
        def __getattr__(self, name: str) -> Any:
            def call(*told: Any) -> int:
                asked.append(name)
                if name == "InstallEventHandler":
                    handlers.append(told[1])
                return 0

            self.__dict__[name] = call
            return call

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Carbon())
    pressed: list[bool] = []
    release = register_on_mac(lambda: pressed.append(True))
    assert release is not None
    assert handlers[0](None, None, None) == 0
    assert pressed == [True]
    release()
    assert asked[-2:] == ["UnregisterEventHotKey", "RemoveEventHandler"]
