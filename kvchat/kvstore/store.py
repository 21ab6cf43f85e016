"""What a turn is given to keep its save points in: the block store, or one that keeps nothing where none can be had.

The block store keeps every KV row once, whoever needs it. Its folder:
    index.db                 every save point: tokens, recipe, use (SQLite)
    blocks/ab/abcdef...      a block, named by the BLAKE3 of its content
    staging/                 slot files on their way, where there is no memory for them
    set-aside/               bad blocks, kept for a look
Where there is memory to spare, staging lies under /dev/shm instead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import psutil

from kvchat.errors import KvchatError
from kvchat.kvstore import disk, exchange, housekeeping
from kvchat.kvstore.audience import audience_of, imported
from kvchat.kvstore.blocks import positioned
from kvchat.kvstore.blocks.block_files import BlockFiles
from kvchat.kvstore.blocks.layout import RowMap
from kvchat.kvstore.blocks.parser import read_row_map
from kvchat.kvstore.blocks.recipe import RecipeError
from kvchat.kvstore.exchange import Contents, Manifest
from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.index import recipes as index_recipes
from kvchat.kvstore.index import usage as index_usage
from kvchat.kvstore.index.index import Index, IndexFailed, IndexLost, check_readable, reading
from kvchat.kvstore.index.schema import fingerprint_of
from kvchat.kvstore.memory_files import MEMORY_FOLDER, NOTHING_STAGED, MemoryRoom, Staged
from kvchat.kvstore.parts import BLOCKS, INDEX, SET_ASIDE, STAGING, BadFiles, Parts, in_words
from kvchat.kvstore.restoring import Restoring
from kvchat.kvstore.savepoint import (
    AbsorbReport,
    Bounds,
    CancelCheck,
    Fingerprint,
    Grown,
    Kept,
    Loss,
    Miss,
    PrunePlan,
    RebuildSpeed,
    RestorePlan,
    SavePoint,
    StagedFile,
    State,
    StoreRefused,
    StoreUsage,
    Tier,
    Tokens,
    Unseen,
    VerifyReport,
    never,
    program_of,
)
from kvchat.kvstore.saving import Saving, Window
from kvchat.kvstore.staging import Staging
from kvchat.words.language import N_, _
from kvchat.words.reasons import Reason, ReasonCode

TITLE = N_("The memory of chats cannot be kept for now")


class BlockStore:
    """Keeps KV states, every row of them once, and gives back what leaves the least of a prompt to prefill.

    Every method is synchronous and may block on disk: call it off the event loop (asyncio.to_thread). All are safe to
    call from several threads of the one process that has the folder, and raise StoreRefused where they say nothing
    else.
    """

    problem = None  # nothing keeps it from keeping

    def __init__(
        self,
        folder: Path,
        bounds: Bounds,
        memory_budget: int | MemoryRoom = 0,
        *,
        sync: bool = True,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        free_bytes: Callable[[], int] | None = None,
        memory_folder: Path = MEMORY_FOLDER,
        row_map: Callable[[Path], RowMap] = read_row_map,
    ) -> None:
        """Open the store in `folder`, making it if need be. Raises StoreRefused, and migrations.DatabaseTooNew.

        `memory_budget` is how many bytes slot files may take in memory, or tells it from how many they take now,
        whenever it matters; 0 keeps them on disk.
        """
        room = memory_budget if callable(memory_budget) else lambda _: memory_budget
        self._closing, self._closed = threading.Lock(), False
        self._begun = False  # an engine was given something, or what it may want first was seen to
        self._background = ThreadPoolExecutor(1, "memory", positioned.give_way)
        try:
            disk.private_folder(folder)
            bad_files = BadFiles(folder / SET_ASIDE)
            self._parts = Parts(
                folder=folder,
                index=Index(folder / INDEX, bad_files.take),
                blocks=BlockFiles(folder / BLOCKS, sync=sync),
                staging=Staging(folder / STAGING, room, memory_folder),
                bad_files=bad_files,
                clock=clock,
                free_bytes=free_bytes or (lambda: disk.free_bytes(folder)),
                read_row_map=row_map,
                bounds=bounds,
            )
            self._saving, self._restoring = Saving(self._parts), Restoring(self._parts)
            try:
                self._take_over()
            except IndexLost:
                self._take_over()  # there is a new one now
        except (OSError, IndexFailed, IndexLost) as error:
            raise _unusable(folder, error) from error

    def _take_over(self) -> None:
        """Adopt, or give up, what a process that was killed has left. Proves that there can be written at all."""
        parts, index = self._parts, self._parts.index
        with index.write() as db:
            if index.fresh and any(parts.blocks.leftovers(())):
                index_usage.note_index_loss(db)  # somebody took the file away, but not what it tells of
            waiting = {str(number): size for number, size in index_points.staged(db).items()}
            lost = [int(point_id) for point_id in waiting.keys() - parts.staging.take_over(waiting)]
            reason = Reason(ReasonCode.NOT_FINISHED)
            index_usage.lose(db, lost, reason, parts.clock(), tell=False, block=None)
        parts.blocks.sweep_temporary()
        parts.sweep()
        index.fresh = False

    def close(self, cancelled: CancelCheck = never) -> None:
        """Absorb what waits, until it is cancelled, and empty the staging folder.

        For when the engines have ended. What was not absorbed is not kept.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(StoreRefused, IndexLost, IndexFailed):
                self._saving.absorb(cancelled)
                for point_id in self._parts.unabsorbed() if cancelled() else ():
                    self._parts.lose(point_id, Reason(ReasonCode.NOT_WAITED_FOR), tell=False)
            self.prepare().result()  # that is nothing any more
            self._parts.staging.close()
            self._parts.index.close()

    # What a turn asks

    def find(
        self, fingerprint: Fingerprint, prompt: Tokens, *, can_cut: bool, conversation_id: str
    ) -> RestorePlan | Miss:
        """The plan that leaves the least of the prompt to prefill, or why there is none.

        Of all save points that `conversation_id` may reuse (`kvchat.kvstore.audience`). Without `can_cut` only those
        all of whose tokens begin the prompt count.
        """
        return self._restoring.find(fingerprint, prompt, can_cut=can_cut, conversation_id=conversation_id)

    def stage(
        self, plan: RestorePlan, slot_path: Path, *, window: int = 0, cancelled: CancelCheck = never
    ) -> StagedFile | Miss:
        """Put the plan's slot file, verified, into the engine's slot folder.

        A plan for a part is composed for exactly that where the layout allows, else given whole for the engine to cut
        back: StagedFile.n_tokens says how many tokens it holds. `window`: tokens of the model's sliding window, where
        the engine uses the file only with one more row (see `with_masked_rows`); what is not absorbed yet is so first.
        A bad block is set aside with every save point that needs it, and answered with a Miss. Raises Cancelled, soon
        after `cancelled` turns true and without leaving a file.
        """
        self._begun = True
        if window:
            try:
                with in_words():
                    if plan.save_point.id in self._parts.unabsorbed():
                        self._saving.absorb(cancelled)
            except StoreRefused as refused:
                return Miss(Reason(ReasonCode.NOT_READABLE, {"error": refused.detail}))
        return self._restoring.stage(plan, slot_path, window=window, cancelled=cancelled)

    def unstage(self, staged: StagedFile, *, engine_done: bool = True) -> None:
        """Take the staged file away again.

        `engine_done` False: the engine was told to read it and its answer was not waited for.
        """
        self._parts.staging.unstage(staged.path, engine_done=engine_done)
        self.prepare()

    @in_words()
    def set_aside(self, save_point: SavePoint, reason: Reason) -> None:
        """Take a save point out of use, because the engine refused it or its restore proved hollow."""
        self._parts.lose(save_point.id, reason, tell=False)

    def check_room(
        self, size: int, conversation_id: str | None = None, place: Path | None = None, state: State | None = None
    ) -> None:
        """Raise NotSaved if a slot file of about that size cannot be kept, or the conversation never is.

        `state` is what it will hold: what the store has of that already is not written again.
        `place` is where the engine is going to save it: in memory or on disk, as there is room. `take` it, or `forget`.
        """
        self._saving.check_room(size, conversation_id or "", place, state)

    def take(
        self,
        slot_file: Path,
        conversation_id: str,
        fingerprint: Fingerprint,
        expected: Tokens,
        expected_size: int | None = None,
        prefill_ms: float = 0.0,
        window: int = 0,
        message_id: str | None = None,
        grown: Grown | None = None,
        audience: str | None = None,
    ) -> SavePoint:
        """Make a file the engine has just saved a save point: quick, and for now in the warm tier alone.

        `expected_size` is what the engine says it wrote (bytes); `prefill_ms` estimates reading these tokens again.
        `window` is what `stage` will be asked for: such a file is made ahead, when this one is absorbed.
        `message_id` names the last message that the tokens hold: the save point goes with that.
        `grown`: the slot is known to have grown from a save point; what is unchanged need not be read again.
        `audience`: who may reuse it, unless that is what the conversation's own states have.
        The file is moved or deleted, whatever happens. Raises NotSaved when it is empty, not whole, holds other
        tokens than `expected`, does not fit the bounds, or the conversation is never to be saved.
        """
        audience, now = audience_of(conversation_id) if audience is None else audience, self._parts.clock()
        new = SavePoint("", conversation_id, fingerprint, expected, 0, now, now, prefill_ms, audience)
        return self._saving.take(
            slot_file, new, message_id=message_id, expected_size=expected_size, window=window, grown=grown
        )

    def forget(self, place: Path) -> None:
        """Nothing is to be left of what was, or was to be, saved at `place`."""
        self._parts.staging.forget(place)

    def absorb_pending(self, cancelled: CancelCheck = never) -> AbsorbReport:
        """Take apart the files that wait, and keep to the bounds. Slow: for a background thread, after each `take`.

        Cancelled it ends soon, between two blocks; what is not absorbed then waits on.
        """
        with in_words():
            self._parts.tidy()
            newest = max(map(int, self._parts.unabsorbed()), default=None)
            report = self._saving.absorb(cancelled, gives_way=True)
            if report.save_points:
                housekeeping.enforce(self._parts, protected=newest)
            if cancelled():
                return report
            for window in self._saving.take_windows():
                self._restoring.complete_window(window, cancelled)
        self.prepare().result()
        return report

    # What an engine's memory asks

    def staging_folder(self) -> Path:
        """A fresh private folder where one engine of this process saves and restores.

        Save under names of your own: never to one that `stage` gave out, which may be the store's file itself.
        Raises OSError.
        """
        return self._parts.staging.slot_folder()

    @in_words()
    def staged(self) -> Staged:
        """What of its files in memory can go at once for a model, and how much could lie there."""
        return self._parts.staging.staged(self._parts.unabsorbed())

    def staged_bytes(self) -> int:
        return self._parts.staging.bytes(disk_too=True)

    @in_words()
    def keep_in_memory(self, most: int) -> None:
        """Have so many bytes in memory at most, until told otherwise; what is warm beyond that goes at once.

        What waits to be absorbed stays.
        """
        self._parts.staging.trim(self._parts.unabsorbed(), most=most)
        if not self._begun:
            self._background.submit(self._have_last_program_warm)
        self.prepare()

    def prepare(self) -> Future[None]:
        """In the background: have memory ready for the next file to be put together, as large as one of late."""
        return self._background.submit(self._prepare)

    def _prepare(self) -> None:
        with contextlib.suppress(StoreRefused), in_words():
            if not self._closed:
                with self._parts.index.read() as db:
                    size = index_points.largest_of_late(db)
                self._parts.staging.prepare(size, lambda: self._closed)

    def _have_last_program_warm(self) -> None:
        """While the engine starts: what the program that was here last goes on from is put together beforehand."""
        with contextlib.suppress(StoreRefused), in_words():
            with self._parts.index.read() as db:
                number = max(index_points.points_of(db, None), default=None)
                newest = index_points.load(db, number) if number is not None else None
            if newest and program_of(newest.conversation_id) and self._parts.staging.has_room(newest.size):
                self._restoring.complete_window(Window(newest.id, 0), lambda: self._begun or self._closed)
            self._begun = True

    def warm_up(self, conversation_id: str, cancelled: CancelCheck = never) -> int:
        """Have the system read into its cache what a restore of the conversation's newest save point needs; bytes.

        Nothing is copied, and only into memory that is free: nothing that is in use goes for it.
        """
        try:
            with self._parts.index.read() as db:
                newest = max(index_points.points_of(db, conversation_id), default=None)
                recipe = index_recipes.load_recipe(db, newest) if newest is not None else None
        except (IndexFailed, IndexLost, RecipeError):
            return 0  # a restore meets it, and tells
        if recipe is None or recipe.file_size > psutil.virtual_memory().available // 2:
            return 0
        for block in dict.fromkeys(use.block for use in recipe.uses):
            if cancelled():
                return 0
            positioned.will_need(self._parts.blocks.path(block))
        return recipe.file_size

    # What is there, and how it goes

    @in_words()
    def usage(self) -> StoreUsage:
        return housekeeping.usage(self._parts)

    @in_words()
    def kept(self, conversations: Sequence[str]) -> dict[str, tuple[Kept, ...]]:
        staging, kept = self._parts.staging, dict[str, tuple[Kept, ...]]()
        with self._parts.index.read() as db:
            rows = index_usage.ends(db, conversations)
            fingerprints = {facts: fingerprint_of(facts) for facts in {row[3] for row in rows}}
        for point_id, name, message_id, facts, tokens, size in rows:
            tier = Tier.WARM if staging.has_warm(str(point_id)) else Tier.DISK
            kept[name] = (*kept.get(name, ()), Kept(message_id, fingerprints[facts], tokens, size, tier))
        return kept

    @in_words()
    def occupied(self) -> int:
        """Bytes that all of it takes on disk, as `usage` has it, without going through the conversations."""
        return self._parts.occupied()

    @in_words()
    def plan_prune(self, target_bytes: int) -> PrunePlan:
        """What pruning to a size would remove, and what re-reading it would cost. Removes nothing."""
        return housekeeping.plan_prune(self._parts, target_bytes)

    @in_words()
    def prune(self, plan: PrunePlan, reason: ReasonCode = ReasonCode.PRUNED_BY_USER) -> int:
        """Carry a plan out, as far as its save points are still there; returns the bytes freed."""
        return housekeeping.prune(self._parts, plan, reason)

    @in_words()
    def set_bounds(self, bounds: Bounds) -> None:
        self._parts.bounds = bounds
        housekeeping.enforce(self._parts)

    @in_words()
    def pin(self, conversation_id: str, pinned: bool) -> None:
        with self._parts.index.write() as db:
            index_points.set_flag(db, conversation_id, pinned=pinned)

    @in_words()
    def never_save(self, conversation_id: str, never: bool) -> None:
        """Never save a conversation, or allow it again. What is saved of it stays until it is deleted."""
        with self._parts.index.write() as db:
            index_points.set_flag(db, conversation_id, never=never)

    @in_words()
    def delete_conversation(self, conversation_id: str) -> int:
        """Delete all that is kept of a conversation; returns the bytes freed.

        What other conversations begin with as well is theirs from now on.
        """
        with self._parts.index.write() as db:
            ids = index_points.hand_over(db, index_points.points_of(db, conversation_id))
            index_points.delete(db, ids)
            bad = self._set_aside_of(db, conversation_id)
            index_points.forget(db, conversation_id)
        return housekeeping.deleted(self._parts, ids) + self._parts.bad_files.delete(bad)

    @in_words()
    def delete_all(self) -> int:
        """Delete every save point and everything set aside; returns the bytes freed."""
        with self._parts.index.write() as db:
            ids = index_points.points_of(db, None)
            index_points.delete(db, ids)
            index_points.forget(db, None)
        return housekeeping.deleted(self._parts, ids) + self._parts.bad_files.delete() + self._parts.sweep()

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
        return housekeeping.deleted(self._parts, ids) + self._parts.bad_files.delete(bad)

    @in_words()
    def imported(self) -> set[str]:
        with self._parts.index.read() as db:
            return index_usage.with_imported(db)

    @in_words()
    def delete_imported(self, conversation_id: str) -> int:
        """Delete what came with a conversation from elsewhere, and what grew from it; returns the bytes freed."""
        with self._parts.index.write() as db:
            ids = index_points.points_for(db, imported(conversation_id))
            index_points.delete(db, ids)
        return housekeeping.deleted(self._parts, ids)

    def _set_aside_of(self, db: sqlite3.Connection, conversation_id: str) -> frozenset[str]:
        """The names of what was set aside and may hold some of a conversation: a damaged index holds some of all."""
        return index_usage.bad_blocks(db, conversation_id) | {INDEX}

    @in_words()
    def verify(self, progress: Callable[[int, int], None] = lambda done, total: None) -> VerifyReport:
        """Hash every block, and set the bad ones aside with every save point that needs them. Count everything anew.

        `progress` is told the bytes done and in all.
        """
        return housekeeping.verify(self._parts, progress)

    @in_words()
    def losses(self) -> tuple[Loss, ...]:
        """What turned out bad since this was last asked: tell the user once."""
        with self._parts.index.write() as db:
            return index_usage.untold_losses(db) + index_usage.untold_index_loss(db)

    @in_words()
    def unseen(self, by: str) -> Unseen:
        """What has been kept since `seen` was last told by the same; everything after it was told by another."""
        with self._parts.index.read() as db:
            return index_usage.unseen(db, by)

    @in_words()
    def seen(self, by: str, what: Unseen) -> None:
        with self._parts.index.write() as db:
            index_usage.seen(db, by, what)

    @in_words()
    def manifest(self, conversation_id: str) -> Manifest | None:
        """What is kept of a conversation for the model that answered last; None if that is nothing.

        What still waits to be absorbed is not among it.
        """
        with self._parts.index.read() as db:
            return exchange.manifest(db, conversation_id)

    def contents(self, manifest: Manifest) -> Contents:
        """Its blocks, each proved at its end. Raises StoreRefused."""
        return exchange.contents(self._parts.blocks, manifest)

    def bring(self, conversation_id: str, manifest: Manifest, contents: Contents) -> int:
        """Take in a conversation's save points, for it alone; returns the bytes that were new. All of them, or nothing.

        Of blocks that are here already the content is not asked for. `contents` may raise what it likes; it is read to
        its end. Raises BadMemory where it does not hold what the manifest says, StoreRefused where it is not to be
        kept or there is no room for it.
        """
        written, newest = exchange.bring(self._parts, conversation_id, manifest, contents)
        with in_words():
            housekeeping.enforce(self._parts, protected=newest)
        return written

    @in_words()
    def measure_rebuild(self, rounds: int = 5) -> RebuildSpeed | None:
        """How fast the largest save point's file is rebuilt, beside a plain copy of it, in turns.

        None without a save point, or if its blocks are bad. Blocks and the copied file lie on the disk and in its
        cache; both results go where engines restore from.
        """
        return housekeeping.measure_rebuild(self._parts, rounds)


def check_store(folder: Path) -> None:
    """Raise KvchatError if no store can be opened in a folder. Only looks: another process may have it."""
    index = folder / INDEX
    try:
        os.scandir(folder).close()
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if index.exists():
            check_readable(index)
    except (OSError, IndexFailed) as error:
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: Exception) -> StoreRefused:
    title = _("The folder for the memory of chats cannot be used.")
    advice = _("Check that it is a folder of yours and that the disk is not full.")
    return StoreRefused(title, f"{folder}: {getattr(error, 'strerror', None) or error}.", advice)


class KeptMemory:
    """What a store keeps, for a process that only reads: the one that has it open may go on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def absorb_pending(self) -> None:
        """What waits is another process's."""

    def manifest(self, conversation_id: str) -> Manifest | None:
        """As `BlockStore.manifest`. Raises KvchatError."""
        index = self._folder / INDEX
        if not index.exists():
            return None
        check_store(self._folder)
        with in_words(), reading(index) as db:
            return exchange.manifest(db, conversation_id)

    def contents(self, manifest: Manifest) -> Contents:
        return exchange.contents(BlockFiles(self._folder / BLOCKS), manifest)


class NoStore:
    """Keeps nothing: chatting goes on, and whoever asks hears why. What is there may come back, so nothing is deleted.

    Its methods are those of BlockStore.
    """

    def __init__(self, why: KvchatError) -> None:
        """`why`: what whoever tried to open the store was told."""
        advice = _(
            "{advice} You can go on chatting; a chat is read again whenever another one was in between.",
            advice=why.advice,
        )
        self.problem = StoreRefused(_(TITLE), f"{why.title} {why.detail}".strip(), advice.strip())
        self._folders: list[Path] = []

    def staging_folder(self) -> Path:
        """A fresh private folder, which an engine wants whether anything is saved or not. Raises OSError."""
        self._folders.append(Path(tempfile.mkdtemp(prefix="kvchat-")))
        return self._folders[-1]

    def close(self, *_: object) -> None:
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def forget(self, place: Path) -> None:
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)

    def staged(self) -> Staged:
        return NOTHING_STAGED

    def usage(self) -> StoreUsage:
        return StoreUsage((), 0, 0, 0, 0, problem=f"{self.problem.detail} {self.problem.advice}")

    def absorb_pending(self, *_: object) -> AbsorbReport:
        return AbsorbReport(0, 0, ())

    def unseen(self, _: str) -> Unseen:
        return Unseen({}, 0)

    def kept(self, _: object) -> dict[str, tuple[Kept, ...]]:
        return {}

    def imported(self) -> set[str]:
        return set()

    def losses(self) -> tuple[Loss, ...]:
        return ()

    def _miss(self, *_: object, **__: object) -> Miss:
        return Miss(Reason(ReasonCode.NO_STORE))

    def _ignore(self, *_: object, **__: object) -> None:
        """There is nothing to do it with; bounds hold from the next start on."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise self.problem

    find = stage = _miss
    keep_in_memory = warm_up = unstage = set_aside = set_bounds = seen = measure_rebuild = _ignore
    manifest = bring = contents = _refuse
    check_room = occupied = take = plan_prune = prune = pin = never_save = _refuse
    delete_conversation = delete_messages = delete_imported = delete_all = verify = _refuse


SavePointStore = BlockStore | NoStore
