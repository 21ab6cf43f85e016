"""The store that keeps every KV row once, whoever needs it.

Its folder:
    index.db                 every save point: tokens, recipe, use (SQLite)
    blocks/ab/abcdef...      a block, named by the BLAKE3 of its content
    staging/<process>/       slot files of live processes, where there is no memory for them
    set-aside/               bad blocks, kept for a look
Where there is memory to spare, staging lies under /dev/shm instead.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from kvchat.kvstore.blocks.blocks import BlockFiles
from kvchat.kvstore.files import disk
from kvchat.kvstore.files.memory_files import MEMORY_FOLDER, MemoryRoom, Staged
from kvchat.kvstore.files.staging import Staging
from kvchat.kvstore.housekeeping import Housekeeping
from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.index import usage as index_usage
from kvchat.kvstore.index.index import Index, IndexFailed, IndexLost
from kvchat.kvstore.layout.recipe import RowMap
from kvchat.kvstore.layout.row_map import read_row_map
from kvchat.kvstore.parts import BLOCKS, INDEX, SET_ASIDE, STAGING, BadFiles, Parts
from kvchat.kvstore.restoring import Restoring
from kvchat.kvstore.savepoint import (
    AbsorbReport,
    Fingerprint,
    Grown,
    Loss,
    Miss,
    PrunePlan,
    RestorePlan,
    SavePoint,
    StagedFile,
    State,
    StoreUsage,
    Tokens,
    Unseen,
    VerifyReport,
)
from kvchat.kvstore.saving import Saving
from kvchat.kvstore.speed import RebuildSpeed, measure_rebuild
from kvchat.kvstore.store import Bounds, StoreRefused, Wanted, always


class BlockStore:
    """Keeps KV rows as blocks: a SavePointStore. Raises StoreRefused where that protocol says nothing else."""

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
            self._keeping = Housekeeping(self._parts)
            self._begin()
        except (OSError, IndexFailed, IndexLost) as error:
            title = "The folder for the memory of chats cannot be used."
            advice = "Check that it is a folder of yours and that the disk is not full."
            raise StoreRefused(title, f"{folder}: {getattr(error, 'strerror', None) or error}.", advice) from error

    def _begin(self) -> None:
        """Look after what others left; prove that there can be written at all. Raises IndexFailed, IndexLost."""
        try:
            with self._parts.index.write() as db:
                if self._parts.index.fresh and any(self._parts.blocks.leftovers((), 0.0)):
                    index_usage.note_index_loss(db)  # somebody took the file away, but not what it tells of
            self._keeping.recover()
        except IndexLost:
            self._keeping.recover()  # there is a new one now
        except IndexFailed as failure:
            if not failure.locked:
                raise
        self._parts.index.be_patient()

    def staged(self) -> Staged:
        """What of its files in memory can go at once, and how much could lie there at all."""
        with _in_words():
            return self._parts.staging.staged(self._parts.unabsorbed())

    def keep_in_memory(self, most: int) -> None:
        """Have so many bytes in memory at most, until told otherwise; what is warm beyond that goes at once."""
        with _in_words():
            self._parts.staging.trim(self._parts.unabsorbed(), most=most)

    def staged_bytes(self) -> int:
        """Bytes of what is staged or warm now, in memory and on disk."""
        return self._parts.staging.bytes(disk_too=True)

    def staging_folder(self) -> Path:
        """A fresh private folder where one engine of this process saves and restores. Raises OSError."""
        return self._parts.staging.slot_folder()

    def close(self, wanted: Wanted = always) -> None:
        """Absorb what waits, if wanted, and delete this process's staging folder. When the engines have ended."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(StoreRefused, IndexLost, IndexFailed):
                self._saving.absorb_pending(wanted)
                for point_id in () if wanted() else self._parts.unabsorbed():
                    self._parts.lose(point_id, "kvchat was told not to wait until it was saved", tell=False)
            self._parts.staging.close()
            self._parts.index.close()

    def find(
        self, fingerprint: Fingerprint, prompt: Tokens, *, can_cut: bool, conversation_id: str
    ) -> RestorePlan | Miss:
        """The plan that leaves the least of the prompt to prefill, or why there is none."""
        return self._restoring.find(fingerprint, prompt, can_cut=can_cut, conversation_id=conversation_id)

    def stage(
        self, plan: RestorePlan, slot_path: Path, *, older_window_rows: int = 0, wanted: Wanted = always
    ) -> StagedFile | Miss:
        """Put the plan's slot file, verified, into the engine's slot folder. Raises NotWanted."""
        return self._restoring.stage(plan, slot_path, older_window_rows=older_window_rows, wanted=wanted)

    def unstage(self, staged: StagedFile) -> None:
        """Drop the engine's name for the file."""
        self._parts.staging.unstage(staged.path)

    def check_room(
        self, size: int, conversation_id: str | None = None, place: Path | None = None, state: State | None = None
    ) -> None:
        """Raise StoreRefused if a slot file of about that size cannot be saved; decide where one at `place` goes."""
        self._saving.check_room(size, conversation_id, place, state)

    def forget(self, place: Path) -> None:
        """What was to be saved at `place` was not; nothing is left of it."""
        self._parts.staging.forget(place)

    def take(
        self,
        slot_file: Path,
        conversation_id: str,
        fingerprint: Fingerprint,
        expected: Tokens,
        expected_size: int | None = None,
        prefill_ms: float = 0.0,
        older_window_rows: int = 0,
        message_id: str | None = None,
        grown: Grown | None = None,
    ) -> SavePoint:
        """Make a file the engine has just saved a save point, at once, in the warm tier alone."""
        return self._saving.take(
            slot_file,
            conversation_id,
            fingerprint,
            expected,
            expected_size,
            prefill_ms,
            older_window_rows,
            message_id,
            grown,
        )

    def absorb_pending(self, wanted: Wanted = always) -> AbsorbReport:
        """Take apart the files that wait, and keep to the bounds. For a background thread."""
        with _in_words():
            self._parts.tidy()
            staged = self._saving.newest_staged()
            report = self._saving.absorb_pending(wanted, gives_way=True)
            if report.save_points:
                self._keeping.enforce(protected=staged)
            if not wanted():
                return report
            for window in self._saving.windows():
                self._restoring.complete_window(window, wanted)
            self._restoring.remember_hashes()
        self.prepare()
        return report

    def prepare(self, most: int | None = None) -> None:
        """In the background: have memory ready for the next file to be put together, if it is `most` bytes at most."""
        with contextlib.suppress(StoreRefused), _in_words():
            with self._parts.index.read() as db:
                size = index_points.last_used_size(db)
            if most is None or size <= most:
                self._parts.staging.prepare(size)

    def set_aside(self, save_point: SavePoint, reason: str) -> None:
        """Take a save point out of use, because the engine refused it or its restore proved hollow."""
        with _in_words():
            self._parts.lose(save_point.id, reason, tell=False)

    def usage(self) -> StoreUsage:
        """What is kept, by conversation, the largest first."""
        with _in_words():
            return self._keeping.usage()

    def plan_prune(self, target_bytes: int) -> PrunePlan:
        """What pruning to a size would remove, and what re-reading it would cost. Removes nothing."""
        with _in_words():
            return self._keeping.plan_prune(target_bytes)

    def prune(self, plan: PrunePlan) -> int:
        """Carry a plan out; returns the bytes freed."""
        with _in_words():
            return self._keeping.prune(plan)

    def set_bounds(self, bounds: Bounds) -> None:
        """Put new bounds into force, and prune to them at once."""
        with _in_words():
            self._keeping.set_bounds(bounds)

    def pin(self, conversation_id: str, pinned: bool) -> None:
        """Never prune a conversation, or allow it again."""
        with _in_words(), self._parts.index.write() as db:
            index_points.set_flag(db, conversation_id, pinned=pinned, never=None)

    def never_save(self, conversation_id: str, never: bool) -> None:
        """Never save a conversation, or allow it again. What is saved of it stays until it is deleted."""
        with _in_words(), self._parts.index.write() as db:
            index_points.set_flag(db, conversation_id, pinned=None, never=never)

    def delete_conversation(self, conversation_id: str) -> int:
        """Delete all that is kept of a conversation; returns the bytes freed."""
        with _in_words():
            return self._keeping.delete(conversation_id)

    def delete_messages(self, conversation_id: str, message_ids: Collection[str]) -> int:
        """Delete what is kept of these messages of a conversation; returns the bytes freed."""
        with _in_words():
            return self._keeping.delete_messages(conversation_id, message_ids)

    def unseen(self, by: str) -> Unseen:
        """What has been kept since `seen` was last told by the same; everything after it was told by another."""
        with _in_words(), self._parts.index.read() as db:
            return index_points.unseen(db, by)

    def seen(self, by: str, what: Unseen) -> None:
        """All of that has been looked at."""
        with _in_words(), self._parts.index.write() as db:
            index_points.seen(db, by, what)

    def delete_all(self) -> int:
        """Delete every save point and everything set aside; returns the bytes freed."""
        with _in_words():
            return self._keeping.delete(None)

    def verify(self, progress: Callable[[int, int], None] = lambda done, total: None) -> VerifyReport:
        """Hash every block and set aside what is bad."""
        with _in_words():
            return self._keeping.verify(progress)

    def measure_rebuild(self, rounds: int = 5) -> RebuildSpeed | None:
        """How fast the largest save point's file is rebuilt, beside a plain copy of it; None without a save point."""
        with _in_words():
            return measure_rebuild(self._parts, rounds)

    def losses(self) -> tuple[Loss, ...]:
        """What turned out bad since this was last asked: tell the user once."""
        with _in_words():
            return self._keeping.losses()


@contextmanager
def _in_words() -> Iterator[None]:
    """Turn faults of the index and the disk into what the user is told."""
    try:
        yield
    except IndexLost as error:
        title = "The list of what is kept was damaged."
        raise StoreRefused(title, "It was set aside, and a new one begun: each chat is read again once.") from error
    except (IndexFailed, OSError) as error:
        raise StoreRefused("The memory of chats could not be read or written.", f"{error}.") from error
