"""Start at login: an autostart file on Linux, a value of the Run key on Windows, a LaunchAgent on macOS.

On Linux, this module also adds an entry to the user's app menu, for installations without a package.

kvchat does not store the choice elsewhere, so the user can also change it in the desktop's settings.
"""

import importlib
import os
import plistlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from kvchat import APP_ID
from kvchat.errors import KvchatError
from kvchat.system.files import atomic_write
from kvchat.text.language import _

_RUN_KEY = r"Software\Microsoft\Windows\CurrentVersion\Run"
_NAME = "kvchat"
# Lines with which desktops disable an autostart file.
_DISABLING_LINES = ("hidden=true", "x-gnome-autostart-enabled=false")


def can_start_at_login() -> bool:
    """Return False in a Flatpak, which cannot write the desktop's files."""
    return "FLATPAK_ID" not in os.environ


def starts_at_login() -> bool:
    try:
        if sys.platform == "win32":
            return bool(_run_key_value())
        text = _entry_path().read_text("utf-8", "replace").lower()
    except OSError:
        return False
    return not any(line.replace(" ", "") in _DISABLING_LINES for line in text.splitlines())


def start_at_login(enabled: bool) -> None:
    arguments = [*start_command(), "--hidden"]
    try:
        if sys.platform == "win32":
            registry: Any = importlib.import_module("winreg")
            with registry.CreateKey(registry.HKEY_CURRENT_USER, _RUN_KEY) as key:
                if enabled:
                    registry.SetValueEx(key, _NAME, 0, registry.REG_SZ, subprocess.list2cmdline(arguments))
                elif _run_key_value():
                    registry.DeleteValue(key, _NAME)
            return
        entry = _entry_path()
        if not enabled:
            entry.unlink(missing_ok=True)
            return
        if sys.platform == "darwin":
            # https://developer.apple.com/library/archive/documentation/MacOSX/Conceptual/BPSystemStartup
            agent: dict[str, Any] = {"Label": APP_ID, "ProgramArguments": arguments, "RunAtLoad": True}
            agent["ProcessType"] = "Interactive"  # otherwise launchd throttles the CPU and I/O of kvchat and its engine
            if home := os.environ.get("KVCHAT_HOME"):
                agent["EnvironmentVariables"] = {"KVCHAT_HOME": home}
            content = plistlib.dumps(agent)
        else:
            content = _desktop_entry("--hidden")
        _write(entry, content)
    except OSError as error:
        raise KvchatError(
            _("The “Start at login” setting could not be changed"),
            f"{error.filename or _RUN_KEY}: {error.strerror}.",
            _("Change the list of startup apps in your desktop’s settings."),
        ) from error


def menu_entry() -> Path:
    """Return the path of the user's own entry in the app menu (https://specifications.freedesktop.org/menu-spec)."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "applications" / f"{APP_ID}.desktop"


def can_add_to_menu() -> bool:
    """Return True on Linux, unless kvchat runs in a Flatpak or a package has installed the entry for all users."""
    folders = (os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":")
    is_installed = any(Path(folder, "applications", f"{APP_ID}.desktop").exists() for folder in folders)
    return sys.platform == "linux" and "FLATPAK_ID" not in os.environ and not is_installed


def is_missing_from_menu() -> bool:
    return can_add_to_menu() and not menu_entry().exists()


def add_to_menu(enabled: bool, icon: str) -> None:
    """Add or remove the entry in the app menu. `icon` is an SVG document. Raises KvchatError."""
    entry = menu_entry()
    picture = entry.parents[1] / "icons/hicolor/scalable/apps/kvchat.svg"
    try:
        if not enabled:
            for file in (entry, picture):
                file.unlink(missing_ok=True)
            return
        _write(picture, icon.encode())
        types = b"MimeType=x-scheme-handler/kvchat;application/x-kvchat;application/x-mcpb;\n"
        _write(entry, _desktop_entry("open", "%U") + types)
    except OSError as error:
        detail = f"{error.filename or entry}: {error.strerror}."
        raise KvchatError(
            _("The app menu could not be changed"), detail, _("Check the permissions of the folder.")
        ) from error


def _desktop_entry(*arguments: str) -> bytes:
    home = os.environ.get("KVCHAT_HOME")
    line = " ".join(map(_quote, [*(["env", f"KVCHAT_HOME={home}"] if home else []), *start_command()]))
    keys = f"Type=Application\nName=kvchat\nExec={line} {' '.join(arguments)}\nIcon=kvchat\nTerminal=false\n"
    return f"[Desktop Entry]\n{keys}".encode()


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with atomic_write(file) as new:
        new.write_bytes(content)


def start_command() -> list[str]:
    if image := os.environ.get("APPIMAGE"):  # an AppImage runs from a temporary folder
        return [image]
    program, is_bundle = Path(sys.executable), bool(getattr(sys, "frozen", False))
    if sys.platform == "win32":  # without a console
        program = program.with_name("kvchat-app.exe" if is_bundle else "pythonw.exe")
    return [str(program)] if is_bundle else [str(program), "-m", "kvchat"]


def _entry_path() -> Path:
    """Return the path of the autostart file (Linux: https://specifications.freedesktop.org/autostart-spec)."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "LaunchAgents" / f"{APP_ID}.plist"
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "autostart" / "kvchat.desktop"


def _quote(word: str) -> str:
    """Quote a word of a command line, if needed, as the desktop entry specification demands."""
    word = word.replace("%", "%%")  # or it would begin a field code
    if all(letter.isalnum() or letter in "/._-=%" for letter in word):
        return word
    for letter in '\\"`$':
        word = word.replace(letter, "\\" + letter)
    return '"' + word.replace("\\", "\\\\") + '"'  # once more, because the line is a string in the file


def _run_key_value() -> str:
    registry: Any = importlib.import_module("winreg")  # Windows only
    try:
        with registry.OpenKey(registry.HKEY_CURRENT_USER, _RUN_KEY) as key:
            return str(registry.QueryValueEx(key, _NAME)[0])
    except (FileNotFoundError, NotADirectoryError):
        return ""
