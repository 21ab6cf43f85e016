"""Detection of metered networks: NetworkManager on a real bus, and a fake Windows."""

import sys
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtNetwork import QNetworkInformation

from kvchat.ui.dialogs.confirm import is_metered
from tests.desktop_bus import session_bus

NAME, PATH = "org.freedesktop.NetworkManager", "/org/freedesktop/NetworkManager"


@pytest.mark.parametrize(("said", "metered"), [(1, True), (2, False), (3, True)])
async def test_networkmanager_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: int, metered: bool) -> None:
    def answer(method: str, body: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]] | None:
        return ("v", (("u", said),)) if (method, body) == ("Get", (NAME, "Metered")) else None

    with session_bus(tmp_path) as bus:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
        assert not await is_metered(), "nobody there"
        bus.play(NAME, PATH, NAME, answer)
        assert await is_metered() is metered


async def test_windows_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Known:
        def isMetered(self) -> bool:
            return True

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(QNetworkInformation, "instance", staticmethod(Known))
    assert await is_metered()
