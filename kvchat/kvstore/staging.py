"""Staging: where engines save and restore, in memory if there is room, and which files stay warm there.

An engine is told one folder on disk when it starts. Whether a file lies there or in memory is decided for each file
by what is free now: one in memory has a link in the folder. What is too large for that, or for a container's 64 MB
of /dev/shm, goes through the disk.
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
from kvchat.kvstore.memory_files import SLACK, MemoryRoom, StagingMemory
from kvchat.system.files import file_size


@dataclass(frozen=True)
class _WarmFile:
    path: Path
    stamp: tuple[int, ...]
    window: int  # window in tokens whose missing row was added; 0: as saved


class Staging:
    """The store's staging folders. Thread-safe. Methods that create or move files raise OSError.

    Slot files stay warm: in memory while there is room, in LRU order; on disk only the last one, which the engine
    can restore without further delay. They are not verified before the engine gets them: only this process writes
    here, and a file whose timestamps show that someone touched it is not used.
    """

    def __init__(self, folder: Path, room: MemoryRoom, memory_folder: Path) -> None:
        self._lock = threading.RLock()
        self._planned_room, self._memory_root = room, memory_folder
        self._warm: OrderedDict[str, _WarmFile] = OrderedDict()
        self._waiting: set[str] = set()  # save points whose only copy is here
        self._given: dict[Path, Path] = {}  # file by the engine's path
        self._read_on: set[Path] = set()  # an engine may still read these: do not overwrite
        self._spare: list[Path] = []  # in memory, to be overwritten
        self._expected: dict[Path, int] = {}  # in memory, still growing: final size
        self._max_bytes = sys.maxsize  # planned bytes in memory beside the loaded model
        self._folder = disk.private_folder(folder)
        can_use = room(0) > 0 and self._can_link()
        self._memory = memory_files.private_folder_in(memory_folder, folder) if can_use else None

    @property
    def in_memory(self) -> bool:
        return self._memory is not None

    def slot_folder(self) -> Path:
        return disk.private_folder(self._folder / disk.temporary_name())

    def take_over(self, waiting: Mapping[str, int]) -> set[str]:
        """Adopt files a killed process left in memory, delete all others; return the adopted save points.

        `waiting`: size of each save point not yet absorbed. Files on disk are not adopted: after a power cut a file
        may have the right length but not its data.
        """
        adopted = set[str]()
        for left in disk.listing(self._memory) if self._memory else ():
            if left.suffix == ".slot" and file_size(left) == waiting.get(left.stem, -1):
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
            for file in disk.listing(self._memory):
                memory_files.delete(file)
            disk.remove(self._memory)

    def expect(self, place: Path, size: int) -> bool:
        """Redirect the file of about `size` bytes an engine will save at `place` to memory; False if no room.

        Only within a `slot_folder`: another folder's server may not see this memory.
        """
        with self._lock:
            if self._memory is None or not self._is_own(place) or not self._make_room(size):
                return False
            file = self._memory / disk.temporary_name()
            file.touch(0o600, exist_ok=False)
            self._expected[file] = size
            place.symlink_to(file)
            return True

    def forget(self, place: Path) -> None:
        with contextlib.suppress(OSError):
            memory_files.delete(self._in_memory_at(place) or place)

    def take_in(self, place: Path) -> Path:
        """Move the file an engine saved at `place` to where `keep` expects it."""
        file = self._in_memory_at(place)
        if file is None:
            file = self.blank_on_disk()
            disk.move(place, file)  # a copy between file systems
        return file

    def _in_memory_at(self, place: Path) -> Path | None:
        """Remove the link made by `expect` and return its target in memory, or None."""
        with self._lock:
            if self._memory is None or not self._is_own(place) or not place.is_symlink():
                return None
            file = place.readlink()
            place.unlink()
            self._expected.pop(file, None)
            return file

    def blank(self, size: int, target: Path | None) -> Path:
        """Return a new or reusable file in which to compose a slot file, for `hand` or `keep`.

        `target` is where an engine wants it; outside our folders it is composed there directly.
        """
        with self._lock:
            if target is not None and not self._is_own(target):
                return target
            if self._memory is None:
                return self.blank_on_disk()
            if not self._spare and not self._fits(size) and (unused := self._unused()):
                self.give_back(self._warm.pop(unused[0]).path)  # it must make room anyway
            spare = self._take_spare(self._memory)
            if not self._make_room(size - file_size(spare)):
                self.give_back(spare)
                return self.blank_on_disk()
            return spare

    def blank_on_disk(self) -> Path:
        return self._folder / disk.temporary_name()

    def has_room(self, size: int) -> bool:
        return self._memory is not None and self._max_bytes != sys.maxsize and self._fits(size)

    def is_in_memory(self, file: Path) -> bool:
        return file.parent == self._memory

    def prepare(self, size: int, cancelled: Callable[[], bool]) -> None:
        """Preallocate a reusable file of that size if memory allows, until cancelled.

        Only after memory was planned for kvchat's own engine; other engines' files are composed in place. For a
        background thread.
        """
        if self._memory is None or not size or self._max_bytes == sys.maxsize:
            return
        mapped = None
        with self._lock, contextlib.suppress(OSError):
            file = self._take_spare(self._memory)
            fits = self._fits(size - file_size(file))
            if fits or file_size(file):
                self._spare.append(file)  # now, so that a restore can take it before it is ready
            if fits:
                with memory_files.open_private(file) as opened:
                    mapped = memory_files.mapped(file, opened, size, ready=False)
        if mapped:
            with contextlib.suppress(OSError):
                mapped.populate_all(size, lambda: file not in self._spare or cancelled())  # taken or dropped
            with self._lock:
                while self._spare and not self._fits(0):  # the room may have shrunk meanwhile
                    memory_files.delete(self._spare.pop())

    def keep(self, point_id: str, file: Path, window: int = 0, *, waits: bool = True) -> None:
        """Keep a save point's whole file warm. `waits`: it is not absorbed and stays until `settle`."""
        with self._lock:
            if waits:
                file = file.rename(file.with_name(f"{point_id}.slot"))  # name `take_over` looks for
                file.chmod(0o600)
                self._waiting.add(point_id)
            before = self._warm.pop(point_id, None)
            self._warm[point_id] = _WarmFile(file, memory_files.stamp(file), window)
            if before is not None:
                self.give_back(before.path)

    def waits(self, point_id: str) -> bool:
        return point_id in self._waiting

    def settle(self, point_id: str | None = None) -> None:
        """Mark a save point as absorbed; without one, mark all waiting ones as unknown to the index."""
        with self._lock:
            self._waiting -= {point_id} if point_id is not None else set(self._waiting)

    def warm(self, point_id: str) -> Path | None:
        """Return a save point's warm file, None if missing or touched by someone."""
        with self._lock:
            warm = self._warm.get(point_id)
            with contextlib.suppress(OSError):
                if warm is not None and memory_files.stamp(warm.path) == warm.stamp:
                    self._warm.move_to_end(point_id)
                    return warm.path
            return None

    def has_warm(self, point_id: str, *, on_disk: bool = False) -> bool:
        """True if a save point has a warm file, unchecked; `on_disk`: only if it is on disk."""
        warm = self._warm.get(point_id)
        return warm is not None and not (on_disk and warm.path.parent != self._folder)

    def give(self, point_id: str, window: int, target: Path) -> bool:
        """Put the warm file at `target`; False if there is none with the row needed for `window`."""
        with self._lock:
            path = self.warm(point_id)
            if path is None or self._warm[point_id].window != window:
                return False
            self.hand(path, target)
            return True

    def hand(self, file: Path, target: Path) -> None:
        """Link a file to `target` until `unstage`; copy it if the engine could not follow a link."""
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
        """Remove the name; a file no longer needed becomes spare.

        Not if the engine may still be reading it: its restore was requested but not awaited.
        """
        with self._lock:
            file = self._given.pop(target, None)
            with contextlib.suppress(OSError):  # an open file (Windows) is deleted with its slot folder
                target.unlink()
            if file is not None:
                self._restamp(file)
                if not engine_done:
                    self._read_on.add(file)
                self.give_back(file)

    def give_back(self, file: Path) -> None:
        """Recycle or delete a file from `blank` or returned by an engine, unless still needed."""
        with self._lock:
            if file in self._given.values() or any(warm.path == file for warm in self._warm.values()):
                return
            if self.is_in_memory(file) and file.exists() and file not in self._read_on:
                self._spare.append(file)
            elif self.is_in_memory(file) or file.parent == self._folder:
                self._read_on.discard(file)
                memory_files.delete(file)

    def drop(self, point_id: str) -> None:
        """Delete a warm file, and spare files, as they still contain old data."""
        with self._lock:
            self._waiting.discard(point_id)
            warm = self._warm.pop(point_id, None)
            while self._spare:
                memory_files.delete(self._spare.pop())
        if warm is not None:
            memory_files.delete(warm.path)

    def trim(self, *, disk_too: bool = False, most: int | None = None) -> None:
        """Delete what exceeds the memory limit, least recently used first; keep what is not absorbed.

        On disk the last used stays, unless `disk_too`. `most`: the new memory limit in bytes.
        """
        with self._lock:
            if self._memory is not None:
                self._max_bytes = self._max_bytes if most is None else most
                self._make_room(0)
            on_disk = [name for name, warm in self._warm.items() if warm.path.parent == self._folder]
            for name in on_disk if disk_too else on_disk[:-1]:
                if name not in self._waiting:
                    memory_files.delete(self._warm.pop(name).path)

    def memory(self) -> StagingMemory:
        with self._lock:
            if self._memory is None:
                return StagingMemory()
            return StagingMemory(
                self._is_removable(self._unused()), memory_files.staging_capacity(self._memory, self.bytes())
            )

    def bytes(self, *, disk_too: bool = False) -> int:
        """Return the bytes in memory, with expected files at full size; `disk_too`: plus those on disk."""
        with self._lock:
            held = disk.tree_size(self._folder) if disk_too else 0
            for path in disk.listing(self._memory) if self._memory else ():
                with contextlib.suppress(OSError):
                    held += max(path.stat().st_size, self._expected.get(path, 0))
            return held

    def in_words(self) -> str:
        held = self.bytes()
        return memory_files.describe_staging(self._memory_root, self._room(held), held)

    def _room(self, held: int) -> int:
        return min(self._max_bytes, self._planned_room(held))

    def _fits(self, size: int) -> bool:
        assert self._memory is not None
        held = self.bytes()
        return held + size <= self._room(held) and size + SLACK <= disk.free_bytes(self._memory)

    def _take_spare(self, memory: Path) -> Path:
        largest = max(self._spare, key=file_size, default=None)
        if largest is None:
            return memory / disk.temporary_name()
        self._spare.remove(largest)
        return largest

    def _can_link(self) -> bool:
        link = self._folder / disk.temporary_name()
        try:
            link.symlink_to(self._folder)
            link.unlink()
        except OSError:
            return False
        return True

    def _is_own(self, place: Path) -> bool:
        return place.parent.parent == self._folder

    def _unused(self) -> list[str]:
        busy = set(self._given.values())
        return [
            name
            for name, warm in self._warm.items()
            if self.is_in_memory(warm.path) and name not in self._waiting and warm.path not in busy
        ]

    def _is_removable(self, unused: list[str]) -> int:
        return sum(map(file_size, [*self._spare, *(self._warm[name].path for name in unused)]))

    def _make_room(self, size: int) -> bool:
        unused = self._unused()
        if size > 0 and not self._fits(size - self._is_removable(unused)):
            return False
        while not self._fits(size) and (self._spare or unused):
            memory_files.delete(self._spare.pop() if self._spare else self._warm.pop(unused.pop(0)).path)
        return self._fits(size)

    def _restamp(self, file: Path) -> None:
        for point_id, warm in self._warm.items():
            with contextlib.suppress(OSError):
                if warm.path == file and memory_files.stamp(file)[:2] == warm.stamp[:2]:
                    self._warm[point_id] = replace(warm, stamp=memory_files.stamp(file))
