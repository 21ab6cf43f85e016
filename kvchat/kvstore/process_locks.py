"""Which processes are still there: each holds a lock beside what it makes, and the system lets go of it when it dies.

What is temporary is named `<run>-...`, in an engine's slot folder `kvchat-<run>-...`; the lock is the file
`kvchat-<run>.lock`. Process ids tell nothing: in containers that share a folder every run may have the same.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from filelock import BaseFileLock

_MADE = re.compile(r"(?:kvchat-)?(?P<run>[0-9a-f]{16})-")
_MADE_EARLIER = re.compile(r"(?:kvchat-)?(?P<pid>[0-9]{1,9})-")  # by versions that went by process ids
_LOCK = re.compile(r"kvchat-[0-9a-f]{16}\.lock")
_held: dict[Path, tuple[BaseFileLock, int]] = {}  # the locks of this process, and how many of its parts need each
_guard = threading.Lock()


def run_id() -> str:
    """What the names begin with that this process gives."""
    return _run


def hold(folder: Path) -> None:
    """From now on what this process makes there is its own: call it before anything is made. Raises OSError."""
    with _guard:
        lock, parts = _held.get(folder) or (_acquire(folder), 0)
        _held[folder] = lock, parts + 1


def let_go(folder: Path) -> None:
    """One part of this process less needs the folder; the last one takes the lock away."""
    with _guard:
        lock, parts = _held.pop(folder, (None, 0))
        if lock is None:
            return
        if parts > 1:
            _held[folder] = lock, parts - 1
            return
        _remove(lock)


def is_gone(name: str, locks: Path) -> bool:
    """Whether `name` was given by a process that is gone, which had its lock in the folder `locks`."""
    if made := _MADE.match(name):
        return made["run"] != _run and _is_free(locks / _lock_name(made["run"]))
    if made := _MADE_EARLIER.match(name):
        return int(made["pid"]) == os.getpid() or not psutil.pid_exists(int(made["pid"]))
    return False


def others(locks: Path) -> bool:
    """Whether another process is there."""
    return any(name != _lock_name(_run) and not _is_free(locks / name) for name in _lock_names(locks))


def died(locks: Path) -> list[Path]:
    """The locks of processes that ended without a word. Delete them when all they left is gone."""
    return [locks / name for name in _lock_names(locks) if name != _lock_name(_run) and _is_free(locks / name)]


def forget(locks: Iterable[Path]) -> None:
    """Delete such locks."""
    for lock in locks:
        with contextlib.suppress(OSError):
            lock.unlink()


def _acquire(folder: Path) -> BaseFileLock:
    from filelock import FileLock, Timeout  # slow to import, and not needed to show the window

    lock = FileLock(folder / _lock_name(_run), timeout=1, mode=0o600, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise OSError(f"{lock.lock_file} is held by another process") from error
    except NotImplementedError as error:
        raise OSError("this file system has no locks") from error
    return lock


def _is_free(lock: Path) -> bool:
    """Whether nobody holds it. One that is not there was let go of; one that cannot be asked for counts as held."""
    from filelock import FileLock, Timeout

    if not lock.exists():
        return True
    try:
        with FileLock(lock, timeout=0, thread_local=False):
            return True
    except (Timeout, OSError, NotImplementedError):
        return False


def _remove(lock: BaseFileLock) -> None:
    with contextlib.suppress(OSError):
        lock.release()
        Path(lock.lock_file).unlink()


def _lock_name(of: str) -> str:
    return f"kvchat-{of}.lock"


def _lock_names(locks: Path) -> list[str]:
    try:
        return [path.name for path in locks.iterdir() if _LOCK.fullmatch(path.name)]
    except OSError:
        return []


def _begin() -> None:
    """A process of its own, which a forked child is as well; what its parent holds is not the child's to give up."""
    global _run, _guard
    _run, _guard = secrets.token_hex(8), threading.Lock()
    _held.clear()


def _end() -> None:
    for lock, _ in _held.values():
        _remove(lock)


_run = secrets.token_hex(8)
atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)
