"""Staging of slot files: those that engines save or restore, in RAM if there is room, and warm ones for later use.

When an engine starts, it gets a slot folder on disk. A file that fits into the free RAM is placed there, with a link
in the slot folder; any other file is placed on disk. (In a container /dev/shm may have only 64 MB.)
"""

import contextlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvchat.kvstore import disk, memory_files
from kvchat.kvstore.memory_files import SLACK_BYTES, MemoryRoom, StagingMemory
from kvchat.system.files import file_size, replace_file


@dataclass
class _WarmFile:
    path: Path
    stamp: tuple[int, ...]
    window: int  # sliding window in tokens for which a row was added; 0: file as saved
    is_absorbed: bool  # False: the only copy of the save point


class Staging:
    """The store's staging folders. Thread-safe. Methods that create or move files raise OSError.

    Slot files are kept (warm) so that an engine can restore them without delay. In RAM, the least recently used ones
    are deleted when other files need the room; on disk, only the last one used is kept. Their contents are not
    verified, since only this process writes them; a file whose timestamps have changed is not used.
    """

    def __init__(self, folder: Path, room: MemoryRoom) -> None:
        self._lock = threading.RLock()
        self._planned_room, self._memory_root = room, memory_files.MEMORY_FOLDER
        self._warm_files: OrderedDict[str, _WarmFile] = OrderedDict()  # by save point
        self._linked: dict[Path, Path] = {}  # link in the slot folder -> file
        self._still_read: set[Path] = set()  # an engine may still read these: do not overwrite
        self._spare_files: list[Path] = []  # in memory, to be overwritten
        self._final_sizes: dict[Path, int] = {}  # of files in memory that an engine is writing
        self._max_bytes = sys.maxsize  # limit of bytes in memory while a model is loaded
        self._folder = disk.private_folder(folder)
        self._memory: Path | None = None
        if room(0) > 0:
            link = folder / disk.temporary_name()
            with contextlib.suppress(OSError):  # some file systems have no links
                link.symlink_to(folder)
                link.unlink()
                self._memory = memory_files.private_folder_in(self._memory_root, folder)

    @property
    def in_memory(self) -> bool:
        return self._memory is not None

    def slot_folder(self) -> Path:
        return disk.private_folder(self._folder / disk.temporary_name())

    def recover(self, unabsorbed: Mapping[str, int]) -> set[str]:
        """Adopt unabsorbed files that a killed process left in memory; delete all other files. Return the adopted ids.

        `unabsorbed`: file size by unabsorbed save point. Files on disk are not adopted: after a power failure, a file
        may have the right length but incomplete data.
        """
        adopted = set[str]()
        for file in disk.list_folder(self._memory) if self._memory else ():
            if file.suffix == ".slot" and file_size(file) == unabsorbed.get(file.stem, -1):
                self.add_warm(file.stem, file)
                adopted.add(file.stem)
            else:
                disk.remove(file)
        for file in disk.list_folder(self._folder):
            disk.remove(file)
        return adopted

    def close(self) -> None:
        for path in disk.list_folder(self._folder):
            disk.remove(path)
        if self._memory is not None:
            for file in disk.list_folder(self._memory):
                memory_files.delete(file)
            disk.remove(self._memory)

    # Files that an engine saves to its slot folder

    def redirect_to_memory(self, path: Path, size: int) -> bool:
        """Make `path` in a slot folder a link to memory with room for about `size` bytes; False if impossible."""
        with self._lock:
            if self._memory is None or not self._is_in_slot_folder(path) or not self._make_room(size):
                return False
            file = self._memory / disk.temporary_name()
            file.touch(0o600, exist_ok=False)
            self._final_sizes[file] = size
            path.symlink_to(file)
            return True

    def discard_saved(self, path: Path) -> None:
        """Delete the file saved at `path`, or undo `redirect_to_memory` if no file was saved."""
        with contextlib.suppress(OSError):
            memory_files.delete(self._resolve_redirect(path) or path)

    def claim_saved(self, path: Path) -> Path:
        """Take the file that an engine saved at `path` out of its slot folder; return its new path for `add_warm`."""
        file = self._resolve_redirect(path)
        if file is None:
            file = self.new_path_on_disk()
            disk.move(path, file)  # a copy between file systems
        return file

    def _resolve_redirect(self, path: Path) -> Path | None:
        """Remove the link made by `redirect_to_memory` and return its target, or None if `path` is no such link."""
        with self._lock:
            if self._memory is None or not self._is_in_slot_folder(path) or not path.is_symlink():
                return None
            file = path.readlink()
            path.unlink()
            self._final_sizes.pop(file, None)
            return file

    # Composing files for engines

    def allocate(self, size: int, target: Path | None) -> Path:
        """Return a path for a file to be composed; `target` itself if it is not in one of the store's slot folders."""
        with self._lock:
            if target is not None and not self._is_in_slot_folder(target):
                return target
            if self._memory is None:
                return self.new_path_on_disk()
            if not self._spare_files and not self._fits(size) and (unused := self._evictable()):
                self.recycle(self._warm_files.pop(unused[0]).path)  # it must make room anyway
            spare = self._take_spare(self._memory)
            if not self._make_room(size - file_size(spare)):
                self.recycle(spare)
                return self.new_path_on_disk()
            return spare

    def new_path_on_disk(self) -> Path:
        return self._folder / disk.temporary_name()

    def has_room(self, size: int) -> bool:
        return self._memory is not None and self._max_bytes != sys.maxsize and self._fits(size)

    def is_in_memory(self, file: Path) -> bool:
        return file.parent == self._memory

    def preallocate(self, size: int, cancelled: Callable[[], bool]) -> None:
        """Prepare a spare file of `size` bytes if memory allows; stop when cancelled. For a background thread.

        Does nothing before `trim` has set a memory limit, that is, without an engine managed by kvchat: files for
        external engines are composed in place.
        """
        if self._memory is None or not size or self._max_bytes == sys.maxsize:
            return
        mapped = None
        with self._lock, contextlib.suppress(OSError):
            file = self._take_spare(self._memory)
            fits = self._fits(size - file_size(file))
            if fits or file_size(file):
                self._spare_files.append(file)  # early, so that a restore need not wait for it
            if fits:
                with memory_files.open_private(file) as opened:
                    mapped = memory_files.map_file(file, opened, size, allocate=False)
        if mapped:
            with contextlib.suppress(OSError):
                mapped.populate_all(size, lambda: file not in self._spare_files or cancelled())  # taken or dropped
            with self._lock:
                while self._spare_files and not self._fits(0):  # the room may have shrunk meanwhile
                    memory_files.delete(self._spare_files.pop())

    # Warm files

    def add_warm(self, point_id: str, file: Path, window: int = 0, *, absorbed: bool = False) -> None:
        """Keep a save point's slot file warm. Unless `absorbed`, it cannot be evicted before `mark_absorbed`."""
        with self._lock:
            if not absorbed:
                engine_file, file = file, file.with_name(f"{point_id}.slot")  # name `recover` looks for
                replace_file(engine_file, file)
                file.chmod(0o600)
            before = self._warm_files.pop(point_id, None)
            self._warm_files[point_id] = _WarmFile(file, memory_files.file_stamp(file), window, absorbed)
            if before is not None:
                self.recycle(before.path)

    def is_unabsorbed(self, point_id: str) -> bool:
        warm = self._warm_files.get(point_id)
        return warm is not None and not warm.is_absorbed

    def mark_absorbed(self, point_id: str | None = None) -> None:
        """Allow the warm file of a save point to be evicted; with None, all warm files, as after an index loss."""
        with self._lock:
            for id, warm in self._warm_files.items():
                warm.is_absorbed |= point_id in (None, id)

    def find_warm(self, point_id: str, window: int | None = None) -> Path | None:
        """Return a save point's warm file, or None if it is missing or modified, or lacks the row for `window`."""
        with self._lock:
            warm = self._warm_files.get(point_id)
            with contextlib.suppress(OSError):
                if (
                    warm is not None
                    and window in (None, warm.window)
                    and memory_files.file_stamp(warm.path) == warm.stamp
                ):
                    self._warm_files.move_to_end(point_id)
                    return warm.path
            return None

    def has_warm(self, point_id: str) -> bool:
        """True if a save point has a warm file, which is not checked."""
        return point_id in self._warm_files

    def link_warm(self, point_id: str, window: int, target: Path) -> bool:
        """Link the warm file to `target`; False if there is none with the row that `window` needs."""
        with self._lock:
            path = self.find_warm(point_id, window)
            if path is None:
                return False
            self.link(path, target)
            return True

    def link(self, file: Path, target: Path) -> None:
        """Link a file to `target` until `unstage`; copy it if no link is possible."""
        if file == target:
            return
        with self._lock:
            if self.is_in_memory(file) and self._is_in_slot_folder(target):
                target.symlink_to(file)
            else:
                disk.link_or_copy(file, target)
                self._renew_stamp(file)
            self._linked[target] = file

    def unstage(self, target: Path, *, engine_done: bool) -> None:
        """Remove the link and recycle its file. Pass `engine_done=False` if the engine may still be reading it."""
        with self._lock:
            file = self._linked.pop(target, None)
            with contextlib.suppress(OSError):  # an open file (Windows) is deleted with its slot folder
                target.unlink()
            if file is not None:
                self._renew_stamp(file)
                if not engine_done:
                    self._still_read.add(file)
                self.recycle(file)

    def recycle(self, file: Path) -> None:
        """Make a file in memory a spare file, or delete it if it cannot be reused. Skips linked and warm files."""
        with self._lock:
            if file in self._linked.values() or any(warm.path == file for warm in self._warm_files.values()):
                return
            if self.is_in_memory(file) and file.exists() and file not in self._still_read:
                self._spare_files.append(file)
            elif self.is_in_memory(file) or file.parent == self._folder:
                self._still_read.discard(file)
                memory_files.delete(file)

    def drop(self, point_id: str) -> None:
        """Delete a save point's warm file, and all spare files, as they may contain its data."""
        with self._lock:
            warm = self._warm_files.pop(point_id, None)
            for file in (*self._spare_files, *([warm.path] if warm else ())):
                memory_files.delete(file)
            self._spare_files.clear()

    def trim(self, *, include_disk: bool = False, max_bytes: int | None = None) -> None:
        """Delete spare and absorbed files, least recently used first, until the memory limit is met.

        Of the files on disk, keep only the last one used, or none with `include_disk`. `max_bytes`: new memory limit.
        """
        with self._lock:
            if self._memory is not None:
                self._max_bytes = self._max_bytes if max_bytes is None else max_bytes
                self._make_room(0)
            on_disk = [(id, warm) for id, warm in self._warm_files.items() if warm.path.parent == self._folder]
            for id, warm in on_disk if include_disk else on_disk[:-1]:
                if warm.is_absorbed:
                    memory_files.delete(self._warm_files.pop(id).path)

    # Sizes in bytes

    def memory(self) -> StagingMemory:
        with self._lock:
            if self._memory is None:
                return StagingMemory()
            capacity = memory_files.staging_capacity(self._memory, self.bytes_in_memory())
            return StagingMemory(self._reclaimable(self._evictable()), capacity)

    def bytes_in_memory(self) -> int:
        """Return the bytes of files in memory. A file being written by an engine counts at its expected size."""
        with self._lock:
            held_bytes = 0
            for path in disk.list_folder(self._memory) if self._memory else ():
                with contextlib.suppress(OSError):
                    held_bytes += max(path.stat().st_size, self._final_sizes.get(path, 0))
            return held_bytes

    def describe(self) -> str:
        held_bytes = self.bytes_in_memory()
        return memory_files.describe_staging(
            self._memory_root, min(self._max_bytes, self._planned_room(held_bytes)), held_bytes
        )

    def _fits(self, size: int) -> bool:
        assert self._memory is not None
        held_bytes = self.bytes_in_memory()
        room = min(self._max_bytes, self._planned_room(held_bytes))
        return held_bytes + size <= room and size + SLACK_BYTES <= disk.free_bytes(self._memory)

    def _take_spare(self, memory: Path) -> Path:
        """Remove and return the largest spare file, or return a new path if there is none."""
        largest = max(self._spare_files, key=file_size, default=None)
        if largest is None:
            return memory / disk.temporary_name()
        self._spare_files.remove(largest)
        return largest

    def _is_in_slot_folder(self, path: Path) -> bool:
        return path.parent.parent == self._folder

    def _evictable(self) -> list[str]:
        """Return save points whose warm files in memory can be evicted, least recently used first."""
        linked = set(self._linked.values())
        unused = ((id, w) for id, w in self._warm_files.items() if w.is_absorbed and w.path not in linked)
        return [id for id, warm in unused if self.is_in_memory(warm.path)]

    def _reclaimable(self, unused: list[str]) -> int:
        return sum(map(file_size, [*self._spare_files, *(self._warm_files[point_id].path for point_id in unused)]))

    def _make_room(self, size: int) -> bool:
        """Delete files until `size` more bytes fit. If that is impossible, delete nothing and return False."""
        unused = self._evictable()
        if size > 0 and not self._fits(size - self._reclaimable(unused)):
            return False
        while not self._fits(size) and (self._spare_files or unused):
            memory_files.delete(
                self._spare_files.pop() if self._spare_files else self._warm_files.pop(unused.pop(0)).path
            )
        return self._fits(size)

    def _renew_stamp(self, file: Path) -> None:
        """Update the stamp of a warm file after a link to it was made or removed, which changes its ctime."""
        for warm in self._warm_files.values():
            with contextlib.suppress(OSError):
                if warm.path == file and memory_files.file_stamp(file)[:2] == warm.stamp[:2]:
                    warm.stamp = memory_files.file_stamp(file)
