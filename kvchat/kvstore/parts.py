"""What the parts of the block store share: its files, its index, its clock and its bounds."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from kvchat.kvstore import disk
from kvchat.kvstore.blocks.block_files import BlockFiles
from kvchat.kvstore.blocks.layout import RowMap
from kvchat.kvstore.blocks.rebuild import BadBlock
from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.index import recipes as index_recipes
from kvchat.kvstore.index import usage as index_usage
from kvchat.kvstore.index.index import Index, IndexFailed, IndexLost
from kvchat.kvstore.savepoint import Bounds, NotSaved, StoreRefused
from kvchat.kvstore.staging import Staging
from kvchat.words.language import _
from kvchat.words.reasons import Reason, ReasonCode
from kvchat.words.wording import size as size_in_words

BLOCKS, INDEX, SET_ASIDE, STAGING = "blocks", "index.db", "set-aside", "staging"  # what is in the store's folder
_SET_ASIDE_FILES, _SET_ASIDE_SHARE = 3, 0.1  # how many bad files are kept for a look, how much of the quota they take
_AT_A_TIME = 200  # blocks deleted in one transaction, so that other threads need not wait long
GB = 1_000_000_000
DEFAULT_QUOTA, DEFAULT_CHATS = 20 * GB, 10
_USUAL_DISK = 256 * GB


def default_quota(disk_bytes: int, chat_bytes: int = 0, kept_bytes: int = 0) -> int:
    """The quota where the user chose none: room for ten chats of `chat_bytes`, at least 20 GB, as the disk allows.

    The disk's share is a tenth of one of 256 GB. It grows by a fortieth with each doubling, up to a quarter, and
    shrinks so to a twentieth: a small disk is wanted for other things, a large one has room. `chat_bytes` is a long
    chat's with the model in use. What is kept already is allowed as far as the disk's share goes: to change to a
    smaller model is no reason to throw away the memory of chats with a larger one.
    """
    share = 0.1 + 0.025 * math.log2(max(disk_bytes, 1) / _USUAL_DISK)
    wanted = max(DEFAULT_QUOTA, DEFAULT_CHATS * chat_bytes, kept_bytes)
    return min(wanted, round(min(0.25, max(0.05, share)) * disk_bytes))


class BadFiles:
    """The folder of bad blocks, kept for a look, each with its name and the time it was found."""

    def __init__(self, folder: Path) -> None:
        self._folder = disk.private_folder(folder)

    def take(self, path: Path) -> None:
        """Move a file here; one that is gone, or cannot be moved, is deleted."""
        target = disk.private_folder(self._folder) / path.name
        try:
            path.replace(target)
            os.utime(target)
        except OSError:
            disk.remove(path)

    def size(self) -> int:
        return sum(disk.tree_size(path) for path in disk.listing(self._folder))

    def trim(self, quota: int) -> None:
        """Keep the newest alone: 3 files and 10 % of the quota at most."""
        files: list[tuple[float, int, Path]] = []
        for path in disk.listing(self._folder):
            with contextlib.suppress(OSError):
                files.append(((found := path.stat()).st_mtime, found.st_size, path))
        taken = 0
        for number, (_age, size, path) in enumerate(sorted(files, reverse=True)):
            taken += size
            if number >= _SET_ASIDE_FILES or taken > _SET_ASIDE_SHARE * quota:
                disk.remove(path)

    def delete(self, names: frozenset[str] | None = None) -> int:
        freed = 0
        for path in disk.listing(self._folder):
            if names is None or path.name in names:
                with contextlib.suppress(OSError):
                    freed += path.stat().st_size
                disk.remove(path)
        return freed


@dataclass
class Parts:
    """The store's parts, and what several of its modules do with them. Safe for threads."""

    folder: Path
    index: Index
    blocks: BlockFiles
    staging: Staging
    bad_files: BadFiles
    clock: Callable[[], datetime]
    free_bytes: Callable[[], int]
    read_row_map: Callable[[Path], RowMap]
    bounds: Bounds
    used: dict[int, datetime] = field(default_factory=dict)  # restored when, and the index has not heard of it

    def today(self) -> str:
        """The day under which written bytes are counted (UTC)."""
        return self.clock().date().isoformat()

    def check_room(self, size: int, still_to_write: int, conversation_id: str = "") -> None:
        """Raise NotSaved if a save point of `size` bytes never fits the quota or passes the floor of free disk space.

        `still_to_write`: bytes that the disk does not know of yet: all before the engine saves, nothing afterwards.
        """
        quota, floor, free = self.bounds.of(conversation_id), self.bounds.free_floor, self.free_bytes()
        if size > quota:
            places = {"size": size_in_words(size), "limit": size_in_words(quota)}
            raise NotSaved(Reason(ReasonCode.OVER_LIMIT, places), _("Raise the limit in the settings, under Storage."))
        if free - still_to_write < floor:
            places = {"free": size_in_words(free), "floor": size_in_words(floor)}
            advice = _("Make room on the disk, or lower the floor in the settings.")
            raise NotSaved(Reason(ReasonCode.DISK_NEARLY_FULL, places), advice)

    def unabsorbed(self) -> frozenset[str]:
        """The save points whose only copy is in staging."""
        with self.index.read() as db:
            return frozenset(map(str, index_points.staged(db)))

    def occupied(self) -> int:
        """Bytes the store takes on disk, all told: blocks, index, what is staged or set aside, and the folders."""
        with self.index.read() as db:
            blocks = index_usage.totals(db, self.today()).disk
        blocks += sum(list(self.blocks.new.values()))
        others = sum(disk.tree_size(path) for path in disk.listing(self.folder) if path.name != BLOCKS)
        return disk.allotted(self.folder.stat()) + blocks + self.blocks.folders_size() + others

    def tidy(self) -> None:
        """Do what no answer should wait for: count the restores, sweep after a loss of the index."""
        used, self.used = self.used, {}
        if used:
            with contextlib.suppress(IndexFailed), self.index.write() as db:
                db.executemany(
                    "UPDATE save_points SET last_used_at = ? WHERE id = ?",
                    [(at.timestamp(), point_id) for point_id, at in used.items()],
                )
        if self.index.fresh:
            self.index.fresh = False
            self.sweep()

    def collect(self) -> int:
        """Delete the blocks no save point uses; returns the bytes freed.

        A block is unlinked while its transaction keeps every other thread from beginning to use it: an absorb looks
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

    def sweep(self) -> int:
        """Delete block files the index does not know, which someone who died half-way has left; returns their bytes."""
        with self.index.read() as db:
            known = {name for (name,) in db.execute("SELECT name FROM blocks")}
        return self.drop_unknown(list(self.blocks.leftovers(known)))

    def drop_new(self) -> None:
        """Delete what was written for a recipe that came to nothing; what fails now is tried again the next time."""
        if self.blocks.new:
            with contextlib.suppress(IndexFailed, IndexLost, OSError):
                self.drop_unknown(list(self.blocks.new))

    def drop_unknown(self, names: Sequence[bytes]) -> int:
        """Delete the files of these blocks as far as no recipe has them; returns the bytes freed."""
        freed = 0
        for start in range(0, len(names), _AT_A_TIME):
            with self.index.write() as db:
                for name in names[start : start + _AT_A_TIME]:
                    if not db.execute("SELECT 1 FROM blocks WHERE name = ?", (name,)).fetchone():
                        with contextlib.suppress(OSError):
                            freed += self.blocks.on_disk(name)
                        self.blocks.remove(name)
                    self.blocks.new.pop(name, None)
        return freed

    def put_aside(self, bad: Sequence[BadBlock]) -> None:
        """Take bad blocks out of use, and with them every save point that needs one."""
        for one in bad:
            with self.index.write() as db:
                fault = self.blocks.fault(one.block, one.size)
                if fault is None:  # written anew meanwhile
                    continue
                damaged = Reason(ReasonCode.BLOCK_DAMAGED, {"error": fault})
                reason, users = Reason(ReasonCode.SET_ASIDE, {"reason": damaged}), index_recipes.users_of(db, one.block)
                index_usage.lose(db, users, reason, self.clock(), tell=True, block=one.block)
                db.execute("DELETE FROM blocks WHERE name = ?", (one.block,))
                self.bad_files.take(self.blocks.path(one.block))
        self.bad_files.trim(self.bounds.quota)
        self.collect()

    def lose(self, point_id: str, reason: Reason, *, tell: bool) -> None:
        """Take one save point out of use; the user reads the reason."""
        lost = Reason(ReasonCode.SET_ASIDE, {"reason": reason})
        with self.index.write() as db:
            index_usage.lose(db, [int(point_id)], lost, self.clock(), tell=tell, block=None)
        self.staging.drop(point_id)
        self.collect()


def not_written(error: OSError) -> NotSaved:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotSaved(Reason(ReasonCode.DISK_FULL), _("Make room on the disk."))
    return NotSaved(Reason(ReasonCode.NOT_WRITTEN, {"error": error.strerror or str(error)}))


@contextmanager
def in_words(*, saving: bool = False) -> Iterator[None]:
    """Turn faults of the index and the disk into what the user is told; decorates what the store is asked to do.

    `saving`: of what was not saved, where faults of the disk have words of their own.
    """
    try:
        yield
    except IndexLost as error:
        if saving:
            raise NotSaved(Reason(ReasonCode.INDEX_DAMAGED)) from error
        detail = _("It was set aside, and a new one begun: each chat is read again once.")
        raise StoreRefused(_("The list of what is kept was damaged."), detail) from error
    except IndexFailed as error:
        if saving:
            raise NotSaved(Reason(ReasonCode.INDEX_NOT_WRITTEN, {"error": str(error)})) from error
        raise StoreRefused(_("The memory of chats could not be read or written."), f"{error}.") from error
    except OSError as error:
        if saving:
            raise
        raise StoreRefused(_("The memory of chats could not be read or written."), f"{error}.") from error
