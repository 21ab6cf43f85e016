"""Housekeeping house: usage, pruning, deleting, verifying, and what a process that died has left."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta

from kvchat.kvstore import process_locks
from kvchat.kvstore.audience import imported
from kvchat.kvstore.blocks.rebuild import BadBlock
from kvchat.kvstore.blocks.recipe import RecipeError
from kvchat.kvstore.index import eviction
from kvchat.kvstore.index import notes as index_notes
from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.index import recipes as index_recipes
from kvchat.kvstore.index import usage as index_usage
from kvchat.kvstore.index.check import fingerprint_of
from kvchat.kvstore.parts import BRIEF_S, Parts, in_words
from kvchat.kvstore.savepoint import Bounds, Kept, Loss, PrunePlan, StoreUsage, Tier, Unseen, VerifyReport
from kvchat.words.reasons import Reason, ReasonCode

PROGRAMS_AGE_DAYS = 14.0  # agents come back to a thread within days, or never; what they all begin with is used daily


class Housekeeping:
    """The block store as far as it looks after what it has. Safe for threads and processes."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def _recover(self) -> None:
        """Take over, or give up, what processes that are gone had not absorbed; sweep their folders."""
        parts, staging = self._parts, self._parts.staging
        died = process_locks.died(staging.locks)
        with parts.index.read() as db:
            owners = [one for one in index_points.owners(db) if process_locks.is_gone(one, staging.locks)]
        if owners:
            self._take_over(owners)
        parts.tidy()
        if staging.sweep() or died:
            parts.sweep()
            if not parts.strays:
                process_locks.forget(died)

    def _take_over(self, owners: Sequence[str]) -> None:
        staging = self._parts.staging
        with self._parts.index.write() as db:
            for owner in owners:
                for point_id in index_points.staged_by(db, owner):
                    point = index_points.load(db, point_id)
                    if point and staging.adopt(owner, point.id, point.size):
                        db.execute("UPDATE save_points SET owner = ? WHERE id = ?", (staging.owner, point_id))
                    else:
                        index_points.lose(
                            db, [point_id], Reason(ReasonCode.NOT_FINISHED), self._parts.clock(), tell=False, block=None
                        )

    @in_words()
    def usage(self) -> StoreUsage:
        """What is kept, by conversation, the largest first."""
        parts = self._parts
        parts.tidy()
        occupied = parts.occupied()
        with parts.index.read() as db:
            conversations = tuple(index_usage.by_conversation(db))
            totals = index_usage.totals(db, parts.today())
        return StoreUsage(
            conversations=conversations,
            set_aside_bytes=parts.bad_files.size(),
            quota_bytes=parts.bounds.quota,
            programs_quota_bytes=parts.bounds.programs,
            free_bytes=parts.free_bytes(),
            free_floor_bytes=parts.bounds.free_floor,
            save_points=totals.save_points,
            logical_bytes=totals.logical,
            physical_bytes=occupied,
            other_bytes=max(0, occupied - totals.disk),
            unique_rows_bytes=totals.rows,
            bytes_written=totals.written,
            bytes_written_today=totals.written_today,
            warm_bytes=parts.staging.bytes(),
            staged=parts.staging.in_words(),
        )

    @in_words()
    def kept(self, conversations: Sequence[str]) -> dict[str, tuple[Kept, ...]]:
        """What is kept of each of these that could be restored now."""
        staging, kept = self._parts.staging, dict[str, tuple[Kept, ...]]()
        with self._parts.index.read() as db:
            rows = index_usage.ends(db, conversations)
            fingerprints = {facts: fingerprint_of(facts) for facts in {row[3] for row in rows}}
        for point_id, name, message_id, facts, tokens, size, owner in rows:
            if owner in (None, staging.owner):
                tier = Tier.WARM if staging.has_warm(str(point_id)) else Tier.DISK
                kept[name] = (*kept.get(name, ()), Kept(message_id, fingerprints[facts], tokens, size, tier))
        return kept

    @in_words()
    def occupied(self) -> int:
        """Bytes that all of it takes on disk, as `usage` has it, without going through the conversations."""
        return self._parts.occupied()

    @in_words()
    def plan_prune(self, target_bytes: int, protected: str | None = None) -> PrunePlan:
        """What pruning to a size would remove, and what re-reading it would cost. Removes nothing."""
        with self._parts.index.read() as db:
            found, needs = index_usage.candidates(db, int(protected) if protected else None)
        now = self._parts.clock().timestamp()
        return eviction.plan_prune(found, needs, self._parts.occupied(), target_bytes, now)

    def _plan_programs(self, protected: str | None) -> PrunePlan:
        """What would go to keep other programs within their bounds."""
        with self._parts.index.read() as db:
            found, needs = index_usage.candidates(db, int(protected) if protected else None)
        return eviction.plan_programs(found, needs, self._parts.bounds.programs, self._parts.clock().timestamp())

    @in_words()
    def prune(self, plan: PrunePlan, reason: ReasonCode = ReasonCode.PRUNED_BY_USER) -> int:
        """Carry a plan out, as far as its save points are still there; returns the bytes freed."""
        return self._give_up([int(one) for one in plan.save_point_ids], reason)

    def _enforce(self, protected: str | None = None) -> int:
        """Keep to the bounds: what is too old goes, then what was set aside, then the least valuable.

        Other programs have bounds of their own within them.
        """
        parts, bounds = self._parts, self._parts.bounds
        freed = self._expire(PROGRAMS_AGE_DAYS, protected, programs=True)
        if bounds.max_age_days is not None:
            freed += self._expire(bounds.max_age_days, protected)
        with parts.index.read() as db:
            held = index_usage.held_by_programs(db)
        if held > bounds.programs:
            freed += self.prune(self._plan_programs(protected), ReasonCode.PRUNED)
        parts.bad_files.trim(bounds.quota)
        if parts.occupied() > bounds.quota:
            parts.staging.trim(parts.unabsorbed(), disk_too=True)
        if parts.occupied() > bounds.quota:
            freed += parts.bad_files.delete()
        if parts.occupied() > bounds.quota:
            freed += self.prune(self.plan_prune(bounds.quota, protected), ReasonCode.PRUNED)
        return freed

    def _expire(self, days: float, protected: str | None, *, programs: bool = False) -> int:
        """Give up what was not used for so long; returns the bytes freed."""
        limit, spared = self._parts.clock() - timedelta(days=days), int(protected) if protected else None
        with self._parts.index.read() as db:
            old = index_points.unused_since(db, limit.timestamp(), spared, programs=programs)
        return self._give_up(old, ReasonCode.EXPIRED)

    @in_words()
    def set_bounds(self, bounds: Bounds) -> None:
        """Put new bounds into force, and prune to them at once."""
        self._parts.bounds = bounds
        self._enforce()

    @in_words()
    def pin(self, conversation_id: str, pinned: bool) -> None:
        """Never prune a conversation's save points, or allow it again."""
        with self._parts.index.write() as db:
            index_points.set_flag(db, conversation_id, pinned=pinned, never=None)

    @in_words()
    def never_save(self, conversation_id: str, never: bool) -> None:
        """Never save a conversation, or allow it again. What is saved of it stays until it is deleted."""
        with self._parts.index.write() as db:
            index_points.set_flag(db, conversation_id, pinned=None, never=never)

    def delete_conversation(self, conversation_id: str) -> int:
        """Delete all that is kept of a conversation; returns the bytes freed.

        What other conversations begin with as well is theirs from now on.
        """
        return self._delete(conversation_id)

    def delete_all(self) -> int:
        """Delete every save point and everything set aside; returns the bytes freed."""
        return self._delete(None)

    @in_words()
    def _delete(self, conversation_id: str | None) -> int:
        parts = self._parts
        with parts.index.write() as db:
            doomed = index_points.points_of(db, conversation_id)
            ids = doomed if conversation_id is None else index_points.hand_over(db, doomed)
            index_points.delete(db, ids)
            bad = None if conversation_id is None else self._set_aside_of(db, conversation_id)
            index_points.forget(db, conversation_id)
        freed = self._deleted(ids) + parts.bad_files.delete(bad)
        return freed + (parts.sweep(everything=True) if conversation_id is None else 0)

    @in_words()
    def delete_messages(self, conversation_id: str, message_ids: Collection[str]) -> int:
        """Delete what is kept of these messages of a conversation; returns the bytes freed.

        Of save points that do not tell what they hold, none of the conversation is left. What others begin with as
        well, in any conversation, is theirs from now on.
        """
        with self._parts.index.write() as db:
            doomed = index_points.points_of_messages(db, conversation_id, message_ids)
            ids = index_points.hand_over(db, doomed)
            index_points.delete(db, ids)
            bad = self._set_aside_of(db, conversation_id)
        return self._deleted(ids) + self._parts.bad_files.delete(bad)

    @in_words()
    def imported(self) -> set[str]:
        """The conversations some of whose memory came from elsewhere."""
        with self._parts.index.read() as db:
            return index_usage.with_imported(db)

    @in_words()
    def delete_imported(self, conversation_id: str) -> int:
        """Delete what came with a conversation from elsewhere, and what grew from it; returns the bytes freed."""
        with self._parts.index.write() as db:
            ids = index_points.points_for(db, imported(conversation_id))
            index_points.delete(db, ids)
        return self._deleted(ids)

    @in_words()
    def verify(self, progress: Callable[[int, int], None] = lambda done, total: None) -> VerifyReport:
        """Hash every block, and set the bad ones aside with every save point that needs them. Count everything anew.

        `progress` is told the bytes done and in all.
        """
        parts = self._parts
        parts.index.check()
        parts.collect()  # killed while it deleted, a process leaves rows of blocks that nobody needs and that are gone
        with parts.index.read() as db:
            blocks = db.execute("SELECT name, size FROM blocks").fetchall()
            wrong = list(_wrong_recipes(db, index_points.points_of(db, None)))
        total = sum(size for _, size in blocks)
        done = 0
        bad: list[BadBlock] = []
        measured: dict[bytes, int] = {}
        for name, size in blocks:
            fault = parts.blocks.fault(name, size)
            if fault:
                bad.append(BadBlock(name, size, fault))
            else:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    measured[name] = parts.blocks.on_disk(name)
            done += size
            progress(done, total)
        parts.put_aside(bad)
        with parts.index.write() as db:
            index_usage.recount(db, measured)
        for point_id, reason in wrong:
            parts.lose(point_id, reason, tell=True)
        parts.sweep()
        with parts.index.write() as db:
            lost = index_usage.untold_losses(db)
        return VerifyReport(len(blocks), total, len(bad) + len(wrong), lost)

    @in_words()
    def losses(self) -> tuple[Loss, ...]:
        """What turned out bad since this was last asked: tell the user once."""
        with self._parts.index.write() as db:
            return index_usage.untold_losses(db) + index_notes.untold_index_loss(db)

    @in_words()
    def unseen(self, by: str) -> Unseen:
        """What has been kept since `seen` was last told by the same; everything after it was told by another."""
        with self._parts.index.read() as db:
            return index_notes.unseen(db, by)

    @in_words()
    def seen(self, by: str, what: Unseen) -> None:
        """All of that has been looked at. While another process writes it is not noted: it is looked at again then."""
        with self._parts.index.read() as db:
            if index_notes.unseen(db, by) == Unseen({}, what.upto):
                return
        with self._parts.index.write(BRIEF_S) as db:
            index_notes.seen(db, by, what)

    def _set_aside_of(self, db: sqlite3.Connection, conversation_id: str) -> frozenset[str]:
        """The names of what was set aside and may hold some of a conversation: a damaged index holds some of all."""
        return index_points.bad_blocks(db, conversation_id) | {self._parts.index.path.name}

    def _give_up(self, point_ids: Sequence[int], reason: ReasonCode) -> int:
        """Delete save points and remember why; returns the bytes freed."""
        parts = self._parts
        if not point_ids:
            return 0
        with parts.index.write() as db:
            index_points.lose(db, point_ids, Reason(reason), parts.clock(), tell=False, block=None)
        return self._deleted(point_ids)

    def _deleted(self, point_ids: Sequence[int]) -> int:
        """The index has these no longer: free what was kept for them alone; returns the bytes freed."""
        for point_id in point_ids:
            self._parts.staging.drop(str(point_id))
        freed = self._parts.collect()
        self._parts.index.shrink()
        return freed


def _wrong_recipes(db: sqlite3.Connection, point_ids: Sequence[int]) -> Iterator[tuple[str, Reason]]:
    """The save points whose recipe is not what was stored, each with the reason."""
    for point_id in point_ids:
        try:
            index_recipes.load_recipe(db, point_id)
        except RecipeError as error:
            yield str(point_id), Reason(ReasonCode.ERROR, {"message": str(error)})
