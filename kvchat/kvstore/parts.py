"""The base of the block store: its files, its index, its clock and its bounds, and what its modules share."""

from __future__ import annotations

import contextlib
import errno
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from kvchat.kvstore import disk
from kvchat.kvstore.blocks.block_files import BlockFiles
from kvchat.kvstore.index import points, recipes, usage
from kvchat.kvstore.index.index import Index, IndexFailed, IndexLost
from kvchat.kvstore.memory_files import MemoryRoom
from kvchat.kvstore.savepoint import Bounds, NotSaved, StoreRefused
from kvchat.kvstore.staging import Staging
from kvchat.words.language import _
from kvchat.words.reasons import Reason, ReasonCode
from kvchat.words.wording import size as size_in_words

BLOCKS, INDEX, STAGING = "blocks", "index.db", "staging"  # what is in the store's folder
_AT_A_TIME = 200  # blocks deleted in one transaction, so that other threads need not wait long
GB = 1_000_000_000
DEFAULT_QUOTA, DEFAULT_CHATS = 20 * GB, 10
_USUAL_DISK = 256 * GB


def default_quota(disk_bytes: int, chat_bytes: int = 0, kept_bytes: int = 0) -> int:
    """Return the quota where the user chose none: ten chats of `chat_bytes`, at least 20 GB, as the disk allows.

    The disk's share is a tenth of one of 256 GB. It grows by a fortieth with each doubling, up to a quarter, and
    shrinks to a twentieth: a small disk is needed for other things. `kept_bytes` are kept already and count as far as
    the disk's share goes, so that a change to a smaller model deletes no memory of a larger one.
    """
    share = 0.1 + 0.025 * math.log2(max(disk_bytes, 1) / _USUAL_DISK)
    wanted = max(DEFAULT_QUOTA, DEFAULT_CHATS * chat_bytes, kept_bytes)
    return min(wanted, round(min(0.25, max(0.05, share)) * disk_bytes))


class StoreBase:
    """The files and the index of a block store. Safe for threads."""

    def __init__(
        self,
        folder: Path,
        bounds: Bounds,
        room: MemoryRoom,
        sync: bool,
        clock: Callable[[], datetime],
        free_bytes: Callable[[], int] | None,
        memory_folder: Path,
    ) -> None:
        """Open the files. Raises OSError, IndexFailed, IndexLost and migrations.DatabaseTooNew."""
        self.folder, self.bounds, self.clock = disk.private_folder(folder), bounds, clock
        self.free_bytes = free_bytes or (lambda: disk.free_bytes(folder))
        self.staging = Staging(folder / STAGING, room, memory_folder)
        self.index = Index(folder / INDEX, on_loss=self.staging.settle)
        self.blocks = BlockFiles(folder / BLOCKS, sync=sync)
        self.used: dict[int, datetime] = {}  # when save points were restored, not yet written to the index

    def today(self) -> str:
        """Return the day under which written bytes are counted (UTC)."""
        return self.clock().date().isoformat()

    def require_room(self, size: int, still_to_write: int, conversation_id: str = "") -> None:
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
        """Return the save points whose only copy is in staging."""
        with self.index.read() as db:
            return frozenset(map(str, points.staged(db)))

    def tidy(self) -> None:
        """Record the restores, and sweep after a loss of the index: work that no answer should wait for."""
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
        """Delete the blocks that no save point uses; return the bytes freed.

        A block is unlinked while its transaction keeps every other thread from beginning to use it: an absorb looks
        in its own transaction whether all its blocks are still there.
        """
        freed = 0
        while True:
            with self.index.write() as db:
                unused = recipes.unused_blocks(db, _AT_A_TIME)
                for block_id, name, size in unused:
                    self.blocks.remove(name)
                    db.execute("DELETE FROM blocks WHERE id = ?", (block_id,))
                    freed += size
            if len(unused) < _AT_A_TIME:
                return freed

    def sweep(self) -> int:
        """Delete block files that the index does not know, left by a killed process; return their bytes."""
        with self.index.read() as db:
            known = {name for (name,) in db.execute("SELECT name FROM blocks")}
        return self.drop_unknown(list(self.blocks.leftovers(known)))

    def drop_unknown(self, names: Sequence[bytes]) -> int:
        """Delete the files of those blocks that no recipe has; return the bytes freed."""
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

    def put_aside(self, bad: Mapping[bytes, int]) -> None:
        """Delete bad blocks, and with them every save point that needs one. `bad`: sizes they should have, by name."""
        for block, size in bad.items():
            with self.index.write() as db:
                fault = self.blocks.fault(block, size)
                if fault is None:  # written anew meanwhile
                    continue
                damaged = Reason(ReasonCode.BLOCK_DAMAGED, {"error": fault})
                reason, users = Reason(ReasonCode.SET_ASIDE, {"reason": damaged}), recipes.users_of(db, block)
                usage.lose(db, users, reason, self.clock(), tell=True)
                db.execute("DELETE FROM blocks WHERE name = ?", (block,))
                self.blocks.remove(block)
        self.collect()

    def lose(self, point_id: str, reason: Reason, *, tell: bool) -> None:
        """Take one save point out of use; the user reads the reason."""
        lost = Reason(ReasonCode.SET_ASIDE, {"reason": reason})
        with self.index.write() as db:
            usage.lose(db, [int(point_id)], lost, self.clock(), tell=tell)
        self.staging.drop(point_id)
        self.collect()


def not_written(error: OSError) -> NotSaved:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotSaved(Reason(ReasonCode.DISK_FULL), _("Make room on the disk."))
    return NotSaved(Reason(ReasonCode.NOT_WRITTEN, {"error": error.strerror or str(error)}))


@contextmanager
def in_words(*, saving: bool = False) -> Iterator[None]:
    """Turn faults of the index and the disk into StoreRefused; also a decorator for the store's methods.

    `saving`: raise NotSaved instead, and leave faults of the disk to the caller.
    """
    try:
        yield
    except IndexLost as error:
        if saving:
            raise NotSaved(Reason(ReasonCode.INDEX_DAMAGED)) from error
        detail = _("It was set aside, and a new one begun: each chat is read again once.")
        raise StoreRefused(_("The list of what is kept was damaged."), detail) from error
    except (IndexFailed, OSError) as error:
        if saving and isinstance(error, OSError):
            raise
        if saving:
            raise NotSaved(Reason(ReasonCode.INDEX_NOT_WRITTEN, {"error": str(error)})) from error
        raise StoreRefused(_("The memory of chats could not be read or written."), f"{error}.") from error
