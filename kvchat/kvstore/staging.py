"""Staging: where engines save and restore, in memory where there is some to spare, and what stays warm there."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from kvchat.kvstore import disk

MEMORY_FOLDER = Path("/dev/shm")  # a file system in RAM; nothing like it on Windows and macOS


@dataclass(frozen=True)
class _Warm:
    """A slot file of this process, and how it looked when it was put here."""

    path: Path
    size: int
    changed_ns: int


class Staging:
    """This process's staging folder. Safe for threads. Raises OSError from what makes or moves files.

    Slot files of save points stay warm in it: in memory up to a budget, the last used longest; on disk only until they
    are absorbed, for there a rebuild is as quick.
    """

    def __init__(self, folder: Path, memory_budget: int, memory_folder: Path = MEMORY_FOLDER) -> None:
        """`folder` on disk is used when the budget (bytes) is 0 or there is no file system in memory."""
        self._lock = threading.RLock()
        self.budget = memory_budget
        self._warm: OrderedDict[str, _Warm] = OrderedDict()
        private = _in_memory(memory_folder, folder) if memory_budget > 0 else None
        self.in_memory = private is not None
        self.roots = [disk.private_folder(folder)] + ([private] if private else [])
        self._own = disk.private_folder(self.roots[-1] / disk.temporary_name())
        self.owner = self._own.name

    def slot_folder(self) -> Path:
        """A fresh private folder for one engine."""
        return disk.private_folder(self._own / disk.temporary_name())

    def adopt(self, owner: str, point_id: str, size: int) -> bool:
        """Take over a slot file that a process which is gone has left in memory; False if there is none, whole.

        Not from disk: after a power cut a file there may have its length and not its bytes.
        """
        left = self.roots[-1] / owner / f"{point_id}.slot"
        try:
            if not self.in_memory or left.stat().st_size != size:
                return False
            left.rename(self.place(point_id))
            self.keep(point_id)
        except OSError:
            return False
        return True

    def sweep(self) -> None:
        """Delete the folders of processes that are gone."""
        for root in self.roots:
            disk.remove_stale(root)

    def close(self) -> None:
        """Delete this process's folder."""
        shutil.rmtree(self._own, ignore_errors=True)

    def place(self, point_id: str) -> Path:
        """Where a save point's slot file lies while it is warm."""
        return self._own / f"{point_id}.slot"

    def keep(self, point_id: str) -> None:
        """The file at `place` is the save point's, whole: it is warm from now on."""
        path = self.place(point_id)
        found = path.stat()
        with self._lock:
            self._warm[point_id] = _Warm(path, found.st_size, found.st_mtime_ns)

    def warm(self, point_id: str) -> Path | None:
        """The warm file of a save point, None when there is none or someone has touched it."""
        with self._lock:
            warm = self._warm.get(point_id)
            if warm is None:
                return None
            try:
                found = warm.path.stat()
            except OSError:
                return None
            if (found.st_size, found.st_mtime_ns) != (warm.size, warm.changed_ns):
                return None
            self._warm.move_to_end(point_id)
            return warm.path

    def drop(self, point_id: str) -> None:
        """Delete a warm file."""
        with self._lock:
            self._warm.pop(point_id, None)
        with contextlib.suppress(OSError):
            self.place(point_id).unlink(missing_ok=True)

    def trim(self, unabsorbed: frozenset[str], expected: int = 0) -> None:
        """Delete what exceeds the budget with `expected` bytes to come, the longest unused first.

        What is not absorbed yet stays; nothing else does on disk.
        """
        budget = self.budget - expected if self.in_memory else 0
        with self._lock:
            for point_id in [name for name in self._warm if name not in unabsorbed]:
                if self.bytes() <= budget:
                    break
                self.drop(point_id)

    def bytes(self) -> int:
        """Bytes of warm files."""
        with self._lock:
            return sum(warm.size for warm in self._warm.values())

    def free(self) -> int:
        """Bytes the file system of the staging folder has left."""
        return disk.free_bytes(self._own)


def _in_memory(memory: Path, folder: Path) -> Path | None:
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
