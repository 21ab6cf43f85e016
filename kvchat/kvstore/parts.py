"""What the parts of the block store share: its files, its index, its clock and its bounds."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvchat.kvstore import budget, disk, index_points, index_recipes, index_usage
from kvchat.kvstore.blocks import BlockFiles
from kvchat.kvstore.index import Index
from kvchat.kvstore.rebuild import BadBlock
from kvchat.kvstore.recipe import RowMap
from kvchat.kvstore.staging import Staging
from kvchat.kvstore.store import Bounds

DELETED_MEANWHILE = "its save point was deleted meanwhile"
BLOCKS, INDEX, SET_ASIDE, STAGING = "blocks", "index.db", "set-aside", "staging"  # what is in the store's folder
INDEX_LOST = "the index of save points was damaged; it was set aside and a new one begun"
LEFTOVER_AGE_S = 3600.0  # a block file nothing refers to may be one that is just being absorbed
_AT_A_TIME = 200  # blocks deleted in one transaction, so that other processes need not wait long


class BadFiles:
    """The folder of bad blocks, kept for a look, each with its name and the time it was found. Loses races quietly."""

    def __init__(self, folder: Path) -> None:
        self._folder = disk.private_folder(folder)

    def take(self, path: Path) -> None:
        """Move a file here; one that is gone, or cannot be moved, is deleted."""
        target = disk.private_folder(self._folder) / path.name
        try:
            path.replace(target)
            os.utime(target)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()

    def size(self) -> int:
        """Bytes on disk of everything here."""
        return sum(disk.tree_size(path) for path in disk.listing(self._folder))

    def trim(self, quota: int) -> None:
        """Delete the oldest beyond 3 files or 10 % of the quota."""
        kept: list[budget.Kept] = []
        for path in disk.listing(self._folder):
            with contextlib.suppress(OSError):
                found = path.stat()
                kept.append(budget.Kept(path.name, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC)))
        for name in budget.set_aside_plan(kept, quota):
            (self._folder / name).unlink(missing_ok=True)

    def delete(self, names: frozenset[str] | None = None) -> int:
        """Delete these files, or all; returns the bytes freed."""
        freed = 0
        for path in disk.listing(self._folder):
            if names is None or path.name in names:
                with contextlib.suppress(OSError):
                    freed += path.stat().st_size
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        return freed


@dataclass
class Parts:
    """The parts, and what several of them do together."""

    folder: Path
    index: Index
    blocks: BlockFiles
    staging: Staging
    bad_files: BadFiles
    clock: Callable[[], datetime]
    free_bytes: Callable[[], int]
    read_row_map: Callable[[Path], RowMap]
    bounds: Bounds

    def today(self) -> str:
        """The day under which written bytes are counted (UTC)."""
        return self.clock().date().isoformat()

    def occupied(self) -> int:
        """Bytes the store takes on disk, all told: blocks, index, what is staged or set aside, and the folders."""
        with self.index.read() as db:
            blocks = index_usage.totals(db, self.today()).disk
        others = sum(disk.tree_size(path) for path in disk.listing(self.folder) if path.name != BLOCKS)
        return disk.allotted(self.folder.stat()) + blocks + self.blocks.folders_size() + others

    def collect(self) -> int:
        """Delete the blocks no save point uses; returns the bytes freed.

        A block is unlinked while its transaction keeps every other process from beginning to use it: an absorb looks
        in its own transaction whether all its blocks are still there.
        """
        freed = 0
        while True:
            with self.index.write() as db:
                unused = index_recipes.unused_blocks(db, _AT_A_TIME)
                for block_id, name, size in unused:
                    self.blocks.remove(name)
                    db.execute("DELETE FROM blocks WHERE id = ?", (block_id,))
                    freed += size
            if len(unused) < _AT_A_TIME:
                return freed

    def sweep(self) -> None:
        """Delete block files the index does not know, which someone who died half-way has left."""
        self.blocks.sweep_temporary()
        old = list(self.blocks.leftovers(LEFTOVER_AGE_S))
        for start in range(0, len(old), _AT_A_TIME):
            with self.index.write() as db:
                for name in old[start : start + _AT_A_TIME]:
                    if not db.execute("SELECT 1 FROM blocks WHERE name = ?", (name,)).fetchone():
                        self.blocks.remove(name)

    def put_aside(self, bad: Sequence[BadBlock]) -> None:
        """Take bad blocks out of use, and with them every save point that needs one."""
        for one in bad:
            with self.index.write() as db:
                reason = self.blocks.fault(one.block, one.size)
                if reason is None:  # written anew meanwhile
                    continue
                words = f"its save point was set aside: a block was damaged ({reason})"
                users = index_recipes.users_of(db, one.block)
                index_points.lose(db, users, words, self.clock(), tell=True, block=one.block)
                db.execute("DELETE FROM blocks WHERE name = ?", (one.block,))
                self.bad_files.take(self.blocks.path(one.block))
        self.bad_files.trim(self.bounds.quota)
        self.collect()

    def lose(self, point_id: str, reason: str, *, tell: bool) -> str:
        """Take one save point out of use; returns the reason as the user reads it."""
        words = f"its save point was set aside: {reason}"
        with self.index.write() as db:
            index_points.lose(db, [int(point_id)], words, self.clock(), tell=tell, block=None)
        self.staging.drop(point_id)
        self.collect()
        return words
