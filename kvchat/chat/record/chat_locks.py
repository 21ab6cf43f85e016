"""One writer a chat at a time, across processes: a lock for each chat that is being answered. It dies with its process.

A lock is a file of that chat's in a private folder, gone again when the lock is given back.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from filelock import FileLock, Timeout

ANSWERING = "answering"  # the folder's name, beside the chats' file


class ChatLocks:
    """The chats this process answers in. For one thread, not the window's: a disk may be slow."""

    def __init__(self, folder: Path) -> None:
        """`folder` need not exist. Where locks cannot be had there, everybody writes: the words matter more."""
        self._folder = folder
        self._held: dict[str, tuple[FileLock | None, int]] = {}  # the lock, and how often it was taken

    def acquire(self, conversation_id: str) -> bool:
        """Whether this process answers here now. Each time that it does, it must be given back."""
        lock, count = self._held.get(conversation_id, (None, 0))
        if not count:
            try:
                lock = self._lock(conversation_id)
            except Timeout:
                return False
            except OSError:
                lock = None
        self._held[conversation_id] = lock, count + 1
        return True

    def release(self, conversation_id: str) -> None:
        """This process no longer answers here, as often as it took that."""
        lock, count = self._held.pop(conversation_id)
        if count > 1:
            self._held[conversation_id] = lock, count - 1
        elif lock is not None:
            _release(lock)

    def held_elsewhere(self, conversation_id: str) -> bool:
        """Whether another process answers here right now."""
        if conversation_id in self._held or not self._path(conversation_id).exists():
            return False
        if not self.acquire(conversation_id):
            return True
        self.release(conversation_id)
        return False

    def sweep(self) -> None:
        """Remove what killed processes left."""
        with contextlib.suppress(OSError):
            for path in self._folder.glob("*.lock"):
                with contextlib.suppress(Timeout):
                    _release(_taken(path))

    def _lock(self, conversation_id: str) -> FileLock:
        """Raises Timeout where another process has it, OSError where there can be none."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        return _taken(self._path(conversation_id))

    def _path(self, conversation_id: str) -> Path:
        return self._folder / f"{hashlib.sha256(conversation_id.encode('utf-8', 'replace')).hexdigest()[:32]}.lock"


def _taken(path: Path) -> FileLock:
    lock = FileLock(path, timeout=0, mode=0o600, thread_local=False)
    lock.acquire()
    return lock


def _release(lock: FileLock) -> None:
    """The file goes before the lock: who opened it meanwhile sees that it is gone, and makes another.

    On Windows filelock removes it.
    """
    if os.name != "nt":
        with contextlib.suppress(OSError):
            Path(lock.lock_file).unlink()
    lock.release()
