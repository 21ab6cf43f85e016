"""Staging: where engines save and restore, in memory where there is some to spare, and what stays warm there.

An engine is told one folder when it starts, which lies on disk. Whether a file lies there or in memory is decided for
each by itself, by what is free now: of one in memory the folder has a link. What is too large for that, or for a
container's 64 MB of /dev/shm, goes by way of the disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvchat.kvstore import disk, memory_files, presence

MemoryRoom = Callable[[int], int]  # from what staging holds in memory now to what it may hold, in bytes


@dataclass(frozen=True)
class _Warm:
    """A slot file of this process, and how it looked when it was put here."""

    path: Path
    stamp: tuple[int, ...]
    older_rows: int  # how many older window rows were asked for when it was composed; 0 as it was saved


class Staging:
    """This process's staging folders. Safe for threads. Raises OSError from what makes or moves files.

    Slot files of save points stay warm: in memory as long as there is room, the last used longest; on disk the last
    one, for which the engine then waits no longer than for its own reading. None is read before the engine gets it:
    nobody but this process writes here, and a file that anyone has touched, as its times say, is not given.

    What is put together in memory is written over a file that is there already, if there is one to spare: new pages
    cost more than the copying. No engine has that open, as the system says.
    """

    def __init__(self, folder: Path, room: MemoryRoom, memory_folder: Path = memory_files.MEMORY_FOLDER) -> None:
        """`folder` is on disk; what may lie in memory, `room` says whenever it matters."""
        self._lock = threading.RLock()
        self._room = room
        self._warm: OrderedDict[str, _Warm] = OrderedDict()
        self._given: dict[Path, Path] = {}  # the engine's name for a file, and the file
        self._spare: list[Path] = []  # in memory, to be written over
        self._expected: dict[Path, int] = {}  # what an engine is going to save in memory
        private = memory_files.private_folder_in(memory_folder, folder) if room(0) > 0 else None
        self.roots = [disk.private_folder(folder)] + ([private] if private else [])
        self.locks = folder  # says which processes are there, see `presence`
        presence.hold(folder)
        self.owner = disk.temporary_name()
        self._own = disk.private_folder(folder / self.owner)
        self._memory = disk.private_folder(private / self.owner) if private else None
        self._memory_root = memory_folder

    @property
    def in_memory(self) -> bool:
        """Whether anything may lie in memory at all."""
        return self._memory is not None

    def slot_folder(self) -> Path:
        """A fresh private folder for one engine."""
        return disk.private_folder(self._own / disk.temporary_name())

    def adopt(self, owner: str, point_id: str, size: int) -> bool:
        """Take over a slot file that a process which is gone has left in memory; False if there is none, whole.

        Not from disk: after a power cut a file there may have its length and not its bytes.
        """
        if self._memory is None:
            return False
        left = self._memory.parent / owner / f"{point_id}.slot"
        try:
            if left.stat().st_size != size:
                return False
            mine = self._memory / disk.temporary_name()
            left.rename(mine)
            self.keep(point_id, mine)
        except OSError:
            return False
        return True

    def sweep(self) -> bool:
        """Delete the folders of processes that are gone; whether there was any."""
        swept = [disk.remove_stale(root, self.locks) for root in self.roots]
        return True in swept

    def close(self) -> None:
        """Delete this process's folders, and the one in memory around it if no other process has its own there."""
        shutil.rmtree(self._own, ignore_errors=True)
        presence.let_go(self.locks)
        if self._memory is not None:
            shutil.rmtree(self._memory, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._memory.parent.rmdir()

    def expect(self, place: Path, size: int, unabsorbed: frozenset[str]) -> bool:
        """An engine is going to save about so much at `place`: have it go to memory, if there is room; whether it will.

        Not in a folder that is not from `slot_folder`: its server may not see this one's memory.
        """
        with self._lock:
            if not self._is_own(place) or not self._make_room(size, unabsorbed, spares=False):
                return False
            assert self._memory is not None
            file = self._memory / disk.temporary_name()
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            place.symlink_to(file)
            self._expected[file] = size
            return True

    def forget(self, place: Path) -> None:
        """Nothing was saved at `place` after all, or nothing that is of use."""
        with self._lock, contextlib.suppress(OSError):
            if place.is_symlink() and self._is_own(place):
                file = place.readlink()
                self._expected.pop(file, None)
                file.unlink(missing_ok=True)
            place.unlink(missing_ok=True)

    def take_in(self, place: Path) -> Path:
        """The file an engine has saved at `place`, moved to where `keep` may be told of it."""
        with self._lock:
            if place.is_symlink() and self._is_own(place):
                file = place.readlink()
                place.unlink()
                self._expected.pop(file, None)
                return file
        file = self._own / disk.temporary_name()
        disk.move(place, file)  # between file systems it is a copy
        return file

    def blank(self, size: int, target: Path | None, unabsorbed: frozenset[str]) -> Path:
        """A file to put a slot file of that size together in, new or to be written over: for `hand` or `keep`.

        `target` is where an engine wants it; if that is not one of our folders, it is put together there.
        """
        with self._lock:
            if target is not None and not self._is_own(target):
                return target
            if not self._make_room(size, unabsorbed, spares=True):
                return self._own / disk.temporary_name()
            assert self._memory is not None
            return self._spare.pop() if self._spare else self._memory / disk.temporary_name()

    def give_back(self, file: Path) -> None:
        """What `blank` gave was not needed."""
        with self._lock:
            self._let_go(file)

    def prepare(self, size: int) -> None:
        """Have a file of that size to spare, if there is memory nobody uses. For a background thread."""
        with self._lock:
            if not size or self._memory is None or self._spare or not self._fits(size):
                return
            file = self._memory / disk.temporary_name()
            self._expected[file] = size
        try:
            memory_files.fill_up(file, size)
            with self._lock:
                self._spare.append(file)
        except OSError:
            file.unlink(missing_ok=True)
        finally:
            self._expected.pop(file, None)

    def keep(self, point_id: str, file: Path, older_rows: int = 0, *, waits: bool = True) -> None:
        """The file is the save point's, whole: it is warm from now on. `waits`: it is not absorbed yet."""
        with self._lock:
            if waits:
                file = file.rename(file.with_name(f"{point_id}.slot"))  # as `adopt` looks for it
                file.chmod(0o600)
            before = self._warm.pop(point_id, None)
            self._warm[point_id] = _Warm(file, memory_files.stamp(file), older_rows)
            if before is not None:
                self._let_go(before.path)

    def warm(self, point_id: str) -> Path | None:
        """The warm file of a save point, None when there is none or someone has touched it."""
        with self._lock:
            warm = self._warm.get(point_id)
            try:
                if warm is None or memory_files.stamp(warm.path) != warm.stamp:
                    return None
            except OSError:
                return None
            self._warm.move_to_end(point_id)
            return warm.path

    def give(self, point_id: str, older_rows: int, target: Path) -> bool:
        """Put the warm file at `target`; False if there is none, or none with the older rows asked for."""
        with self._lock:
            path = self.warm(point_id)
            warm = self._warm.get(point_id)
            if path is None or warm is None or warm.older_rows != older_rows:
                return False
            self.hand(path, target)
            return True

    def hand(self, file: Path, target: Path) -> None:
        """Give a file the name `target`, until `unstage`; a copy where an engine could not follow a link."""
        if file == target:
            return
        with self._lock:
            if self._memory is not None and file.parent == self._memory and self._is_own(target):
                target.symlink_to(file)
            else:
                disk.link_or_copy(file, target)
                self._restamp(file)
            self._given[target] = file

    def unstage(self, target: Path) -> None:
        """Take the name away again. A file that is nobody's then is one to spare."""
        with self._lock:
            file = self._given.pop(target, None)
            with contextlib.suppress(OSError):  # one that is held open (Windows) goes when its slot folder does
                target.unlink()
            if file is not None:
                self._restamp(file)
                self._let_go(file)

    def drop(self, point_id: str) -> None:
        """Delete a warm file, and what is left of others in files to spare."""
        with self._lock:
            warm = self._warm.pop(point_id, None)
            while self._spare:
                memory_files.delete(self._spare.pop())
        if warm is not None:
            memory_files.delete(warm.path)

    def trim(self, unabsorbed: frozenset[str], *, disk_too: bool = False) -> None:
        """Delete what is more than memory has room for now, the longest unused first; what is not absorbed stays.

        On disk the last used stays, unless `disk_too`.
        """
        with self._lock:
            self._make_room(0, unabsorbed, spares=False, some=True)
            on_disk = [name for name, warm in self._warm.items() if warm.path.parent == self._own]
            for name in on_disk if disk_too else on_disk[:-1]:
                if name not in unabsorbed:
                    memory_files.delete(self._warm.pop(name).path)

    def bytes(self) -> int:
        """Bytes in memory, of warm files and those to spare."""
        with self._lock:
            held = 0
            for path in disk.listing(self._memory) if self._memory is not None else ():
                with contextlib.suppress(OSError):
                    held += max(path.stat().st_size, self._expected.get(path, 0))
            return held

    def bytes_on_disk(self) -> int:
        """Bytes that this process's folder takes on disk."""
        return disk.tree_size(self._own)

    def on_disk(self, point_id: str) -> bool:
        """Whether a save point's warm file lies on disk."""
        warm = self._warm.get(point_id)
        return warm is not None and warm.path.parent == self._own

    def in_words(self) -> str:
        """Where files are staged, and why there."""
        held = self.bytes()
        return memory_files.staged_where(self._memory_root, self._room(held), held)

    def _is_own(self, place: Path) -> bool:
        return place.parent.parent == self._own

    def _fits(self, size: int) -> bool:
        held = self.bytes()
        assert self._memory is not None
        return held + size <= self._room(held) and size + memory_files.SLACK <= disk.free_bytes(self._memory)

    def _make_room(self, size: int, unabsorbed: frozenset[str], *, spares: bool, some: bool = False) -> bool:
        """Make room in memory for a file of that size, if that can be; whether there is.

        `spares`: it may be written over another, which is left in `_spare`. `some`: as far as possible will do.
        """
        if self._memory is None:
            return False
        busy = set(self._given.values())
        unused = [
            name
            for name, warm in self._warm.items()
            if warm.path.parent == self._memory and name not in unabsorbed and warm.path not in busy
        ]
        can_go = [*self._spare, *(self._warm[name].path for name in unused)]
        if not some and not self._fits(size - sum(map(memory_files.size_of, can_go))):
            return False
        if (
            spares
            and not self._spare
            and not self._fits(size)
            and unused
            and memory_files.is_alone(self._warm[unused[0]].path)
        ):
            self._spare.append(self._warm.pop(unused.pop(0)).path)
        to_use: Path | None = None
        while spares and self._spare and to_use is None:
            self._spare.sort(key=memory_files.size_of)
            to_use = self._spare.pop()
            if not memory_files.is_alone(to_use):
                memory_files.delete(to_use)
                to_use = None
        there = memory_files.size_of(to_use) if to_use else 0
        while not self._fits(size - there) and (self._spare or unused):
            memory_files.delete(self._spare.pop() if self._spare else self._warm.pop(unused.pop(0)).path)
        if to_use:
            self._spare.append(to_use)
        return self._fits(size - there)

    def _let_go(self, file: Path) -> None:
        """A file that is perhaps no longer needed."""
        if file in self._given.values() or any(warm.path == file for warm in self._warm.values()):
            return
        if file.parent == self._memory and file.exists():
            self._spare.append(file)
        elif file.parent == self._own:
            memory_files.delete(file)

    def _restamp(self, file: Path) -> None:
        """A name more or less changes a file's times; only we give it names."""
        for point_id, warm in self._warm.items():
            with contextlib.suppress(OSError):
                if warm.path == file and memory_files.stamp(file)[:2] == warm.stamp[:2]:
                    self._warm[point_id] = _Warm(file, memory_files.stamp(file), warm.older_rows)
