"""The contents of a store: files, index and limits, with the queries, deletions and checks for all of them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from kvchat.kvstore import disk
from kvchat.kvstore.blocks.block_files import BlockFiles
from kvchat.kvstore.blocks.recipe import RecipeError
from kvchat.kvstore.index import eviction, points, usage
from kvchat.kvstore.index.index import Index, IndexFailed, IndexLost, check_readable
from kvchat.kvstore.index.schema import fingerprint_of
from kvchat.kvstore.savepoint import (
    Bounds,
    Loss,
    NotSaved,
    PrunePlan,
    SavePoint,
    SavePointSummary,
    StoreRefused,
    StoreUsage,
    Tier,
    UncheckedPoints,
    VerifyReport,
    imported_audience,
)
from kvchat.kvstore.staging import Staging
from kvchat.text.formatting import format_size
from kvchat.text.language import _
from kvchat.text.reasons import Reason, ReasonCode

BLOCKS, INDEX, STAGING = "blocks", "index.db", "staging"  # in the store's folder
_DELETE_BATCH = 200  # blocks deleted per transaction, so other threads wait briefly
PROGRAMS_AGE_DAYS = 14.0  # agents resume a thread within days or never; their shared prefix is used daily


def write_error(error: OSError) -> NotSaved:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotSaved(Reason(ReasonCode.DISK_FULL), _("Free up disk space."))
    return NotSaved(Reason(ReasonCode.NOT_WRITTEN, {"error": error.strerror or str(error)}))


@contextmanager
def in_words(*, saving: bool = False) -> Iterator[None]:
    """Convert index and disk errors to StoreRefused; also a decorator for the store's methods.

    `saving`: raise NotSaved instead, and pass disk errors through.
    """
    try:
        yield
    except IndexLost as error:
        if saving:
            raise NotSaved(Reason(ReasonCode.INDEX_DAMAGED)) from error
        detail = _("kvchat set it aside and created a new one. Each chat is reprocessed once.")
        raise StoreRefused(_("The chat memory index was damaged."), detail) from error
    except (IndexFailed, OSError) as error:
        if saving and isinstance(error, OSError):
            raise
        if saving:
            raise NotSaved(Reason(ReasonCode.INDEX_NOT_WRITTEN, {"error": str(error)})) from error
        raise StoreRefused(_("Chat memory could not be read or written."), f"{error}.") from error


def store_unusable(folder: Path, error: Exception) -> StoreRefused:
    title = _("The chat memory folder cannot be used.")
    advice = _("Check the permissions of the folder and that the disk is not full.")
    return StoreRefused(title, f"{folder}: {getattr(error, 'strerror', None) or error}.", advice)


def check_store(folder: Path) -> None:
    """Raise KvchatError if the folder has no usable store. Only reads: another process may own it."""
    index = folder / INDEX
    try:
        os.scandir(folder).close()
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if index.exists():
            check_readable(index)
    except (OSError, IndexFailed) as error:
        raise store_unusable(folder, error) from error


class Inventory:
    """The files and the index of a block store, and their maintenance. Thread-safe."""

    def __init__(
        self,
        *,
        folder: Path,
        bounds: Bounds,
        staging: Staging,
        index: Index,
        blocks: BlockFiles,
        clock: Callable[[], datetime],
        free_bytes: Callable[[], int],
    ) -> None:
        self.folder, self.bounds, self.clock, self.free_bytes = folder, bounds, clock, free_bytes
        self.staging, self.index, self.blocks = staging, index, blocks
        self.used: dict[int, datetime] = {}  # restore times not yet written to the index

    def take_over(self) -> None:
        """Adopt or discard what a killed process left. Checks that the store is writable."""
        with self.index.write() as db:
            if self.index.fresh and any(self.blocks.leftovers(())):
                usage.note_index_loss(db)  # the index was deleted, but not its blocks
            waiting = {str(number): size for number, size in points.staged(db).items()}
            lost = [int(point_id) for point_id in waiting.keys() - self.staging.take_over(waiting)]
            usage.lose(db, lost, Reason(ReasonCode.NOT_FINISHED), self.clock(), tell=False)
        self.blocks.sweep_temporary()
        disk.remove(self.folder / "set-aside")  # bad blocks of earlier versions
        self.sweep()
        self.index.fresh = False

    def today(self) -> str:
        """Return the UTC day used to count written bytes."""
        return self.clock().date().isoformat()

    def require_room(self, size: int, still_to_write: int, conversation_id: str = "") -> None:
        """Raise NotSaved if `size` bytes exceed the quota or leave less than the minimum free disk space.

        `still_to_write`: bytes not yet on disk: all before the engine saves, none afterwards.
        """
        if self.index.problem is not None:
            raise self.index.problem
        quota, floor, free = self.bounds.of(conversation_id), self.bounds.free_floor, self.free_bytes()
        if size > quota:
            places = {"size": format_size(size), "limit": format_size(quota)}
            raise NotSaved(Reason(ReasonCode.OVER_LIMIT, places), _("Raise the storage limit in Settings, Storage."))
        if free - still_to_write < floor:
            places = {"free": format_size(free), "floor": format_size(floor)}
            advice = _("Free up disk space, or lower the minimum free space in Settings, Storage.")
            raise NotSaved(Reason(ReasonCode.DISK_NEARLY_FULL, places), advice)

    def unabsorbed(self) -> frozenset[str]:
        with self.index.read() as db:
            return frozenset(map(str, points.staged(db)))

    def tidy(self) -> None:
        """Record restores, and sweep after an index loss: work that should not delay an answer."""
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

        Blocks are unlinked inside a transaction that keeps other threads from starting to use them: an absorb checks
        in its own transaction that all its blocks still exist.
        """
        freed = 0
        while True:
            with self.index.write() as db:
                unused = points.unused_blocks(db, _DELETE_BATCH)
                for block_id, name, size in unused:
                    self.blocks.remove(name)
                    db.execute("DELETE FROM blocks WHERE id = ?", (block_id,))
                    freed += size
            if len(unused) < _DELETE_BATCH:
                return freed

    def sweep(self) -> int:
        """Delete block files missing from the index, left by a killed process; return their bytes."""
        with self.index.read() as db:
            known = {name for (name,) in db.execute("SELECT name FROM blocks")}
        return self.drop_unknown(list(self.blocks.leftovers(known)))

    def drop_unknown(self, names: Sequence[bytes]) -> int:
        freed = 0
        for start in range(0, len(names), _DELETE_BATCH):
            with self.index.write() as db:
                for name in names[start : start + _DELETE_BATCH]:
                    if not db.execute("SELECT 1 FROM blocks WHERE name = ?", (name,)).fetchone():
                        with contextlib.suppress(OSError):
                            freed += self.blocks.on_disk(name)
                        self.blocks.remove(name)
                    self.blocks.new.pop(name, None)
        return freed

    def discard_bad_blocks(self, bad: Mapping[bytes, int]) -> None:
        """Delete bad blocks and every save point that needs one. `bad`: their expected sizes, by name."""
        for block, size in bad.items():
            with self.index.write() as db:
                fault = self.blocks.fault(block, size)
                if fault is None:  # rewritten meanwhile
                    continue
                damaged = Reason(ReasonCode.BLOCK_DAMAGED, {"error": fault})
                reason, users = Reason(ReasonCode.SET_ASIDE, {"reason": damaged}), points.points_using_block(db, block)
                usage.lose(db, users, reason, self.clock(), tell=True)
                db.execute("DELETE FROM blocks WHERE name = ?", (block,))
                self.blocks.remove(block)
        self.collect()

    @in_words()
    def set_aside(self, save_point: SavePoint, reason: Reason) -> None:
        """Discard a save point the engine refused, or whose restore proved hollow."""
        self.lose(save_point.id, reason, tell=False)

    def lose(self, point_id: str, reason: Reason, *, tell: bool) -> None:
        lost = Reason(ReasonCode.SET_ASIDE, {"reason": reason})
        with self.index.write() as db:
            usage.lose(db, [int(point_id)], lost, self.clock(), tell=tell)
        self.staging.drop(point_id)
        self.collect()

    @in_words()
    def usage(self) -> StoreUsage:
        if problem := self.index.problem:
            return StoreUsage((), 0, 0, 0, problem=f"{problem.detail} {problem.advice}")
        self.tidy()
        occupied = self.occupied()
        with self.index.read() as db:
            conversations = tuple(usage.by_conversation(db))
            totals = usage.totals(db, self.today())
        return StoreUsage(
            conversations=conversations,
            quota_bytes=self.bounds.quota,
            programs_quota_bytes=self.bounds.programs,
            free_bytes=self.free_bytes(),
            free_floor_bytes=self.bounds.free_floor,
            save_points=totals.save_points,
            logical_bytes=totals.logical,
            physical_bytes=occupied,
            other_bytes=max(0, occupied - totals.disk),
            unique_rows_bytes=totals.rows,
            bytes_written=totals.written,
            bytes_written_today=totals.written_today,
            warm_bytes=self.staging.bytes(),
            staged=self.staging.in_words(),
        )

    @in_words()
    def occupied(self) -> int:
        with self.index.read() as db:
            blocks = usage.totals(db, self.today()).disk
        blocks += sum(list(self.blocks.new.values()))
        others = sum(disk.tree_size(path) for path in disk.listing(self.folder) if path.name != BLOCKS)
        return disk.disk_usage(self.folder.stat()) + blocks + self.blocks.overhead_bytes() + others

    @in_words()
    def summaries(self, conversations: Sequence[str]) -> dict[str, tuple[SavePointSummary, ...]]:
        kept = dict[str, tuple[SavePointSummary, ...]]()
        with self.index.read() as db:
            rows = usage.ends(db, conversations)
            fingerprints = {facts: fingerprint_of(facts) for facts in {row[3] for row in rows}}
        for point_id, name, message_id, facts, tokens, size in rows:
            tier = Tier.WARM if self.staging.has_warm(str(point_id)) else Tier.DISK
            kept[name] = (*kept.get(name, ()), SavePointSummary(message_id, fingerprints[facts], tokens, size, tier))
        return kept

    @in_words()
    def losses(self) -> tuple[Loss, ...]:
        """Return what was lost since the last call: the user is told once."""
        with self.index.write() as db:
            return usage.take_unreported_losses(db) + usage.take_unreported_index_loss(db)

    @in_words()
    def unchecked(self, by: str) -> UncheckedPoints:
        """Return what was saved since this caller's last `seen`; everything if another called it since."""
        with self.index.read() as db:
            return usage.unchecked(db, by)

    @in_words()
    def mark_checked(self, by: str, what: UncheckedPoints) -> None:
        with self.index.write() as db:
            usage.mark_checked(db, by, what)

    @in_words()
    def pin(self, conversation_id: str, pinned: bool) -> None:
        with self.index.write() as db:
            points.set_flag(db, conversation_id, "pinned", pinned)

    @in_words()
    def never_save(self, conversation_id: str, never: bool) -> None:
        """Set whether a conversation is never saved. Existing save points stay until deleted."""
        with self.index.write() as db:
            points.set_flag(db, conversation_id, "never_save", never)

    # Deletion: each method returns the freed bytes

    @in_words()
    def delete_conversation(self, conversation_id: str) -> int:
        """Delete a conversation's save points. Those that others extend are handed over to them."""
        with self.index.write() as db:
            ids = points.transfer_to_extensions(db, points.points_of(db, conversation_id))
            points.delete(db, ids)
            points.forget(db, conversation_id)
        return self._delete(ids)

    @in_words()
    def delete_all(self) -> int:
        with self.index.write() as db:
            ids = points.points_of(db, None)
            points.delete(db, ids)
            points.forget(db, None)
        return self._delete(ids) + self.sweep()

    @in_words()
    def delete_messages(self, conversation_id: str, message_ids: Collection[str]) -> int:
        """Delete the save points of these messages and those of the conversation without a message.

        Those that others extend, in any conversation, are handed over to them.
        """
        with self.index.write() as db:
            ids = points.transfer_to_extensions(db, points.points_of_messages(db, conversation_id, message_ids))
            points.delete(db, ids)
        return self._delete(ids)

    @in_words()
    def imported(self) -> set[str]:
        with self.index.read() as db:
            return usage.with_imported(db)

    @in_words()
    def delete_imported(self, conversation_id: str) -> int:
        """Delete a conversation's imported memory and what was built on it."""
        with self.index.write() as db:
            ids = points.points_for(db, imported_audience(conversation_id))
            points.delete(db, ids)
        return self._delete(ids)

    @in_words()
    def plan_prune(self, target_bytes: int, protected: int | None = None) -> PrunePlan:
        with self.index.read() as db:
            found, needs = usage.candidates(db, protected)
        return eviction.plan_prune(found, needs, self.occupied(), target_bytes, self.clock().timestamp())

    @in_words()
    def prune(self, plan: PrunePlan, reason: ReasonCode = ReasonCode.PRUNED_BY_USER) -> int:
        return self._discard([int(id) for id in plan.save_point_ids], reason)

    @in_words()
    def set_bounds(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.enforce()

    def enforce(self, protected: int | None = None) -> None:
        """Enforce the bounds: delete what is too old, then the least valuable.

        Other programs have separate limits within them.
        """
        bounds = self.bounds
        self._expire(PROGRAMS_AGE_DAYS, protected, programs=True)
        if bounds.max_age_days is not None:
            self._expire(bounds.max_age_days, protected, programs=False)
        with self.index.read() as db:
            too_much = usage.held_by_programs(db) > bounds.programs
            found, needs = usage.candidates(db, protected) if too_much else ([], None)
        if needs is not None:
            plan = eviction.plan_programs(found, needs, bounds.programs, self.clock().timestamp())
            self.prune(plan, ReasonCode.PRUNED)
        if self.occupied() > bounds.quota:
            self.staging.trim(disk_too=True)
        if self.occupied() > bounds.quota:
            self.prune(self.plan_prune(bounds.quota, protected), ReasonCode.PRUNED)

    def _expire(self, days: float, protected: int | None, *, programs: bool) -> None:
        limit = self.clock() - timedelta(days=days)
        with self.index.read() as db:
            old = points.unused_since(db, limit.timestamp(), protected, programs=programs)
        self._discard(old, ReasonCode.EXPIRED)

    def _discard(self, point_ids: Sequence[int], reason: ReasonCode) -> int:
        if not point_ids:
            return 0
        with self.index.write() as db:
            usage.lose(db, point_ids, Reason(reason), self.clock(), tell=False)
        return self._delete(point_ids)

    def _delete(self, point_ids: Sequence[int]) -> int:
        for point_id in point_ids:
            self.staging.drop(str(point_id))
        freed = self.collect()
        self.index.shrink()
        return freed

    @in_words()
    def verify(self, progress: Callable[[int, int], None] = lambda done, total: None) -> VerifyReport:
        """Hash every block; delete bad ones and every save point that needs them. Recount all sums.

        `progress` receives the bytes done and the total.
        """
        self.index.check()
        self.collect()  # a process killed while deleting leaves index rows of deleted blocks
        wrong: dict[str, Reason] = {}
        with self.index.read() as db:
            blocks = db.execute("SELECT name, size FROM blocks").fetchall()
            for point_id in points.points_of(db, None):
                try:
                    points.load_recipe(db, point_id)
                except RecipeError as error:
                    wrong[str(point_id)] = Reason(ReasonCode.ERROR, {"message": str(error)})
        done, total = 0, sum(size for _, size in blocks)
        bad: dict[bytes, int] = {}
        measured: dict[bytes, int] = {}
        for name, size in blocks:
            if self.blocks.fault(name, size):
                bad[name] = size
            else:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    measured[name] = self.blocks.on_disk(name)
            done += size
            progress(done, total)
        self.discard_bad_blocks(bad)
        with self.index.write() as db:
            usage.recount(db, measured)
        for wrong_id, reason in wrong.items():
            self.lose(wrong_id, reason, tell=True)
        self.sweep()
        with self.index.write() as db:
            lost = usage.take_unreported_losses(db)
        return VerifyReport(len(blocks), total, len(bad) + len(wrong), lost)
