"""What a turn is given to keep its save points in: the block store, or one that keeps nothing where none can be had."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import NoReturn

import psutil

from kvchat.errors import KvchatError
from kvchat.kvstore import disk
from kvchat.kvstore.blocks import positioned
from kvchat.kvstore.blocks.block_files import BlockFiles
from kvchat.kvstore.blocks.layout import RowMap
from kvchat.kvstore.blocks.parser import read_row_map
from kvchat.kvstore.blocks.rebuild import Unusable, rebuild
from kvchat.kvstore.blocks.recipe import Recipe, RecipeError
from kvchat.kvstore.exchange import Exchange
from kvchat.kvstore.index import notes as index_notes
from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.index import recipes as index_recipes
from kvchat.kvstore.index.index import Index, IndexFailed, IndexLost
from kvchat.kvstore.memory_files import MEMORY_FOLDER, NOTHING_STAGED, MemoryRoom, Staged
from kvchat.kvstore.parts import BLOCKS, BRIEF_S, INDEX, SET_ASIDE, STAGING, BadFiles, Parts, in_words
from kvchat.kvstore.restoring import Restoring
from kvchat.kvstore.savepoint import (
    AbsorbReport,
    Bounds,
    CancelCheck,
    Kept,
    Loss,
    Miss,
    RebuildSpeed,
    RestorePlan,
    StagedFile,
    StoreRefused,
    StoreUsage,
    Unseen,
    never,
    program_of,
)
from kvchat.kvstore.saving import Saving, Window
from kvchat.kvstore.staging import Staging
from kvchat.words.language import N_, _
from kvchat.words.reasons import Reason, ReasonCode


class BlockStore(Restoring, Saving, Exchange):
    """Keeps KV states, every row of them once, and gives back what leaves the least of a prompt to prefill.

    Every method is synchronous and may block on disk: call it off the event loop (asyncio.to_thread). All are safe to
    call from several threads and from several processes that share one folder, and raise StoreRefused where they say
    nothing else.
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
            Restoring.__init__(self, self._parts)
            Saving.__init__(self, self._parts)
            self._begin()
        except (OSError, IndexFailed, IndexLost) as error:
            title = _("The folder for the memory of chats cannot be used.")
            advice = _("Check that it is a folder of yours and that the disk is not full.")
            raise StoreRefused(title, f"{folder}: {getattr(error, 'strerror', None) or error}.", advice) from error

    def _begin(self) -> None:
        """Look after what others left; prove that there can be written at all. Raises IndexFailed, IndexLost.

        While another process writes nobody who starts waits for it: that is looked after in the background then.
        """
        try:
            with self._parts.index.write(BRIEF_S) as db:
                if self._parts.index.fresh and any(self._parts.blocks.leftovers((), 0.0)):
                    index_notes.note_index_loss(db)  # somebody took the file away, but not what it tells of
            self._recover()
        except IndexLost:
            self._recover()  # there is a new one now
        except IndexFailed as failure:
            if not failure.locked:
                raise
            self._background.submit(self._recover)

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

    @in_words()
    def staged(self) -> Staged:
        """What of its files in memory can go at once for a model, and how much could lie there."""
        return self._parts.staging.staged(self._parts.unabsorbed())

    @in_words()
    def keep_in_memory(self, most: int) -> None:
        """Have so many bytes in memory at most, until told otherwise; what is warm beyond that goes at once.

        What waits to be absorbed stays.
        """
        self._parts.staging.trim(self._parts.unabsorbed(), most=most)
        if not self._begun:
            self._background.submit(self._have_last_program_warm)
        self.prepare()

    def staged_bytes(self) -> int:
        """Bytes of what is staged or warm now, in memory and on disk."""
        return self._parts.staging.bytes(disk_too=True)

    def staging_folder(self) -> Path:
        """A fresh private folder where one engine of this process saves and restores.

        Save under names of your own: never to one that `stage` gave out, which may be the store's file itself.
        Raises OSError.
        """
        return self._parts.staging.slot_folder()

    def close(self, cancelled: CancelCheck = never) -> None:
        """Absorb what waits, until it is cancelled, and delete this process's staging folder.

        For when the engines have ended. What was not absorbed is not kept.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(StoreRefused, IndexLost, IndexFailed):
                self._absorb_staged(cancelled)
                for point_id in self._parts.unabsorbed() if cancelled() else ():
                    self._parts.lose(point_id, Reason(ReasonCode.NOT_WAITED_FOR), tell=False)
            self.prepare().result()  # that is nothing any more
            self._parts.staging.close()
            self._parts.index.close()

    def absorb_pending(self, cancelled: CancelCheck = never) -> AbsorbReport:
        """Take apart the files that wait, and keep to the bounds. Slow: for a background thread, after each `take`.

        Cancelled it ends soon, between two blocks; what is not absorbed then waits on.
        """
        with in_words():
            self._parts.tidy()
            newest = max(self._parts.unabsorbed(), key=int, default=None)
            report = self._absorb_staged(cancelled, gives_way=True)
            if report.save_points:
                self._enforce(protected=newest)
            if cancelled():
                return report
            for window in self._take_windows():
                self._complete_window(window, cancelled)
            self._remember_hashes()
        self.prepare().result()
        return report

    def stage(
        self, plan: RestorePlan, slot_path: Path, *, window: int = 0, cancelled: CancelCheck = never
    ) -> StagedFile | Miss:
        """As without saving; what lacks a row is absorbed first, for its file is put together from blocks.

        That is a Miss while another process writes: it would take too long.
        """
        self._begun = True
        if window:
            with contextlib.suppress(StoreRefused):
                if plan.save_point.id in self._unabsorbed():
                    index = self._parts.index
                    self._absorb_staged(lambda: cancelled() or index.is_kept_waiting(BRIEF_S), patience_s=BRIEF_S)
                if plan.save_point.id in self._unabsorbed() and not cancelled():
                    return Miss(Reason(ReasonCode.NOT_YET))
        return super().stage(plan, slot_path, window=window, cancelled=cancelled)

    def unstage(self, staged: StagedFile) -> None:
        """The engine is done with the staged file: another one may be next."""
        super().unstage(staged)
        self.prepare()

    def prepare(self) -> Future[None]:
        """In the background: have memory ready for the next file to be put together, as large as one of late."""
        return self._background.submit(self._prepare)

    def _have_last_program_warm(self) -> None:
        """While the engine starts: what the program that was here last goes on from is put together beforehand."""
        with contextlib.suppress(StoreRefused), in_words():
            with self._parts.index.read() as db:
                number = max(index_points.points_of(db, None), default=None)
                newest = index_points.load(db, number) if number is not None else None
            if newest and program_of(newest.conversation_id) and self._parts.staging.has_room(newest.size):
                self._complete_window(Window(newest.id, 0), lambda: self._begun or self._closed)
            self._begun = True

    def _prepare(self) -> None:
        with contextlib.suppress(StoreRefused), in_words():
            if not self._closed:
                with self._parts.index.read() as db:
                    size = index_points.largest_of_late(db)
                self._parts.staging.prepare(size, lambda: self._closed)

    @in_words()
    def measure_rebuild(self, rounds: int = 5) -> RebuildSpeed | None:
        """How fast the largest save point's file is rebuilt, beside a plain copy of it, in turns.

        None without a save point, or if its blocks are bad. Blocks and the copied file lie on the disk and in its
        cache; both results go where engines restore from.
        """
        parts, recipe = self._parts, self._largest()
        if recipe is None:
            return None
        original = parts.folder / STAGING / disk.temporary_name()
        unabsorbed = parts.unabsorbed()
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

    def _largest(self) -> Recipe | None:
        with self._parts.index.read() as db, contextlib.suppress(RecipeError):
            point = index_points.largest(db)
            return index_recipes.load_recipe(db, point) if point is not None else None
        return None


def _ms(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return 1000 * (time.perf_counter() - started)


TITLE = N_("The memory of chats cannot be kept for now")


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
        """Delete the folders that engines had."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def forget(self, place: Path) -> None:
        """Delete the file."""
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)

    def staged(self) -> Staged:
        """Nothing, and nothing will be."""
        return NOTHING_STAGED

    def usage(self) -> StoreUsage:
        """Nothing that can be told, and why."""
        return StoreUsage((), 0, 0, 0, 0, problem=f"{self.problem.detail} {self.problem.advice}")

    def absorb_pending(self, *_: object) -> AbsorbReport:
        """Nothing waits."""
        return AbsorbReport(0, 0, ())

    def unseen(self, _: str) -> Unseen:
        """None that are known of."""
        return Unseen({}, 0)

    def kept(self, _: object) -> dict[str, tuple[Kept, ...]]:
        """Nothing of anything."""
        return {}

    def imported(self) -> set[str]:
        """None."""
        return set()

    def losses(self) -> tuple[Loss, ...]:
        """None that are known of."""
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
