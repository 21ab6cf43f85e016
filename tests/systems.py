"""What Windows lacks, as marks for tests that need it and a check that does not apply there."""

import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvchat.session.proof import Source

WINDOWS = sys.platform == "win32"
# Sources of a save point that Linux keeps in memory. Windows has no file system there: it is warm until absorbed.
WARM = (Source.WARM, Source.DISK) if WINDOWS else (Source.WARM,)


def not_on_windows(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(WINDOWS, reason=reason)


needs_modes = not_on_windows("Windows has no file modes")
needs_pipes = not_on_windows("Windows has no pipes, sockets or devices in folders")
needs_links = not_on_windows("Windows lets only developers make symbolic links")
needs_signals = not_on_windows("Windows has no signals")
needs_scripts = not_on_windows("Windows cannot run shell scripts")
needs_memory_folder = not_on_windows("Windows has no file system in memory for slot files")
deletes_open_files = not_on_windows("Windows deletes no open files")


# What `os.stat` shows of a file that is stored only in OneDrive, on an archive system or in iCloud.
ONLINE_ONLY = (("st_file_attributes", 0x400020), ("st_file_attributes", 0x1000), ("st_flags", 0x40000000))


def make_online_only(monkeypatch: pytest.MonkeyPatch, file: Path, mark: tuple[str, int]) -> None:
    """Make a file appear to be stored online only, and fail if it is opened."""
    stat, open_file = Path.stat, os.open

    def marked_stat(path: Path, **options: bool) -> Any:
        status = stat(path, **options)
        fields = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
        return SimpleNamespace(**fields | dict([mark])) if path == file else status

    def checked_open(path: Any, *options: Any) -> int:
        assert Path(path) != file, "this would download the file"
        return open_file(path, *options)

    monkeypatch.setattr(Path, "stat", marked_stat)
    monkeypatch.setattr(os, "open", checked_open)


def has_mode(path: Path, mode: int) -> bool:
    """True if the file has exactly these permissions; always True on Windows, which has none."""
    return WINDOWS or stat.S_IMODE(path.stat().st_mode) == mode
