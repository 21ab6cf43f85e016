"""The save points as they lie on disk: one folder each, holding a slot file and its manifest.

A save point is prepared under `temporary/` and put in place by renaming its folder, and leaves the same way: it is
whole or absent, whenever a process dies and however many share the store. Nothing here decides what is kept.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvchat.kvstore import disk, slotfile
from kvchat.kvstore.manifest import ID_PATTERN, MAX_BYTES, Manifest, ManifestError, read_manifest, write_manifest
from kvchat.wording import size as size_in_words

SLOT_NAME = "kv.slot"
MANIFEST_NAME = "manifest.json"  # its modification time is the save point's time of last use


class Damaged(Exception):
    """The save point is of no use any more; the message says why, in words."""


@dataclass(frozen=True)
class Entry:
    """A save point on disk."""

    manifest: Manifest
    size: int  # bytes on disk, manifest included
    last_used_at: datetime


class Points:
    """The folder of save points. Not safe for threads: the store's lock is. Other processes may change the folder."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self._folder = disk.private_folder(folder)
        self._temporary = disk.private_folder(temporary)
        self._known: dict[str, Manifest] = {}  # manifests never change, so each is read once
        disk.remove_stale(self._temporary)

    def path(self, point_id: str) -> Path:
        """The folder of a save point, whether it is there or not."""
        return self._folder / point_id

    def scan(self) -> tuple[list[Entry], dict[str, str]]:
        """What lies there now, and the ids of those found damaged with the reason. Raises OSError."""
        entries: list[Entry] = []
        damaged: dict[str, str] = {}
        with os.scandir(disk.private_folder(self._folder)) as listing:
            ids = [entry.name for entry in listing if ID_PATTERN.fullmatch(entry.name)]
        for point_id in ids:
            try:
                entry = self._entry(point_id)
            except Damaged as damage:
                damaged[point_id] = str(damage)
            else:
                entries += [entry] if entry else []
        self._known = {entry.manifest.id: entry.manifest for entry in entries}
        return entries, damaged

    def _entry(self, point_id: str) -> Entry | None:
        """One save point; None when it is gone or cannot be read just now. Raises Damaged."""
        path = self.path(point_id) / MANIFEST_NAME
        try:
            status = path.stat()
            manifest = self._known.get(point_id) or _load_manifest(path, status.st_size)
        except FileNotFoundError:
            if self.path(point_id).is_dir():  # else another process has just removed the save point
                raise Damaged("its manifest is missing") from None
            return None
        except OSError as error:
            raise_if_disk_error(error)
            return None  # too many open files, for one, is not the save point's fault
        return Entry(manifest, manifest.size + status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))

    @contextmanager
    def work_folder(self) -> Iterator[Path]:
        """A private folder for something on its way in; what is still in it afterwards is deleted. Raises OSError."""
        work = disk.private_folder(self._temporary / disk.temporary_name())
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def put(self, work: Path, manifest: Manifest, used_at: datetime) -> None:
        """Make a work folder with its slot file inside a save point, for good when this returns. Raises OSError."""
        disk.write_private(work / MANIFEST_NAME, write_manifest(manifest))
        os.utime(work / MANIFEST_NAME, (used_at.timestamp(), used_at.timestamp()))
        disk.sync_folder(work)
        work.rename(self.path(manifest.id))
        disk.sync_folder(self._folder)

    def discard(self, point_id: str) -> int:
        """Delete a save point; returns the bytes freed, 0 when another process was faster or it is held open."""
        gone = self._temporary / disk.temporary_name()
        try:
            disk.private_folder(self._temporary)
            self.path(point_id).rename(gone)
        except OSError:
            return 0
        freed = disk.tree_size(gone)
        shutil.rmtree(gone, ignore_errors=True)
        return freed

    def touch(self, point_id: str, when: datetime) -> None:
        """Remember that the save point was used."""
        with contextlib.suppress(OSError):
            os.utime(self.path(point_id) / MANIFEST_NAME, (when.timestamp(), when.timestamp()))


def verify(slot_file: Path, manifest: Manifest) -> None:
    """Check size, tokens and BLAKE3 of a slot file against the manifest.

    Raises Damaged for what is wrong with the file, OSError for what may pass (too many open files, for one).
    """
    try:
        size = slot_file.stat().st_size
        if size < manifest.size:
            whole = size_in_words(manifest.size)
            raise Damaged(f"its file was damaged (truncated: {size_in_words(size)} of {whole} are there)")
        if size > manifest.size:
            raise Damaged("its file was damaged (longer than it was)")
        if slotfile.read_tokens(slot_file) != manifest.tokens:
            raise Damaged("its file was damaged (it holds other tokens)")
        if disk.hash_file(slot_file) != manifest.blake3:
            raise Damaged("its file was damaged (hash differs)")
    except slotfile.SlotFileError as error:
        raise Damaged(f"its file was damaged ({error})") from error
    except OSError as error:
        raise_if_disk_error(error)
        raise


def raise_if_disk_error(error: OSError) -> None:
    """Raise Damaged when the disk itself could not read the file (EIO)."""
    if error.errno == errno.EIO:
        raise Damaged("its file was damaged (the disk cannot read it)") from error


def _load_manifest(path: Path, size: int) -> Manifest:
    """The manifest of the save point whose folder it lies in. Raises Damaged, OSError."""
    if size > MAX_BYTES:
        raise Damaged("its manifest is not readable")
    try:
        manifest = read_manifest(path.read_bytes())
    except ManifestError as error:
        raise Damaged(str(error)) from error
    if manifest.id != path.parent.name:
        raise Damaged("its manifest belongs to another save point")
    return manifest
