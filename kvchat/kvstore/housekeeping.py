"""Housekeeping: what there is and what it takes, keeping to the bounds, verifying and measuring."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from statistics import median

from kvchat.kvstore import disk
from kvchat.kvstore.blocks.rebuild import BadBlock, Unusable, rebuild
from kvchat.kvstore.blocks.recipe import RecipeError
from kvchat.kvstore.index import eviction
from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.index import recipes as index_recipes
from kvchat.kvstore.index import usage as index_usage
from kvchat.kvstore.parts import Parts
from kvchat.kvstore.savepoint import PrunePlan, RebuildSpeed, StoreUsage, VerifyReport
from kvchat.words.reasons import Reason, ReasonCode

PROGRAMS_AGE_DAYS = 14.0  # agents come back to a thread within days, or never; what they all begin with is used daily


def usage(parts: Parts) -> StoreUsage:
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


def plan_prune(parts: Parts, target_bytes: int, protected: int | None = None) -> PrunePlan:
    with parts.index.read() as db:
        found, needs = index_usage.candidates(db, protected)
    now = parts.clock().timestamp()
    return eviction.plan_prune(found, needs, parts.occupied(), target_bytes, now)


def prune(parts: Parts, plan: PrunePlan, reason: ReasonCode) -> int:
    return give_up(parts, [int(one) for one in plan.save_point_ids], reason)


def enforce(parts: Parts, protected: int | None = None) -> None:
    """Keep to the bounds: what is too old goes, then what was set aside, then the least valuable.

    Other programs have bounds of their own within them.
    """
    bounds = parts.bounds
    _expire(parts, PROGRAMS_AGE_DAYS, protected, programs=True)
    if bounds.max_age_days is not None:
        _expire(parts, bounds.max_age_days, protected, programs=False)
    with parts.index.read() as db:
        too_much = index_usage.held_by_programs(db) > bounds.programs
        found, needs = index_usage.candidates(db, protected) if too_much else ([], None)
    if needs is not None:
        plan = eviction.plan_programs(found, needs, bounds.programs, parts.clock().timestamp())
        prune(parts, plan, ReasonCode.PRUNED)
    parts.bad_files.trim(bounds.quota)
    if parts.occupied() > bounds.quota:
        parts.staging.trim(parts.unabsorbed(), disk_too=True)
    if parts.occupied() > bounds.quota:
        parts.bad_files.delete()
    if parts.occupied() > bounds.quota:
        plan = plan_prune(parts, bounds.quota, protected)
        prune(parts, plan, ReasonCode.PRUNED)


def _expire(parts: Parts, days: float, protected: int | None, *, programs: bool) -> None:
    limit = parts.clock() - timedelta(days=days)
    with parts.index.read() as db:
        old = index_points.unused_since(db, limit.timestamp(), protected, programs=programs)
    give_up(parts, old, ReasonCode.EXPIRED)


def give_up(parts: Parts, point_ids: Sequence[int], reason: ReasonCode) -> int:
    """Delete save points and remember why; returns the bytes freed."""
    if not point_ids:
        return 0
    with parts.index.write() as db:
        index_usage.lose(db, point_ids, Reason(reason), parts.clock(), tell=False, block=None)
    return deleted(parts, point_ids)


def deleted(parts: Parts, point_ids: Sequence[int]) -> int:
    """The index has these no longer: free what was kept for them alone; returns the bytes freed."""
    for point_id in point_ids:
        parts.staging.drop(str(point_id))
    freed = parts.collect()
    parts.index.shrink()
    return freed


def verify(parts: Parts, progress: Callable[[int, int], None]) -> VerifyReport:
    parts.index.check()
    parts.collect()  # killed while it deleted, a process leaves rows of blocks that nobody needs and that are gone
    wrong: dict[str, Reason] = {}
    with parts.index.read() as db:
        blocks = db.execute("SELECT name, size FROM blocks").fetchall()
        for point_id in index_points.points_of(db, None):
            try:
                index_recipes.load_recipe(db, point_id)
            except RecipeError as error:
                wrong[str(point_id)] = Reason(ReasonCode.ERROR, {"message": str(error)})
    done, total = 0, sum(size for _, size in blocks)
    bad: list[BadBlock] = []
    measured: dict[bytes, int] = {}
    for name, size in blocks:
        if fault := parts.blocks.fault(name, size):
            bad.append(BadBlock(name, size, fault))
        else:
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                measured[name] = parts.blocks.on_disk(name)
        done += size
        progress(done, total)
    parts.put_aside(bad)
    with parts.index.write() as db:
        index_usage.recount(db, measured)
    for wrong_id, reason in wrong.items():
        parts.lose(wrong_id, reason, tell=True)
    parts.sweep()
    with parts.index.write() as db:
        lost = index_usage.untold_losses(db)
    return VerifyReport(len(blocks), total, len(bad) + len(wrong), lost)


def measure_rebuild(parts: Parts, rounds: int) -> RebuildSpeed | None:
    with parts.index.read() as db:
        point = index_points.largest(db)
        recipe = index_recipes.load_recipe(db, point) if point is not None else None
    if recipe is None:
        return None
    original, unabsorbed = parts.staging.blank_on_disk(), parts.unabsorbed()
    rebuilds: list[float] = []
    copies: list[float] = []
    try:
        rebuild(recipe, parts.blocks, original)
        for number in range(2 * rounds):
            target = parts.staging.blank(recipe.file_size, None, unabsorbed)
            if number % 2:
                copy = target.with_name(disk.temporary_name())  # a new file, as every copy is
                copies.append(_ms(partial(shutil.copyfile, original, copy)))
                copy.unlink()
            else:
                rebuilds.append(_ms(partial(rebuild, recipe, parts.blocks, target)))
            parts.staging.give_back(target)
    except Unusable:
        return None
    finally:
        original.unlink(missing_ok=True)
    return RebuildSpeed(recipe.file_size, median(rebuilds), median(copies))


def _ms(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return 1000 * (time.perf_counter() - started)
