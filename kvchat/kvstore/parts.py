"""What the parts of the block store share: its files, its index, its clock and its bounds."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from kvchat.kvstore import disk, process_locks
from kvchat.kvstore.blocks import header as slotfile
from kvchat.kvstore.blocks.block_files import BlockFiles
from kvchat.kvstore.blocks.layout import RowMap
from kvchat.kvstore.blocks.rebuild import BadBlock
from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.index import recipes as index_recipes
from kvchat.kvstore.index import usage as index_usage
from kvchat.kvstore.index.index import Index, IndexFailed, IndexLost
from kvchat.kvstore.savepoint import Bounds, NotSaved, StoreRefused, Tokens, common_prefix
from kvchat.kvstore.staging import Staging
from kvchat.words.language import _
from kvchat.words.reasons import Reason, ReasonCode
from kvchat.words.wording import size as size_in_words

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


def check_room(size: int, still_to_write: int, free: int, quota: int, floor: int) -> None:
    """Raise NotSaved if a save point of `size` bytes never fits the quota or passes the floor of free disk space.

    `still_to_write` is how much of it `free` does not know of yet: all before the engine saves, nothing afterwards.
    """
    if size > quota:
        places = {"size": size_in_words(size), "limit": size_in_words(quota)}
        raise NotSaved(Reason(ReasonCode.OVER_LIMIT, places), _("Raise the limit in the settings, under Storage."))
    if free - still_to_write < floor:
        places = {"free": size_in_words(free), "floor": size_in_words(floor)}
        advice = _("Make room on the disk, or lower the floor in the settings.")
        raise NotSaved(Reason(ReasonCode.DISK_NEARLY_FULL, places), advice)


def check_saved(slot_file: Path, expected: Tokens, expected_size: int | None) -> int:
    """The size of a file the engine has just saved. Raises NotSaved unless it is whole and holds `expected`."""
    try:
        size = slot_file.stat().st_size
        tokens = slotfile.read_tokens(slot_file)
    except FileNotFoundError:
        raise NotSaved(Reason(ReasonCode.NO_FILE)) from None
    except slotfile.SlotFileError as error:
        raise NotSaved(Reason(ReasonCode.FILE_BROKEN, {"error": str(error)})) from error
    if expected_size is not None and size != expected_size:
        places = {"written": size_in_words(expected_size), "there": size_in_words(size)}
        raise NotSaved(Reason(ReasonCode.FILE_CUT, places))
    if not len(tokens):
        raise NotSaved(Reason(ReasonCode.NOTHING_HELD))
    if not slotfile.stands_for(tokens, expected):
        shared = common_prefix(tokens.tolist(), expected)
        raise NotSaved(Reason(ReasonCode.OTHERS_HELD, {"tokens": len(tokens), "shared": shared}))
    return size


def not_written(error: OSError) -> NotSaved:
    """The refusal for a fault of the disk while writing."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotSaved(Reason(ReasonCode.DISK_FULL), _("Make room on the disk."))
    return NotSaved(Reason(ReasonCode.NOT_WRITTEN, {"error": error.strerror or str(error)}))


BLOCKS, INDEX, SET_ASIDE, STAGING = "blocks", "index.db", "set-aside", "staging"  # what is in the store's folder
BRIEF_S = 0.5  # how long somebody who waits for an answer waits for others to write
LEFTOVER_AGE_S = 3600.0  # a block file nothing refers to may be one that is just being absorbed
_SET_ASIDE_FILES, _SET_ASIDE_SHARE = 3, 0.1  # how many bad files are kept for a look, how much of the quota they take
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
        """Keep the newest alone: 3 files and 10 % of the quota at most."""
        files: list[tuple[float, int, Path]] = []
        for path in disk.listing(self._folder):
            with contextlib.suppress(OSError):
                files.append(((found := path.stat()).st_mtime, found.st_size, path))
        taken = 0
        for number, (_age, size, path) in enumerate(sorted(files, reverse=True)):
            taken += size
            if number >= _SET_ASIDE_FILES or taken > _SET_ASIDE_SHARE * quota:
                path.unlink(missing_ok=True)

    def delete(self, names: frozenset[str] | None = None) -> int:
        """Delete these files, or all; returns the bytes freed."""
        freed = 0
        for path in disk.listing(self._folder):
            if names is None or path.name in names:
                with contextlib.suppress(OSError):
                    freed += path.stat().st_size
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        return freed


@dataclass(frozen=True)
class Damage:
    """What a restore has found: bad blocks, or, if `bad` is empty, a recipe that is wrong."""

    point_id: str
    reason: Reason
    bad: tuple[BadBlock, ...]


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
    used: dict[int, datetime] = field(default_factory=dict)  # restored when, and the index has not heard of it
    damaged: list[Damage] = field(default_factory=list)  # found, and not set aside yet
    strays: int = 0  # bytes of block files the index does not know, left by others

    def today(self) -> str:
        """The day under which written bytes are counted (UTC)."""
        return self.clock().date().isoformat()

    def unabsorbed(self) -> frozenset[str]:
        """The save points whose only copy is in this process's staging folders."""
        with self.index.read() as db:
            return frozenset(str(one) for one in index_points.staged_by(db, self.staging.owner))

    def occupied(self) -> int:
        """Bytes the store takes on disk, all told: blocks, index, what is staged or set aside, and the folders."""
        with self.index.read() as db:
            blocks = index_usage.totals(db, self.today()).disk
        blocks += self.strays + sum(list(self.blocks.new.values()))
        others = sum(disk.tree_size(path) for path in disk.listing(self.folder) if path.name != BLOCKS)
        return disk.allotted(self.folder.stat()) + blocks + self.blocks.folders_size() + others

    def tidy(self) -> None:
        """What nobody should wait for: count the restores, set aside what they found bad, sweep after a loss."""
        used, self.used = self.used, {}
        if used:
            with contextlib.suppress(IndexFailed), self.index.write() as db:
                for point_id, at in used.items():
                    index_points.count_use(db, point_id, at)
        self.set_damaged_aside()
        if self.index.fresh:
            self.index.fresh = False
            self.sweep(everything=True)

    def collect(self, patience_s: float | None = None) -> int:
        """Delete the blocks no save point uses; returns the bytes freed. `patience_s`: as in `Index.write`.

        A block is unlinked while its transaction keeps every other process from beginning to use it: an absorb looks
        in its own transaction whether all its blocks are still there.
        """
        freed = 0
        while True:
            with self.index.write(patience_s) as db:
                unused = index_recipes.unused_blocks(db, _AT_A_TIME)
                for block_id, name, size in unused:
                    self.blocks.remove(name)
                    db.execute("DELETE FROM blocks WHERE id = ?", (block_id,))
                    freed += size
            if len(unused) < _AT_A_TIME:
                return freed

    def sweep(self, *, everything: bool = False) -> int:
        """Delete block files the index does not know, which someone who died half-way has left; returns their bytes.

        Where another process is there, those of the last hour may be its own, not in its recipe yet. It would write
        them again, so `everything` may go as well. Those that stay are counted.
        """
        self.blocks.sweep_temporary(self.staging.locks)
        with self.index.read() as db:
            known = {name for (name,) in db.execute("SELECT name FROM blocks")}
        spare = LEFTOVER_AGE_S if not everything and process_locks.others(self.staging.locks) else 0.0
        freed = self.drop_unknown(list(self.blocks.leftovers(known, spare)))
        self.strays = 0
        for name in self.blocks.leftovers(known, 0.0) if spare else ():
            with contextlib.suppress(OSError):
                self.strays += self.blocks.on_disk(name)
        return freed

    def drop_new(self, patience_s: float | None = None) -> None:
        """Delete what was written for a recipe that came to nothing; what fails now is tried again the next time."""
        if self.blocks.new:
            with contextlib.suppress(IndexFailed, IndexLost, OSError):
                self.drop_unknown(list(self.blocks.new), patience_s)

    def drop_unknown(self, names: Sequence[bytes], patience_s: float | None = None) -> int:
        """Delete the files of these blocks as far as no recipe has them; returns the bytes freed."""
        freed = 0
        for start in range(0, len(names), _AT_A_TIME):
            with self.index.write(patience_s) as db:
                for name in names[start : start + _AT_A_TIME]:
                    if not db.execute("SELECT 1 FROM blocks WHERE name = ?", (name,)).fetchone():
                        with contextlib.suppress(OSError):
                            freed += self.blocks.on_disk(name)
                        self.blocks.remove(name)
                    self.blocks.new.pop(name, None)
        return freed

    def set_damaged_aside(self, patience_s: float | None = None) -> None:
        """Take out of use what restores have found bad. Raises IndexFailed where others write for longer: it stays."""
        while self.damaged:
            one = self.damaged.pop()
            try:
                if one.bad:
                    self.put_aside(one.bad, patience_s)
                else:
                    self.lose(one.point_id, one.reason, tell=True, patience_s=patience_s)
            except IndexFailed:
                self.damaged.append(one)
                raise

    def put_aside(self, bad: Sequence[BadBlock], patience_s: float | None = None) -> None:
        """Take bad blocks out of use, and with them every save point that needs one."""
        for one in bad:
            with self.index.write(patience_s) as db:
                fault = self.blocks.fault(one.block, one.size)
                if fault is None:  # written anew meanwhile
                    continue
                damaged = Reason(ReasonCode.BLOCK_DAMAGED, {"error": fault})
                reason, users = Reason(ReasonCode.SET_ASIDE, {"reason": damaged}), index_recipes.users_of(db, one.block)
                index_points.lose(db, users, reason, self.clock(), tell=True, block=one.block)
                db.execute("DELETE FROM blocks WHERE name = ?", (one.block,))
                self.bad_files.take(self.blocks.path(one.block))
        self.bad_files.trim(self.bounds.quota)
        self.collect(patience_s)

    def lose(self, point_id: str, reason: Reason, *, tell: bool, patience_s: float | None = None) -> None:
        """Take one save point out of use; the user reads the reason."""
        lost = Reason(ReasonCode.SET_ASIDE, {"reason": reason})
        with self.index.write(patience_s) as db:
            index_points.lose(db, [int(point_id)], lost, self.clock(), tell=tell, block=None)
        self.staging.drop(point_id)
        self.collect(patience_s)


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
