"""Start at login on the three platforms, two of them faked."""

import plistlib
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvchat.errors import KvchatError
from kvchat.system import login
from kvchat.system.login import add_to_menu, can_add_to_menu, can_start_at_login, start_at_login, starts_at_login
from tests.systems import not_on_windows


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("APPIMAGE", "FLATPAK_ID", "KVCHAT_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    return tmp_path


def run_line(entry: Path) -> str:
    return next(line for line in entry.read_text().splitlines() if line.startswith("Exec="))


@not_on_windows("paths of other systems")
def test_linux_autostart_entry(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    entry = home / "config/autostart/kvchat.desktop"
    assert not starts_at_login()
    start_at_login(False)  # no entry to delete
    start_at_login(True)
    assert starts_at_login()
    assert run_line(entry) == "Exec=/usr/bin/python3 -m kvchat --hidden"
    if shutil.which("desktop-file-validate"):
        subprocess.run(["desktop-file-validate", entry], check=True)
    for line in ("Hidden=true", "X-GNOME-Autostart-enabled = false"):  # as desktops disable it
        entry.write_text(entry.read_text() + line + "\n")
        assert not starts_at_login()
        start_at_login(True)
        assert starts_at_login()
    start_at_login(False)
    assert not entry.exists()
    assert can_start_at_login()
    monkeypatch.setenv("APPIMAGE", '/home/a b/100% "k$".AppImage')
    monkeypatch.setenv("KVCHAT_HOME", "/srv/kv")
    start_at_login(True)
    line = run_line(entry)
    monkeypatch.setenv("FLATPAK_ID", "io.github.kvchat.kvchat")
    assert not can_start_at_login()
    assert line == r'Exec=env KVCHAT_HOME=/srv/kv "/home/a b/100%% \\"k\\$\\".AppImage" --hidden'
    shutil.rmtree(home / "config")
    (home / "config").write_text("not a folder")
    with pytest.raises(KvchatError) as raised:
        start_at_login(True)
    assert "autostart" in raised.value.detail
    assert not starts_at_login()


@not_on_windows("paths of other systems")
def test_the_menu_entry_is_valid_and_removed_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "share"))
    monkeypatch.setenv("XDG_DATA_DIRS", str(home / "system"))
    assert can_add_to_menu()
    add_to_menu(True, "<svg/>")
    entry = home / "share/applications/io.github.kvchat.kvchat.desktop"
    assert run_line(entry) == "Exec=/usr/bin/python3 -m kvchat open %U"
    if shutil.which("desktop-file-validate"):
        subprocess.run(["desktop-file-validate", entry], check=True)
    assert (home / "share/icons/hicolor/scalable/apps/kvchat.svg").read_text() == "<svg/>"
    add_to_menu(False, "")
    assert not [path for path in (home / "share").rglob("*") if path.is_file()]
    (home / "system/applications").mkdir(parents=True)
    (home / "system/applications" / entry.name).touch()
    assert not can_add_to_menu(), "a package has installed it"
    (home / "share/applications").rmdir()
    (home / "share/applications").write_text("not a folder")
    with pytest.raises(KvchatError, match="app menu"):
        add_to_menu(True, "<svg/>")


@not_on_windows("paths of other systems")
def test_macos_launch_agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", "/Applications/kvchat.app/Contents/MacOS/kvchat")
    monkeypatch.setenv("KVCHAT_HOME", "/srv/kv")
    start_at_login(True)
    assert starts_at_login()
    agent = plistlib.loads((home / "Library/LaunchAgents/io.github.kvchat.kvchat.plist").read_bytes())
    assert agent["ProgramArguments"] == ["/Applications/kvchat.app/Contents/MacOS/kvchat", "--hidden"]
    assert (agent["RunAtLoad"], agent["EnvironmentVariables"]) == (True, {"KVCHAT_HOME": "/srv/kv"})
    assert agent["ProcessType"] == "Interactive"
    start_at_login(False)
    assert not starts_at_login()


class Registry(SimpleNamespace):
    """The used part of `winreg`."""

    HKEY_CURRENT_USER, REG_SZ = "HKCU", 1

    def __init__(self) -> None:
        super().__init__(keys={})

    def OpenKey(self, root: str, name: str) -> Any:
        if name not in self.keys:
            raise FileNotFoundError(name)
        return self.CreateKey(root, name)

    def CreateKey(self, root: str, name: str) -> Any:
        return nullcontext(self.keys.setdefault(name, {}))

    def QueryValueEx(self, key: dict[str, str], name: str) -> tuple[str, int]:
        if name not in key:
            raise FileNotFoundError(name)
        return key[name], 1

    def SetValueEx(self, key: dict[str, str], name: str, _: int, kind: int, value: str) -> None:
        key[name] = value

    def DeleteValue(self, key: dict[str, str], name: str) -> None:
        del key[name]


def test_windows_run_key(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    monkeypatch.setitem(sys.modules, "winreg", registry)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", "/Program Files/kvchat/kvchat.exe")
    assert not starts_at_login()
    start_at_login(False)
    start_at_login(True)
    assert starts_at_login()
    program = Path("/Program Files/kvchat/kvchat-app.exe")
    assert registry.keys[login._RUN_KEY] == {"kvchat": f'"{program}" --hidden'}
    start_at_login(False)
    assert registry.keys[login._RUN_KEY] == {}
    assert not starts_at_login()
