"""What Windows lacks, as marks for tests that need it and a check that does not apply there."""

import stat
import sys
from pathlib import Path

import pytest

from kvchat.session.proof import Source

WINDOWS = sys.platform == "win32"
WARM = Source.DISK if WINDOWS else Source.WARM  # Windows has no file system in memory


def not_on_windows(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(WINDOWS, reason=reason)


needs_modes = not_on_windows("Windows has no file modes")
needs_pipes = not_on_windows("Windows has no pipes, sockets or devices in folders")
needs_links = not_on_windows("Windows lets only developers make symbolic links")
needs_signals = not_on_windows("Windows has no signals")
needs_scripts = not_on_windows("Windows cannot run shell scripts")
needs_memory_folder = not_on_windows("Windows has no file system in memory for slot files")
deletes_open_files = not_on_windows("Windows deletes no open files")


def has_mode(path: Path, mode: int) -> bool:
    """True if the file has exactly these permissions; always True on Windows, which has none."""
    return WINDOWS or stat.S_IMODE(path.stat().st_mode) == mode
