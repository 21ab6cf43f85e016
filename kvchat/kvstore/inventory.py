"""The contents of a store (files, index, limits), and queries, deletions and checks on them."""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kvchat.kvstore import disk
from kvchat.kvstore.blocks.block_files import BlockFiles
from kvchat.kvstore.blocks.recipe import RecipeError
from kvchat.kvstore.index import eviction, points, usage
from kvchat.kvstore.index.index import Index, IndexFailed, disk_errors
from kvchat.kvstore.index.schema import parse_fingerprint
from kvchat.kvstore.savepoint import (
    APPS_PATTERN,
    PROGRAM_PREFIX,
    Bounds,
    NotSaved,
    PrunePlan,
    SavePointLoss,
    SavePointSummary,
    StoreRefused,
    StoreUsage,
    Tier,
    UncheckedPoints,
    VerifyReport,
    device_of,
    imported_audience,
    program_of,
    program_owner,
)
from kvchat.kvstore.staging import Staging
from kvchat.text.formatting import format_size
from kvchat.text.language import _
from kvchat.text.reasons import Reason, ReasonCode

_DELETE_BATCH = 200  # blocks per transaction, so that other threads wait only briefly
PROGRAMS_AGE_DAYS = 14.0  # agents resume a thread within days or never; their shared prefix is used daily


@dataclass(eq=False)
class Inventory:
    """Queries and maintenance of a store's files and index. Thread-safe."""

    folder: Path
    bounds: Bounds
    staging: Staging
    index: Index
    blocks: BlockFiles
    restored_at: dict[int, datetime] = field(default_factory=dict)  # not yet written to the index

    def clock(self) -> datetime:
        return datetime.now(UTC)

    def free_bytes(self) -> int:
        return disk.free_bytes(self.folder)

    def recover(self) -> None:
        """Adopt or delete files left by a killed process. Raises IndexFailed if the index is not writable."""
        with self.index.write() as db:
            if self.index.is_fresh and any(self.blocks.unknown_blocks(())):
                usage.note_index_loss(db)  # the index was deleted, but not its blocks
            unabsorbed = {str(number): size for number, size in points.staged_sizes(db).items()}
            lost = [int(point_id) for point_id in unabsorbed.keys() - self.staging.recover(unabsorbed)]
            usage.discard(db, lost, Reason(ReasonCode.NOT_FINISHED), self.clock(), notify=False)
        self.blocks.remove_temporary()
        self.delete_orphans()
        self.index.is_fresh = False

    def require_room(self, size: int, bytes_to_write: int, conversation_id: str = "") -> None:
        """Raise NotSaved if `size` exceeds the quota, or writing would leave less than the minimum free disk space.

        `bytes_to_write`: the part of the data in bytes that is not on disk yet.
        """
        if self.index.problem is not None:
            raise self.index.problem
        quota = self.bounds.programs_quota if program_of(conversation_id) else self.bounds.quota
        floor, free = self.bounds.free_floor, self.free_bytes()
        if size > quota:
            places = {"size": format_size(size), "limit": format_size(quota)}
            raise NotSaved(Reason(ReasonCode.OVER_LIMIT, places), _("Raise the storage limit in Settings, Storage."))
        if free - bytes_to_write < floor:
            places = {"free": format_size(free), "floor": format_size(floor)}
            advice = _("Free up disk space, or lower the minimum free space in Settings, Storage.")
            raise NotSaved(Reason(ReasonCode.DISK_NEARLY_FULL, places), advice)

    def unabsorbed_points(self) -> frozenset[str]:
        with self.index.read() as db:
            return frozenset(map(str, points.staged_sizes(db)))

    def run_deferred_work(self) -> None:
        """Record recent restores and, after an index loss, delete orphaned blocks. Deferred to keep answers fast."""
        restored_at, self.restored_at = self.restored_at, {}
        if restored_at:
            with contextlib.suppress(IndexFailed), self.index.write() as db:
                rows = [(at.timestamp(), point_id) for point_id, at in restored_at.items()]
                db.executemany("UPDATE save_points SET last_used_at = ? WHERE id = ?", rows)
        if self.index.is_fresh:
            self.index.is_fresh = False
            self.delete_orphans()

    @disk_errors()
    def delete_unused_blocks(self) -> int:
        """Delete the blocks that no save point uses; return the bytes freed.

        Files are deleted within a write transaction, so that no other thread can start to use them: `Saver.absorb`
        checks within its own transaction that its blocks still exist.
        """
        freed = last_id = 0
        unused_blocks = (
            "SELECT id, name, disk_bytes FROM blocks"
            " WHERE id > ? AND NOT EXISTS (SELECT 1 FROM links WHERE block_id = blocks.id) ORDER BY id LIMIT ?"
        )
        while True:
            with self.index.write() as db:
                unused = db.execute(unused_blocks, (last_id, _DELETE_BATCH)).fetchall()
                for block_id, name, size in unused:
                    self.blocks.remove(name)
                    db.execute("DELETE FROM blocks WHERE id = ?", (block_id,))
                    freed, last_id = freed + size, block_id
            if len(unused) < _DELETE_BATCH:
                return freed

    def delete_orphans(self) -> int:
        """Delete block files that are not in the index (left by a killed process); return the bytes freed."""
        with self.index.read() as db:
            indexed_names = {name for (name,) in db.execute("SELECT name FROM blocks")}
        return self.delete_unindexed(list(self.blocks.unknown_blocks(indexed_names)))

    @disk_errors()
    def delete_unindexed(self, names: Sequence[bytes]) -> int:
        """Delete the given blocks unless they are in the index; return the bytes freed."""
        freed = 0
        for start in range(0, len(names), _DELETE_BATCH):
            with self.index.write() as db:
                for name in names[start : start + _DELETE_BATCH]:
                    if not db.execute("SELECT 1 FROM blocks WHERE name = ?", (name,)).fetchone():
                        freed += self.blocks.disk_usage(name) or 0
                        self.blocks.remove(name)
                    self.blocks.new_block_sizes.pop(name, None)
        return freed

    @disk_errors()
    def delete_bad_blocks(self, sizes: Mapping[bytes, int]) -> None:
        """Delete bad blocks and the save points that need them. `sizes`: expected size by block name."""
        for block, size in sizes.items():
            with self.index.write() as db:
                fault = self.blocks.find_fault(block, size)
                if fault is None:  # rewritten meanwhile
                    continue
                damaged = Reason(ReasonCode.BLOCK_DAMAGED, {"error": fault})
                reason, users = Reason(ReasonCode.SET_ASIDE, {"reason": damaged}), points.points_using_block(db, block)
                usage.discard(db, users, reason, self.clock(), notify=True)
                db.execute("DELETE FROM blocks WHERE name = ?", (block,))
                self.blocks.remove(block)
        self.delete_unused_blocks()

    def delete_unusable(self, point_id: str, reason: Reason, *, notify: bool = False) -> None:
        """Delete a save point and record the reason; with `notify`, report the loss to the user once."""
        self._discard([int(point_id)], Reason(ReasonCode.SET_ASIDE, {"reason": reason}), notify=notify)

    @disk_errors()
    def usage(self) -> StoreUsage:
        if problem := self.index.problem:
            return StoreUsage((), 0, 0, 0, problem=f"{problem.detail} {problem.advice}")
        self.run_deferred_work()
        occupied = self.occupied_bytes()
        with self.index.read() as db:
            conversations, devices = usage.conversation_usages(db)
            save_points, logical, rows, written, written_today = usage.load_totals(db)
            blocks = usage.block_bytes(db)
        return StoreUsage(
            conversations=tuple(conversations),
            devices=tuple(devices),
            quota_bytes=self.bounds.quota,
            programs_quota_bytes=self.bounds.programs_quota,
            free_bytes=self.free_bytes(),
            free_floor_bytes=self.bounds.free_floor,
            save_points=save_points,
            logical_bytes=logical,
            physical_bytes=occupied,
            other_bytes=max(0, occupied - blocks),
            unique_rows_bytes=rows,
            bytes_written=written,
            bytes_written_today=written_today,
            warm_bytes=self.staging.bytes_in_memory(),
            staged=self.staging.describe(),
        )

    @disk_errors()
    def occupied_bytes(self) -> int:
        """Return the disk usage of the store's folder in bytes."""
        with self.index.read() as db:
            blocks = usage.block_bytes(db)
        blocks += sum(list(self.blocks.new_block_sizes.values()))
        others = sum(disk.tree_size(path) for path in disk.list_folder(self.folder) if path.name != disk.BLOCKS)
        return disk.disk_usage(self.folder.stat()) + blocks + self.blocks.overhead_bytes() + others

    def summaries(self, conversations: Sequence[str]) -> dict[str, tuple[SavePointSummary, ...]]:
        summaries = dict[str, tuple[SavePointSummary, ...]]()
        with self.index.read() as db:
            query = (
                "SELECT s.id, name, message_id, facts, n_tokens, file_size FROM conversations c"
                " JOIN save_points s ON s.conversation_id = c.id JOIN fingerprints f ON f.id = fingerprint_id"
                " WHERE name IN (SELECT value FROM json_each(?))"
            )
            rows = db.execute(query, (json.dumps(list(conversations)),)).fetchall()
            fingerprints = {facts: parse_fingerprint(facts) for facts in {row[3] for row in rows}}
        for point_id, name, message_id, facts, tokens, size in rows:
            tier = Tier.WARM if self.staging.has_warm(str(point_id)) else Tier.DISK
            summary = SavePointSummary(message_id, fingerprints[facts], tokens, size, tier)
            summaries[name] = (*summaries.get(name, ()), summary)
        return summaries

    def take_losses(self) -> tuple[SavePointLoss, ...]:
        """Return the losses to report to the user, each only once."""
        with self.index.write() as db:
            return usage.take_unreported_losses(db, include_index_loss=True)

    def find_unchecked(self, checker: str) -> UncheckedPoints:
        """Return the save points added since the last `mark_checked`, or all if another checker called that.

        `checker`: id of the chat database against which save points are checked.
        """
        with self.index.read() as db:
            return usage.find_unchecked(db, checker)

    def mark_checked(self, checker: str, checked: UncheckedPoints) -> None:
        with self.index.write() as db:
            usage.mark_checked(db, checker, checked)

    def set_pinned(self, conversation_id: str, pinned: bool) -> None:
        with self.index.write() as db:
            points.set_flag(db, conversation_id, "pinned", pinned)

    def set_never_save(self, conversation_id: str, never: bool) -> None:
        """Enable or disable saving for a conversation. Existing save points stay until deleted."""
        with self.index.write() as db:
            points.set_flag(db, conversation_id, "never_save", never)

    def is_never_saved(self, conversation_id: str) -> bool:
        """True if saving is disabled for a conversation; False also without a readable store."""
        with contextlib.suppress(StoreRefused), self.index.read() as db:
            return points.is_never_saved(db, conversation_id)
        return False

    # Deletions; they return the bytes freed

    def delete_conversation(self, conversation_id: str) -> int:
        """Delete a conversation's save points, except those handed over by `transfer_to_extensions`."""
        with self.index.write() as db:
            ids = points.delete_conversations(db, "name = ?", conversation_id)
        return self._free(ids)

    def delete_program(self, program: str) -> int:
        """Delete a program's save points, also those of the chats that it has named, except those handed over."""
        named, owner = "(name = ?1 OR substr(name, 1, length(?1) + 1) = ?1 || '/')", program_owner(program)
        with self.index.write() as db:
            db.execute(f"UPDATE conversations SET pinned = 0, never_save = 0 WHERE {named}", (owner,))
            ids = points.delete_conversations(db, named, owner)
        return self._free(ids)

    def delete_all(self) -> int:
        with self.index.write() as db:
            ids = points.fetch_integers(db, "SELECT id FROM save_points")
            points.delete(db, ids)
            points.delete_conversations(db, "true")  # without save points now
        return self._free(ids) + self.delete_orphans()

    def delete_messages(self, conversation_id: str, message_ids: Collection[str]) -> int:
        """Delete a conversation's save points for these messages and those for no message.

        Those handed over by `transfer_to_extensions` stay.
        """
        with self.index.write() as db:
            condition = "name = ? AND (message_id IS NULL OR message_id IN (SELECT value FROM json_each(?)))"
            query, messages = f"{points.POINTS} WHERE {condition}", json.dumps(list(message_ids))
            ids = points.transfer_to_extensions(db, points.fetch_integers(db, query, conversation_id, messages))
            points.delete(db, ids)
        return self._free(ids)

    def imported_conversations(self) -> set[str]:
        """Return the ids of conversations with imported memory."""
        with self.index.read() as db:
            return usage.imported_conversations(db)

    def delete_imported(self, conversation_id: str) -> int:
        """Delete a conversation's imported save points and those that extend them."""
        with self.index.write() as db:
            query = "SELECT s.id FROM save_points s JOIN nodes n ON n.id = node_id JOIN trees t ON t.id = tree_id"
            ids = points.fetch_integers(db, f"{query} WHERE audience = ?", imported_audience(conversation_id))
            points.delete(db, ids)
        return self._free(ids)

    def plan_prune(self, target_bytes: int, protected_id: int | None = None) -> PrunePlan:
        with self.index.read() as db:
            candidates, needs = usage.load_candidates(db, protected_id)
        return eviction.plan_prune(candidates, needs, self.occupied_bytes(), target_bytes, self.clock().timestamp())

    def prune(self, plan: PrunePlan, reason: ReasonCode = ReasonCode.PRUNED_BY_USER) -> int:
        return self._discard([int(id) for id in plan.save_point_ids], Reason(reason))

    def set_bounds(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.enforce_bounds()

    @disk_errors()
    def enforce_bounds(self, protected_id: int | None = None) -> None:
        """Delete expired save points, then the least valuable ones until the bounds are met, first those of programs.

        `protected_id`: save point that must not be deleted.
        """
        bounds = self.bounds
        self._expire(PROGRAMS_AGE_DAYS, protected_id, APPS_PATTERN)
        if bounds.max_age_days is not None:
            self._expire(bounds.max_age_days, protected_id, "*")
        sizes = Counter[str]()  # by device, or "" for all other programs
        with self.index.read() as db:
            query = (
                "SELECT name, sum(file_size) FROM save_points s JOIN conversations c ON c.id = conversation_id"
                " WHERE name GLOB ? GROUP BY name"
            )
            for name, size in db.execute(query, (f"{PROGRAM_PREFIX}*",)):
                sizes[device_of(name)] += size
        # Upper bounds, counting shared rows several times; `plan_group` computes the exact size.
        for group in [group for group, size in sizes.items() if size > bounds.programs_quota]:
            with self.index.read() as db:
                candidates, needs = usage.load_candidates(db, protected_id)

            def is_member(owner: str, group: str = group) -> bool:
                return bool(program_of(owner)) and device_of(owner) == group

            now = self.clock().timestamp()
            plan = eviction.plan_group(candidates, needs, bounds.programs_quota, now, is_member)
            self.prune(plan, ReasonCode.PRUNED)
        if self.occupied_bytes() > bounds.quota:
            self.staging.trim(include_disk=True)
        if self.occupied_bytes() > bounds.quota:
            self.prune(self.plan_prune(bounds.quota, protected_id), ReasonCode.PRUNED)

    def _expire(self, days: float, protected_id: int | None, owners: str) -> None:
        """Delete the save points that were not used for `days`; `owners`: GLOB pattern."""
        limit = (self.clock() - timedelta(days=days)).timestamp()
        condition = "link_id IS NOT NULL AND last_used_at < ? AND NOT pinned AND s.id IS NOT ? AND name GLOB ?"
        with self.index.read() as db:
            old = points.fetch_integers(db, f"{points.POINTS} WHERE {condition}", limit, protected_id, owners)
        self._discard(old, Reason(ReasonCode.EXPIRED))

    def _discard(self, point_ids: Sequence[int], reason: Reason, *, notify: bool = False) -> int:
        if not point_ids:
            return 0
        with self.index.write() as db:
            usage.discard(db, point_ids, reason, self.clock(), notify=notify)
        return self._free(point_ids)

    def _free(self, point_ids: Sequence[int]) -> int:
        for point_id in point_ids:
            self.staging.drop(str(point_id))
        freed = self.delete_unused_blocks()
        self.index.shrink()
        return freed

    @disk_errors()
    def verify(self, progress: Callable[[int, int], None] = lambda done, total: None) -> VerifyReport:
        """Hash every block; delete bad ones and their save points. Calls `progress(bytes_done, bytes_total)`."""
        self.index.check()
        self.delete_unused_blocks()  # a process killed while deleting leaves index rows of deleted blocks
        bad_recipes: dict[str, Reason] = {}
        with self.index.read() as db:
            blocks = db.execute("SELECT name, size FROM blocks").fetchall()
            for point_id in points.fetch_integers(db, "SELECT id FROM save_points"):
                try:
                    points.load_recipe(db, point_id)
                except RecipeError as error:
                    bad_recipes[str(point_id)] = Reason(ReasonCode.ERROR, {"message": str(error)})
        done, total = 0, sum(size for _, size in blocks)
        bad_blocks: dict[bytes, int] = {}
        measured: dict[bytes, int] = {}
        for name, size in blocks:
            if self.blocks.find_fault(name, size):
                bad_blocks[name] = size
            elif (on_disk := self.blocks.disk_usage(name)) is not None:  # else deleted meanwhile
                measured[name] = on_disk
            done += size
            progress(done, total)
        self.delete_bad_blocks(bad_blocks)
        with self.index.write() as db:
            query = "UPDATE blocks SET disk_bytes = ?1 WHERE name = ?2 AND disk_bytes <> ?1"
            db.executemany(query, [(size, name) for name, size in measured.items()])
        for bad_id, reason in bad_recipes.items():
            self.delete_unusable(bad_id, reason, notify=True)
        self.delete_orphans()
        with self.index.write() as db:
            lost = usage.take_unreported_losses(db)
        return VerifyReport(len(blocks), total, len(bad_blocks) + len(bad_recipes), lost)
