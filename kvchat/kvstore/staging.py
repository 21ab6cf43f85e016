"""Staging: where engines save and restore, in memory where there is some to spare, and what stays warm there."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path

from blake3 import blake3

from kvchat.kvstore import disk, presence

MEMORY_FOLDER = Path("/dev/shm")  # a file system in RAM; nothing like it on Windows and macOS


@dataclass(frozen=True)
class _Warm:
    """A slot file of this process, and how it looked when it was put here."""

    path: Path
    size: int
    changed_ns: int
    older_rows: int  # how many older window rows were asked for when it was composed; 0 as it was saved
    hash: str | None  # BLAKE3, once that is known


class Staging:
    """This process's staging folder. Safe for threads. Raises OSError from what makes or moves files.

    Slot files of save points stay warm in it: in memory up to a budget, the last used longest; on disk only until they
    are absorbed, for there a rebuild is as quick. What an engine is given is hashed first, in memory too: that takes a
    fraction of the time the engine then needs to read it (some GB/s on one core), and mostly happens ahead of Send.
    """

    def __init__(self, folder: Path, memory_budget: int, memory_folder: Path = MEMORY_FOLDER) -> None:
        """`folder` on disk is used when the budget (bytes) is 0 or there is no file system in memory."""
        self._lock = threading.RLock()
        self.budget = memory_budget
        self._warm: OrderedDict[str, _Warm] = OrderedDict()
        private = _in_memory(memory_folder, folder) if memory_budget > 0 else None
        self.in_memory = private is not None
        self.roots = [disk.private_folder(folder)] + ([private] if private else [])
        self.locks = self.roots[0]  # says which processes are there, see `presence`
        presence.hold(self.locks)
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

    def sweep(self) -> bool:
        """Delete the folders of processes that are gone; whether there was any."""
        swept = [disk.remove_stale(root, self.locks) for root in self.roots]
        return True in swept

    def close(self) -> None:
        """Delete this process's folder, and the one in memory around it if no other process has its own there."""
        shutil.rmtree(self._own, ignore_errors=True)
        presence.let_go(self.locks)
        if self.in_memory:
            with contextlib.suppress(OSError):
                self._own.parent.rmdir()

    def place(self, point_id: str) -> Path:
        """Where a save point's slot file lies while it is warm."""
        return self._own / f"{point_id}.slot"

    def keep(self, point_id: str, file_hash: str | None = None, older_rows: int = 0) -> None:
        """The file at `place` is the save point's, whole: it is warm from now on. Its hash may follow."""
        path = self.place(point_id)
        found = path.stat()
        with self._lock:
            self._warm[point_id] = _Warm(path, found.st_size, found.st_mtime_ns, older_rows, file_hash)

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

    def keep_as_well(self, file: Path, point_id: str, file_hash: str | None, older_rows: int) -> None:
        """Keep a second name of a file just made warm, in place of what an engine may be reading just now."""
        fresh = self._own / disk.temporary_name()
        disk.link_or_copy(file, fresh)
        fresh.replace(self.place(point_id))
        self.keep(point_id, file_hash, older_rows)

    def give(self, point_id: str, older_rows: int, target: Path) -> bool:
        """Put the warm file at `target`, proved; False if there is none, or none with the older rows asked for."""
        path = self.warm(point_id)
        warm = self._warm.get(point_id)
        if path is None or warm is None or warm.older_rows != older_rows:
            return False
        disk.link_or_copy(path, target)
        if warm.hash in (None, disk.hash_file(target)):  # without one it has only just been saved, or composed
            return True
        target.unlink()
        self.drop(point_id)
        return False

    def hash_all(self) -> None:
        """Hash the warm files whose hash is not known yet. For a background thread."""
        with self._lock:
            unknown = [(point_id, warm) for point_id, warm in self._warm.items() if warm.hash is None]
        for point_id, warm in unknown:
            with contextlib.suppress(OSError):
                self.vouch(point_id, disk.hash_file(warm.path), warm.older_rows)

    def vouch(self, point_id: str, file_hash: str, older_rows: int = 0) -> None:
        """The warm file with so many older rows, if it is still there, has this hash."""
        with self._lock:
            warm = self._warm.get(point_id)
            if warm is not None and warm.older_rows == older_rows:
                self._warm[point_id] = replace(warm, hash=file_hash)

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
