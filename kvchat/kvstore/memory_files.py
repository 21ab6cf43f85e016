"""Files in memory, where engines save and restore: how much room there is for them, and their pages, mapped.

To give a file in memory new pages takes longer than copying its bytes (3.6 times, 1 GB on two cores), and to enter
pages in this process's memory costs 40 %. So files are written over, and the last two stay mapped.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import FileIO
from pathlib import Path

from blake3 import blake3

from kvchat.kvstore import disk
from kvchat.system.files import size_of
from kvchat.words.wording import size as size_in_words

MEMORY_FOLDER = Path("/dev/shm")  # a file system in RAM; nothing like it on Windows and macOS
_MOST_MAPPED = 2  # files: what an engine reads, and what the next is put together in
_POPULATE_READ = 22  # have these pages at hand (Linux 5.14); shared ones may be written to as well then
_READY_AT_ONCE = 1 << 20  # bytes: others may wait for what is known of this process's memory
SLACK = 16 << 20  # bytes that stay free in it: an engine's file is a little larger than estimated

MemoryRoom = Callable[[int], int]  # from what lies in memory now to what may lie there, in bytes


@dataclass(frozen=True)
class Staged:
    """What a store has to do with the computer's memory, in bytes."""

    disposable: int = 0  # lies there, and goes when a model needs the room
    place: int = 0  # could lie there, if nobody else had any use for it


NOTHING_STAGED = Staged()


class MemoryPool:
    """The store's files in memory, within the room there is for them; some are to spare, to be written over.

    Its caller has the lock.
    """

    def __init__(self, folder: Path, room: MemoryRoom) -> None:
        self.folder, self._room = folder, room
        self.most = sys.maxsize  # that was planned for, beside the model that is loaded
        self.spare: list[Path] = []
        self.expected: dict[Path, int] = {}  # what is still to grow, and to how much

    def new(self) -> Path:
        return self.folder / disk.temporary_name()

    def bytes(self) -> int:
        """Bytes of all files here, the expected ones as large as they are going to be."""
        held = 0
        for path in disk.listing(self.folder):
            with contextlib.suppress(OSError):
                held += max(path.stat().st_size, self.expected.get(path, 0))
        return held

    def room(self, held: int) -> int:
        return min(self.most, self._room(held))

    def fits(self, size: int) -> bool:
        """True if there is room for so many bytes more, now."""
        held = self.bytes()
        return held + size <= self.room(held) and size + SLACK <= disk.free_bytes(self.folder)

    def take_spare(self) -> Path:
        if not self.spare:
            return self.new()
        largest = max(self.spare, key=size_of)
        self.spare.remove(largest)
        return largest

    def forget_spares(self) -> None:
        """Delete them: they hold what was in them."""
        while self.spare:
            delete(self.spare.pop())

    def close(self) -> None:
        """Delete the folder with all that is in it."""
        for file in disk.listing(self.folder):
            delete(file)
        disk.remove(self.folder)


def stamp(file: Path) -> tuple[int, ...]:
    """What changes when someone writes to a file: the last number even if they put the time of writing back."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def delete(file: Path) -> None:
    """Delete it, if that can be, and let go of its bytes."""
    _mapped.pop(file, None)
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)


@cache
def _libc() -> ctypes.CDLL:
    """Its madvise, for mmap's own keeps all other threads waiting."""
    return ctypes.CDLL(None)


class Mapped:
    """The bytes of a private file, mapped, and the file, open; as long as one of them is used."""

    def __init__(self, file: FileIO, size: int) -> None:
        self.file = FileIO(os.dup(file.fileno()), "r+")
        self.bytes = mmap.mmap(file.fileno(), size)
        self._start = ctypes.c_char.from_buffer(self.bytes)

    def __del__(self) -> None:
        self.file.close()  # not before: another thread may be using it

    def have_all_ready(self, size: int, cancelled: Callable[[], bool]) -> None:
        """Have the first so many bytes' pages made and at hand, little by little, until it is cancelled. OSError."""
        for offset in range(0, size, _READY_AT_ONCE):
            if cancelled():
                break
            length = min(_READY_AT_ONCE, size - offset)
            os.posix_fallocate(self.file.fileno(), offset, length)
            self.have_ready(offset, length)

    def have_ready(self, offset: int, length: int) -> None:
        first = offset - offset % mmap.PAGESIZE
        place = ctypes.c_void_p(ctypes.addressof(self._start) + first)
        _libc().madvise(place, ctypes.c_size_t(offset + length - first), _POPULATE_READ)


_mapped: dict[Path, Mapped] = {}  # what was written over last in this process, or is to be next


def mapped(path: Path, file: FileIO, size: int, *, ready: bool = True) -> Mapped:
    """The mapping of the open file, made that large if it is smaller; that of the last two is kept until `delete`.

    Raises OSError: that it has no room is known now, not later, unless its pages need not be `ready`.
    """
    there = os.fstat(file.fileno())
    if ready and disk.allotted(there) < size:
        os.posix_fallocate(file.fileno(), 0, size)
    elif there.st_size < size:
        file.truncate(size)
    kept = _mapped.pop(path, None)
    if kept is None or len(kept.bytes) < size or not os.fstat(kept.file.fileno()).st_nlink:  # 0: it was deleted
        kept = Mapped(file, size)
    _mapped[path] = kept
    for other in list(_mapped)[:-_MOST_MAPPED]:
        _mapped.pop(other, None)
    return kept


def open_private(path: Path) -> FileIO:
    """The file, made if need be, that nobody else may read. Raises OSError."""
    return FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")


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


def place_in(folder: Path, held: int = 0) -> int:
    """How many bytes could lie in a file system in memory of which `held` do: 0 where no files can be made there."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return 0
    return max(0, held + shutil.disk_usage(folder).free - SLACK)


def staged_where(folder: Path, allowed: int, held: int = 0) -> str:
    """Where slot files go on their way to and from an engine, and why there, in words.

    `folder` is a file system in memory, `allowed` what may lie there of which `held` bytes do.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"on disk: no files can be made in {folder}"
    place = place_in(folder, held)  # a plan that was made for a small place allows no more than that
    if min(allowed, place) < SLACK:
        return f"on disk: {f'{folder} is full' if place <= allowed else 'too little memory is free'}"
    why = f"{folder} has no more" if place <= allowed else "more is left for the engine and others"
    words = f"in memory ({folder}), up to {size_in_words(min(allowed, place))}, for {why}"
    return f"{words}; what is larger goes by way of the disk"
