"""A long reply that ends unseen: the desktop notifies the user, and a click opens the chat."""

from collections.abc import Iterator

import pytest
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QSystemTrayIcon

from kvchat.chat.events import CallsChanged, ReplyFinished, TurnFailed
from kvchat.chat.record.messages import Receipt
from kvchat.chat.turn.tool_calls import PendingCall
from kvchat.errors import KvchatError
from kvchat.session.proof import Source
from kvchat.system.session_bus import SessionBus
from kvchat.tools.tool import Tool, ToolCall
from kvchat.ui.app.main_window import MainWindow
from kvchat.ui.app.tray import ReplyNotifier, Tray
from tests.desktop_bus import Bus, session_bus
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until

NAME, PATH = "org.freedesktop.Notifications", "/org/freedesktop/Notifications"


def receipt(seconds: float) -> Receipt:
    return Receipt(1000.0, 0, 0, 0, 10, 0, int((seconds - 1) * 10), 10.0, Source.COLD)


@pytest.fixture
def bus(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bus]:
    with session_bus(tmp_path_factory.mktemp("bus")) as bus:
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", bus.address)
        yield bus


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the user looks at another application."""
    monkeypatch.setattr(QApplication, "activeWindow", staticmethod(lambda: None))


@pytest.mark.usefixtures("away")
async def test_a_click_on_what_the_desktop_told_opens_the_chat(
    furnished: StagedRuntime, window: MainWindow, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    desktop = bus.play(NAME, PATH, NAME, lambda method, _: ("u", (7,)) if method == "Notify" else None)
    tray, connection = Tray(furnished, window), SessionBus()
    attention = ReplyNotifier(furnished, window, tray, connection)
    monkeypatch.setattr(QGuiApplication, "platformName", staticmethod(lambda: "wayland"))
    monkeypatch.delenv("XDG_ACTIVATION_TOKEN", raising=False)
    tokens: list[str | None] = []
    activate = window.activateWindow

    def note() -> None:
        import os

        tokens.append(os.environ.pop("XDG_ACTIVATION_TOKEN", None))
        activate()

    monkeypatch.setattr(window, "activateWindow", note)
    window.hide()
    furnished.events.publish(ReplyFinished("a", "m", receipt(9)))
    furnished.events.publish(ReplyFinished("b", "m", receipt(75)))
    await until(lambda: desktop.asked)
    (told,) = desktop.asked
    assert told[1][3:6] == ("Chat b", "The reply finished after 1 min.", ["default", "Open"])
    await until(lambda: attention._chats)  # what the desktop answered has arrived
    desktop.emit("ActivationToken", "us", 7, "let it")
    desktop.emit("ActionInvoked", "us", 8, "default")  # another application's
    desktop.emit("ActionInvoked", "us", 7, "default")
    await until(window.isVisible)
    assert (window.chat.current, tokens) == ("b", ["let it"])
    attention.close()
    await connection.close()
    tray.close()


@pytest.mark.usefixtures("away")
async def test_without_a_bus_the_tray_tells(
    furnished: StagedRuntime, window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(QSystemTrayIcon, "showMessage", lambda _, title, words, icon: said.append((title, words)))
    tray = Tray(furnished, window)
    attention = ReplyNotifier(furnished, window, tray, SessionBus())
    window.hide()
    furnished.events.publish(TurnFailed("c", KvchatError("The engine stopped")))
    await until(lambda: said)
    assert said == [("Chat c", "The reply failed: The engine stopped.")]
    tray.icon.messageClicked.emit()
    assert (window.isVisible(), window.chat.current) == (True, "c")
    attention.close()
    tray.close()


@pytest.mark.usefixtures("away")
async def test_a_call_that_waits_for_permission_is_told_once(
    furnished: StagedRuntime, window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    async def tell(_self: object, chat_id: str, text: str) -> None:
        said.append(f"{chat_id}: {text}")

    monkeypatch.setattr(ReplyNotifier, "_notify", tell)
    tray = Tray(furnished, window)
    attention = ReplyNotifier(furnished, window, tray, SessionBus())
    call, tool = ToolCall("1", "write", "{}"), Tool("files", "write\u202e", "", {})
    furnished.chat.turns.tool_calls.pending["1"] = PendingCall("c", "m", call, tool, True)
    for _again in range(2):
        furnished.events.publish(CallsChanged("c"))
    await until(lambda: said)
    assert said == ["c: Allow the tool “\u2068write\u2069 · \u2068files\u2069”?"]
    attention.close()
    tray.close()


async def test_who_looks_is_told_nothing(
    furnished: StagedRuntime, window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QApplication, "activeWindow", staticmethod(lambda: window))
    said: list[str] = []
    monkeypatch.setattr(ReplyNotifier, "_notify", lambda *_: said.append("told"))
    tray = Tray(furnished, window)
    attention = ReplyNotifier(furnished, window, tray, SessionBus())
    furnished.events.publish(ReplyFinished("b", "m", receipt(75)))
    assert not said
    attention.close()
    tray.close()
