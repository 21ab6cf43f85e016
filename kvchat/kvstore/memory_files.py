"""Slot files in RAM: the folder for them, its capacity, and memory-mapped files.

Allocating pages for a file in RAM takes 3.6 times as long as copying its bytes (1 GB on two cores), and mapping them
into this process adds 40 %. So existing files are overwritten, and the last two stay mapped.
"""

import contextlib
import ctypes
import mmap
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import FileIO
from pathlib import Path

from blake3 import blake3

from kvchat.kvstore import disk
from kvchat.text.formatting import format_size

MEMORY_FOLDER = Path("/dev/shm")  # a file system in RAM; Windows and macOS have none
_MAX_MAPPED = 2  # files: the one that the engine reads and the one being composed
_POPULATE_READ = 22  # MADV_POPULATE_READ (Linux 5.14); makes shared pages writable, too
_POPULATE_CHUNK = 1 << 20  # bytes per call, which locks this process's memory map
SLACK_BYTES = 16 << 20  # bytes left free: an engine's file is a little larger than estimated
_libc = cache(lambda: ctypes.CDLL(None))  # for madvise; mmap's own method holds the GIL

MemoryRoom = Callable[[int], int]  # maps bytes in memory now to the bytes allowed


@dataclass(frozen=True)
class StagingMemory:
    """RAM for a store's slot files, in bytes."""

    reclaimable: int = 0  # in use, but freed when a model needs it
    capacity: int = 0  # available if nothing else needs it


NO_STAGING_MEMORY = StagingMemory()


def file_stamp(file: Path) -> tuple[int, ...]:
    """Return size, mtime and ctime. Every write changes the ctime, which programs cannot set."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def delete(file: Path) -> None:
    _mapped.pop(file, None)
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)


class MappedFile:
    """A memory-mapped file, kept open until the object is no longer referenced."""

    def __init__(self, file: FileIO, size: int) -> None:
        self.file = FileIO(os.dup(file.fileno()), "r+")
        self.bytes = mmap.mmap(file.fileno(), size)
        self._start = ctypes.c_char.from_buffer(self.bytes)

    def __del__(self) -> None:
        self.file.close()  # another thread may use it until now

    def populate_all(self, size: int, cancelled: Callable[[], bool]) -> None:
        """Allocate and map pages for the first `size` bytes; stop when cancelled. Raises OSError."""
        for offset in range(0, size, _POPULATE_CHUNK):
            if cancelled():
                break
            length = min(_POPULATE_CHUNK, size - offset)
            os.posix_fallocate(self.file.fileno(), offset, length)
            self.populate(offset, length)

    def populate(self, offset: int, length: int) -> None:
        first = offset - offset % mmap.PAGESIZE
        place = ctypes.c_void_p(ctypes.addressof(self._start) + first)
        _libc().madvise(place, ctypes.c_size_t(offset + length - first), _POPULATE_READ)


_mapped: dict[Path, MappedFile] = {}  # files last or next overwritten in this process


def map_file(path: Path, file: FileIO, size: int, *, allocate: bool = True) -> MappedFile:
    """Extend an open file to `size` bytes and map it. With `allocate`, raises OSError if memory is full."""
    status = os.fstat(file.fileno())
    if allocate and disk.disk_usage(status) < size:
        os.posix_fallocate(file.fileno(), 0, size)
    elif status.st_size < size:
        file.truncate(size)
    mapping = _mapped.pop(path, None)
    if mapping is None or len(mapping.bytes) < size or not os.fstat(mapping.file.fileno()).st_nlink:  # 0: deleted
        mapping = MappedFile(file, size)
    _mapped[path] = mapping
    for other in list(_mapped)[:-_MAX_MAPPED]:
        _mapped.pop(other, None)
    return mapping


def open_private(path: Path) -> FileIO:
    """Open a file for reading and writing; create it with mode 0600 if missing. Raises OSError."""
    return FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")


def private_folder_in(memory: Path, folder: Path) -> Path | None:
    """Return a private folder under `memory` for the store at `folder`, or None if it cannot be created."""
    if not hasattr(os, "getuid"):
        return None
    store = blake3(str(folder.absolute()).encode()).hexdigest(length=6)
    private = memory / f"kvchat-{os.getuid()}-{store}"
    try:
        private.mkdir(mode=0o700, exist_ok=True)
        status = private.lstat()  # another user may have created it, or a link, to spy
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return None
        private.chmod(0o700)
    except OSError:
        return None
    return private


def staging_capacity(folder: Path, held_bytes: int = 0) -> int:
    """Return how many bytes of slot files fit in `folder`, an in-memory file system, or 0 if it is not writable.

    `held_bytes`: bytes of the slot files already in it.
    """
    if not _is_usable(folder):
        return 0
    return max(0, held_bytes + shutil.disk_usage(folder).free - SLACK_BYTES)


def _is_usable(folder: Path) -> bool:
    return hasattr(os, "getuid") and os.access(folder, os.W_OK | os.X_OK)  # on Windows the name means C:\\dev\\shm


def describe_staging(folder: Path, allowed: int, held_bytes: int = 0) -> str:
    """Describe where slot files are staged, and why. `held_bytes`: bytes of slot files now in `folder`."""
    if not _is_usable(folder):
        return f"on disk: {folder} is not available"
    capacity = staging_capacity(folder, held_bytes)  # a plan made for a small folder allows no more
    if min(allowed, capacity) < SLACK_BYTES:
        return f"on disk: {f'{folder} is full' if capacity <= allowed else 'not enough free memory'}"
    why = f"limited by {folder}" if capacity <= allowed else "the rest is reserved for the engine and other apps"
    limit = format_size(min(allowed, capacity))
    return f"in memory ({folder}) up to {limit} ({why}); larger files on disk"
