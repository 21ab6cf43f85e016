"""Staging: where engines save and restore, in memory where there is some to spare, and what stays warm there.

An engine is told one folder when it starts, which lies on disk. Whether a file lies there or in memory is decided for
each by itself, by what is free now: of one in memory the folder has a link. What is too large for that, or for a
container's 64 MB of /dev/shm, goes by way of the disk.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kvchat.kvstore import disk, memory_files
from kvchat.kvstore.memory_files import MemoryPool, MemoryRoom, Staged
from kvchat.system.files import size_of


@dataclass(frozen=True)
class _WarmFile:
    """A save point's slot file, and how it looked when it was put here."""

    path: Path
    stamp: tuple[int, ...]
    window: int  # of so many tokens, which it was given the missing row for; 0: as it was saved


class Staging:
    """The store's staging folders. Safe for threads. Raises OSError from what makes or moves files.

    Slot files of save points stay warm: in memory as long as there is room, the last used longest; on disk the last
    one, for which the engine then waits no longer than for its own reading. None is read before the engine gets it:
    nobody but this process writes here, and a file that anyone has touched, as its times say, is not given.
    """

    def __init__(self, folder: Path, room: MemoryRoom, memory_folder: Path = memory_files.MEMORY_FOLDER) -> None:
        """`folder` is on disk; what may lie in memory, `room` says whenever it matters."""
        self._lock = threading.RLock()
        self._room, self._memory_root = room, memory_folder
        self._warm: OrderedDict[str, _WarmFile] = OrderedDict()
        self._given: dict[Path, Path] = {}  # the engine's name for a file, and the file
        self._read_on: set[Path] = set()  # an engine may still be reading these: none is written over
        self._folder = disk.private_folder(folder)
        private = memory_files.private_folder_in(memory_folder, folder) if room(0) > 0 and self._can_link() else None
        self._memory = MemoryPool(private, room) if private else None

    @property
    def in_memory(self) -> bool:
        return self._memory is not None

    def slot_folder(self) -> Path:
        return disk.private_folder(self._folder / disk.temporary_name())

    def take_over(self, waiting: Mapping[str, int]) -> set[str]:
        """Adopt what a process that was killed has left in memory, delete all else of it; the save points adopted.

        `waiting`: bytes of each save point that was not absorbed. From disk none is taken: after a power cut a file
        there may have its length and not its bytes.
        """
        adopted = set[str]()
        for left in disk.listing(self._memory.folder) if self._memory else ():
            if left.suffix == ".slot" and size_of(left) == waiting.get(left.stem, -1):
                self.keep(left.stem, left)
                adopted.add(left.stem)
            else:
                disk.remove(left)
        for left in disk.listing(self._folder):
            disk.remove(left)
        return adopted

    def close(self) -> None:
        for left in disk.listing(self._folder):
            disk.remove(left)
        if self._memory is not None:
            self._memory.close()

    def expect(self, place: Path, size: int, unabsorbed: frozenset[str]) -> bool:
        """An engine is going to save about so much at `place`: have it go to memory, if there is room; True if it will.

        Not in a folder that is not from `slot_folder`: its server may not see this one's memory.
        """
        with self._lock:
            if self._memory is None or not self._is_own(place) or not self._make_room(self._memory, size, unabsorbed):
                return False
            file = self._memory.new()
            file.touch(0o600, exist_ok=False)
            self._memory.expected[file] = size
            place.symlink_to(file)
            return True

    def forget(self, place: Path) -> None:
        with contextlib.suppress(OSError):
            memory_files.delete(self._in_memory_at(place) or place)

    def take_in(self, place: Path) -> Path:
        """The file an engine has saved at `place`, moved to where `keep` may be told of it."""
        file = self._in_memory_at(place)
        if file is None:
            file = self.blank_on_disk()
            disk.move(place, file)  # between file systems it is a copy
        return file

    def _in_memory_at(self, place: Path) -> Path | None:
        """The file in memory that `expect` gave the name to, which is gone then; None without."""
        with self._lock:
            if self._memory is None or not self._is_own(place) or not place.is_symlink():
                return None
            file = place.readlink()
            place.unlink()
            self._memory.expected.pop(file, None)
            return file

    def blank(self, size: int, target: Path | None, unabsorbed: frozenset[str]) -> Path:
        """A file to put a slot file of that size together in, new or to be written over: for `hand` or `keep`.

        `target` is where an engine wants it; if that is not one of our folders, it is put together there.
        """
        with self._lock:
            if target is not None and not self._is_own(target):
                return target
            if (memory := self._memory) is None:
                return self.blank_on_disk()
            if not memory.spare and not memory.fits(size) and (unused := self._unused(memory, unabsorbed)):
                self.give_back(self._warm.pop(unused[0]).path)  # it has to go for room anyway
            spare = memory.take_spare()
            if not self._make_room(memory, size - size_of(spare), unabsorbed):
                self.give_back(spare)
                return self.blank_on_disk()
            return spare

    def blank_on_disk(self) -> Path:
        return self._folder / disk.temporary_name()

    def has_room(self, size: int) -> bool:
        return self._memory is not None and self._memory.most != sys.maxsize and self._memory.fits(size)

    def is_in_memory(self, file: Path) -> bool:
        return self._memory is not None and file.parent == self._memory.folder

    def prepare(self, size: int, cancelled: Callable[[], bool]) -> None:
        """Have a file of that size to write over, its pages at hand, if there is memory and until it is cancelled.

        Once memory was planned for an engine of ours; another's files are put together where it has them. For a
        background thread.
        """
        memory, mapped = self._memory, None
        if memory is None or not size or memory.most == sys.maxsize:
            return
        with self._lock, contextlib.suppress(OSError):
            file = memory.take_spare()
            fits = memory.fits(size - size_of(file))
            if fits or size_of(file):
                memory.spare.append(file)  # from now on: who needs one before it is ready takes it as far as it is
            if fits:
                with memory_files.open_private(file) as opened:
                    mapped = memory_files.mapped(file, opened, size, ready=False)
        if mapped:
            with contextlib.suppress(OSError):
                mapped.have_all_ready(size, lambda: file not in memory.spare or cancelled())  # taken, or it has to go
            with self._lock:
                self._make_room(memory, 0, frozenset(self._warm))  # that may have grown less meanwhile

    def keep(self, point_id: str, file: Path, window: int = 0, *, waits: bool = True) -> None:
        """The file is the save point's, whole: it is warm from now on. `waits`: it is not absorbed yet."""
        with self._lock:
            if waits:
                file = file.rename(file.with_name(f"{point_id}.slot"))  # as `take_over` looks for it
                file.chmod(0o600)
            before = self._warm.pop(point_id, None)
            self._warm[point_id] = _WarmFile(file, memory_files.stamp(file), window)
            if before is not None:
                self.give_back(before.path)

    def warm(self, point_id: str) -> Path | None:
        """The warm file of a save point, None when there is none or someone has touched it."""
        with self._lock:
            warm = self._warm.get(point_id)
            with contextlib.suppress(OSError):
                if warm is not None and memory_files.stamp(warm.path) == warm.stamp:
                    self._warm.move_to_end(point_id)
                    return warm.path
            return None

    def has_warm(self, point_id: str, *, on_disk: bool = False) -> bool:
        """True if a save point has a warm file, which is not looked at; `on_disk`: one that lies there."""
        warm = self._warm.get(point_id)
        return warm is not None and not (on_disk and warm.path.parent != self._folder)

    def give(self, point_id: str, window: int, target: Path) -> bool:
        """Put the warm file at `target`; False if there is none, or none with the row that such a window lacks."""
        with self._lock:
            path = self.warm(point_id)
            if path is None or self._warm[point_id].window != window:
                return False
            self.hand(path, target)
            return True

    def hand(self, file: Path, target: Path) -> None:
        """Give a file the name `target`, until `unstage`; a copy where an engine could not follow a link."""
        if file == target:
            return
        with self._lock:
            if self.is_in_memory(file) and self._is_own(target):
                target.symlink_to(file)
            else:
                disk.link_or_copy(file, target)
                self._restamp(file)
            self._given[target] = file

    def unstage(self, target: Path, *, engine_done: bool) -> None:
        """Take the name away again. A file that is nobody's then is one to spare.

        Unless the engine may still be reading it: it was asked to restore, and nobody waited for its answer.
        """
        with self._lock:
            file = self._given.pop(target, None)
            with contextlib.suppress(OSError):  # one that is held open (Windows) goes when its slot folder does
                target.unlink()
            if file is not None:
                self._restamp(file)
                if not engine_done:
                    self._read_on.add(file)
                self.give_back(file)

    def give_back(self, file: Path) -> None:
        """What `blank` gave, or an engine was given, is perhaps no longer needed."""
        with self._lock:
            if file in self._given.values() or any(warm.path == file for warm in self._warm.values()):
                return
            if self._memory is not None and self.is_in_memory(file) and file.exists() and file not in self._read_on:
                self._memory.spare.append(file)
            elif self.is_in_memory(file) or file.parent == self._folder:
                self._read_on.discard(file)
                memory_files.delete(file)

    def drop(self, point_id: str) -> None:
        """Delete a warm file, and what is left of others in files to spare."""
        with self._lock:
            warm = self._warm.pop(point_id, None)
            if self._memory is not None:
                self._memory.forget_spares()
        if warm is not None:
            memory_files.delete(warm.path)

    def trim(self, unabsorbed: frozenset[str], *, disk_too: bool = False, most: int | None = None) -> None:
        """Delete what is more than memory has room for now, the longest unused first; what is not absorbed stays.

        On disk the last used stays, unless `disk_too`. `most`: so much may be in memory from now on.
        """
        with self._lock:
            if self._memory is not None:
                self._memory.most = self._memory.most if most is None else most
                self._make_room(self._memory, 0, unabsorbed)
            on_disk = [name for name, warm in self._warm.items() if warm.path.parent == self._folder]
            for name in on_disk if disk_too else on_disk[:-1]:
                if name not in unabsorbed:
                    memory_files.delete(self._warm.pop(name).path)

    def staged(self, unabsorbed: frozenset[str]) -> Staged:
        with self._lock:
            if self._memory is None:
                return Staged()
            can_go = self._can_go(self._memory, self._unused(self._memory, unabsorbed))
            return Staged(can_go, memory_files.place_in(self._memory.folder, self._memory.bytes()))

    def bytes(self, *, disk_too: bool = False) -> int:
        """Bytes in memory, of warm files and those to spare; `disk_too`: and of all that is staged on disk."""
        with self._lock:
            in_memory = self._memory.bytes() if self._memory else 0
            return in_memory + (disk.tree_size(self._folder) if disk_too else 0)

    def in_words(self) -> str:
        held, room = self.bytes(), self._memory.room if self._memory else self._room
        return memory_files.staged_where(self._memory_root, room(held), held)

    def _can_link(self) -> bool:
        """True if a file in the folder can be a link to one elsewhere: not on every file system."""
        link = self._folder / disk.temporary_name()
        try:
            link.symlink_to(self._folder)
            link.unlink()
        except OSError:
            return False
        return True

    def _is_own(self, place: Path) -> bool:
        return place.parent.parent == self._folder

    def _unused(self, memory: MemoryPool, unabsorbed: frozenset[str]) -> list[str]:
        """The save points whose files in memory can go, the longest unused first."""
        busy = set(self._given.values())
        return [
            name
            for name, warm in self._warm.items()
            if warm.path.parent == memory.folder and name not in unabsorbed and warm.path not in busy
        ]

    def _can_go(self, memory: MemoryPool, unused: list[str]) -> int:
        return sum(map(size_of, [*memory.spare, *(self._warm[name].path for name in unused)]))

    def _make_room(self, memory: MemoryPool, size: int, unabsorbed: frozenset[str]) -> bool:
        """Make room for so many bytes more, if that can be; True if there is."""
        unused = self._unused(memory, unabsorbed)
        if size > 0 and not memory.fits(size - self._can_go(memory, unused)):
            return False
        while not memory.fits(size) and (memory.spare or unused):
            memory_files.delete(memory.spare.pop() if memory.spare else self._warm.pop(unused.pop(0)).path)
        return memory.fits(size)

    def _restamp(self, file: Path) -> None:
        """A name more or less changes a file's times; only we give it names."""
        for point_id, warm in self._warm.items():
            with contextlib.suppress(OSError):
                if warm.path == file and memory_files.stamp(file)[:2] == warm.stamp[:2]:
                    self._warm[point_id] = replace(warm, stamp=memory_files.stamp(file))
