"""Files that the store keeps in memory, or gives to engines: what the system says of them."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
from pathlib import Path

from blake3 import blake3


def stamp(file: Path) -> tuple[int, ...]:
    """What changes when someone writes to a file: the last number even if they put the time of writing back."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def size_of(file: Path) -> int:
    """Its length in bytes, 0 when it is gone."""
    with contextlib.suppress(OSError):
        return file.stat().st_size
    return 0


def delete(file: Path) -> None:
    """Delete it, if that can be."""
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)


def fill_up(file: Path, size: int) -> None:
    """Make a private file of that size whose pages are there. Raises OSError."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as made:
        if sys.platform == "linux":
            os.posix_fallocate(made.fileno(), 0, size)


def is_alone(file: Path) -> bool:
    """Whether no process has the file open, this one included: the system grants a lease for writing only then.

    An engine that was asked to restore and whose answer nobody waited for may still be reading.
    """
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        with file.open("rb+", buffering=0) as opened:
            fcntl.fcntl(opened, fcntl.F_SETSIG, signal.SIGURG)  # whoever opens it just now must not end us by SIGIO
            fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True


def private_folder_in(memory: Path, folder: Path) -> Path | None:
    """A folder in memory for the store at `folder` that is this user's alone, None where that cannot be had."""
    if not hasattr(os, "getuid"):
        return None
    store = blake3(str(folder.absolute()).encode()).hexdigest(length=6)
    private = memory / f"kvchat-{os.getuid()}-{store}"
    try:
        private.mkdir(mode=0o700, exist_ok=True)
        found = private.lstat()  # someone else may have made it, or a link, to read along
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return None
        private.chmod(0o700)
    except OSError:
        return None
    return private
