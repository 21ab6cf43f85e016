"""Save-point stores: the block store, or one that keeps nothing where none can be opened.

The block store keeps every KV row once, whoever needs it. Its folder:
    index.db                 every save point: tokens, recipe, use (SQLite)
    blocks/ab/abcdef...      a block, named by the BLAKE3 of its content
    staging/                 slot files in transit, if there is no memory for them
If there is memory to spare, staging lies under /dev/shm instead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from kvchat.errors import KvchatError
from kvchat.kvstore import disk, exchange
from kvchat.kvstore.blocks import positioned
from kvchat.kvstore.blocks.block_files import BlockFiles
from kvchat.kvstore.exchange import Contents, Manifest
from kvchat.kvstore.index import points, usage
from kvchat.kvstore.index.index import IndexFailed, IndexLost, check_readable, reading
from kvchat.kvstore.memory_files import MEMORY_FOLDER, NOTHING_STAGED, MemoryRoom, Staged
from kvchat.kvstore.parts import BLOCKS, INDEX, in_words
from kvchat.kvstore.restoring import Restoring
from kvchat.kvstore.savepoint import (
    AbsorbReport,
    Bounds,
    CancelCheck,
    Kept,
    Loss,
    Miss,
    SavePoint,
    StagedFile,
    StoreRefused,
    StoreUsage,
    Unseen,
    never,
    program_of,
)
from kvchat.words.language import N_, _
from kvchat.words.reasons import Reason, ReasonCode

TITLE = N_("Chat memory is unavailable")


class BlockStore(Restoring):
    """Stores KV states, each row once, and restores what leaves the least of a prompt to prefill.

    All methods are synchronous and may block on disk: call them off the event loop (asyncio.to_thread). They may be
    called from several threads of the one process that owns the folder, and raise StoreRefused unless stated
    otherwise.
    """

    problem = None  # saving is not blocked

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
    ) -> None:
        """Open the store in `folder`, creating it if needed. Raises StoreRefused, and migrations.DatabaseTooNew.

        `memory_budget`: bytes of memory for slot files, or a function that returns them, given the current usage;
        0 keeps them on disk.
        """
        self._closing, self._closed = threading.Lock(), False
        self._background = ThreadPoolExecutor(1, "memory", positioned.give_way)
        room = memory_budget if callable(memory_budget) else lambda _: memory_budget
        try:
            super().__init__(folder, bounds, room, sync, clock, free_bytes, memory_folder)
            try:
                self._take_over()
            except IndexLost:
                self._take_over()  # the index is now new
        except (OSError, IndexFailed, IndexLost) as error:
            raise _unusable(folder, error) from error

    def _take_over(self) -> None:
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

    def close(self, cancelled: CancelCheck = never) -> None:
        """Absorb waiting files until cancelled, and empty the staging folder.

        Call it after the engines have ended. What was not absorbed is lost.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(StoreRefused, IndexLost, IndexFailed):
                self.absorb(cancelled)
                for point_id in self.unabsorbed() if cancelled() else ():
                    self.lose(point_id, Reason(ReasonCode.NOT_WAITED_FOR), tell=False)
            self.prepare().result()  # wait for the background thread; it has nothing left to prepare
            self.staging.close()
            self.index.close()

    def unstage(self, staged: StagedFile, *, engine_done: bool = True) -> None:
        """Remove the staged file.

        `engine_done` False: the engine was told to read it, but its answer was not awaited.
        """
        self.staging.unstage(staged.path, engine_done=engine_done)
        self.prepare()

    @in_words()
    def set_aside(self, save_point: SavePoint, reason: Reason) -> None:
        """Discard a save point the engine refused, or whose restore proved hollow."""
        self.lose(save_point.id, reason, tell=False)

    def absorb_pending(self, cancelled: CancelCheck = never) -> AbsorbReport:
        """Absorb waiting files and enforce the bounds. Slow: for a background thread, after each `take`.

        Stops soon if cancelled, between two blocks; the rest keeps waiting.
        """
        with in_words():
            self.tidy()
            newest = max(map(int, self.unabsorbed()), default=None)
            report = self.absorb(cancelled, gives_way=True)
            if report.save_points:
                self.enforce(protected=newest)
            if cancelled():
                return report
            for point_id, window in self.take_windows():
                self.complete_window(point_id, window, cancelled)
        self.prepare().result()
        return report

    def staging_folder(self) -> Path:
        """Create a private folder where one engine of this process saves and restores.

        Use your own file names: a name from `stage` may be the store's file itself. Raises OSError.
        """
        return self.staging.slot_folder()

    def staged(self) -> Staged:
        return self.staging.staged()

    def keep_in_memory(self, most: int) -> None:
        """Set the memory limit in bytes; files waiting to be absorbed are exempt."""
        self.staging.trim(most=most)
        if not self._begun:
            self._background.submit(self._have_last_program_warm)
        self.prepare()

    def prepare(self) -> Future[None]:
        """Preallocate memory in the background for the next composed file, as large as a recent one."""
        return self._background.submit(self._prepare)

    def _prepare(self) -> None:
        with contextlib.suppress(StoreRefused), in_words():
            if not self._closed:
                with self.index.read() as db:
                    size = points.largest_of_late(db)
                self.staging.prepare(size, lambda: self._closed)

    def _have_last_program_warm(self) -> None:
        with contextlib.suppress(StoreRefused), in_words():
            with self.index.read() as db:
                number = max(points.points_of(db, None), default=None)
                newest = points.load(db, number) if number is not None else None
            if newest and program_of(newest.conversation_id) and self.staging.has_room(newest.size):
                self.complete_window(newest.id, 0, lambda: self._begun or self._closed)
            self._begun = True

    @in_words()
    def manifest(self, conversation_id: str) -> Manifest | None:
        """Return what is stored of a conversation for the model that answered last, or None.

        Excludes what is not yet absorbed.
        """
        with self.index.read() as db:
            return exchange.manifest(db, conversation_id)

    def contents(self, manifest: Manifest) -> Contents:
        """Blocks, each verified at its end. Raises StoreRefused."""
        return exchange.contents(self.blocks, manifest)

    def bring(self, conversation_id: str, manifest: Manifest, contents: Contents) -> int:
        """Import save points for one conversation, all or none; return the number of new bytes.

        Existing blocks are not requested. `contents` may raise anything; it is read to its end. Raises BadMemory if
        it does not match the manifest, StoreRefused if it must not be kept or does not fit.
        """
        written, newest = exchange.bring(self, conversation_id, manifest, contents)
        with in_words():
            self.enforce(protected=newest)
        return written


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
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: Exception) -> StoreRefused:
    title = _("The chat memory folder cannot be used.")
    advice = _("Check the permissions of the folder and that the disk is not full.")
    return StoreRefused(title, f"{folder}: {getattr(error, 'strerror', None) or error}.", advice)


class KeptMemory:
    """Read-only access to a store that another process has open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def absorb_pending(self) -> None:
        """Do nothing: another process absorbs."""

    def manifest(self, conversation_id: str) -> Manifest | None:
        index = self._folder / INDEX
        if not index.exists():
            return None
        check_store(self._folder)
        with in_words(), reading(index) as db:
            return exchange.manifest(db, conversation_id)

    def contents(self, manifest: Manifest) -> Contents:
        return exchange.contents(BlockFiles(self._folder / BLOCKS), manifest)


class NoStore:
    """A store that keeps nothing and says why, with BlockStore's methods. It deletes nothing."""

    def __init__(self, why: KvchatError) -> None:
        advice = _(
            "{advice} You can keep chatting, but a chat is reprocessed each time you return to it from another chat.",
            advice=why.advice,
        )
        self.problem = StoreRefused(_(TITLE), f"{why.title} {why.detail}".strip(), advice.strip())
        self._folders: list[Path] = []

    def staging_folder(self) -> Path:
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
        return StoreUsage((), 0, 0, 0, problem=f"{self.problem.detail} {self.problem.advice}")

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
        """Do nothing; new bounds apply after the next start."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise self.problem

    find = stage = _miss
    keep_in_memory = unstage = set_aside = set_bounds = seen = _ignore
    manifest = bring = contents = _refuse
    check_room = occupied = take = plan_prune = prune = pin = never_save = _refuse
    delete_conversation = delete_messages = delete_imported = delete_all = verify = _refuse


SavePointStore = BlockStore | NoStore
