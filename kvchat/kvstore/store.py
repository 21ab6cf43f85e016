"""The store of save points: blocks of KV rows, each stored once. Its folder:
    index.db                 tokens, recipe and last use of every save point (SQLite)
    blocks/ab/abcdef...      a block, named by the BLAKE3 of its content
    staging/                 engines' slot folders, and slot files not in RAM
With enough free RAM, slot files are staged under /dev/shm instead.
"""

import contextlib
import shutil
import tempfile
import threading
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.kvstore import disk
from kvchat.kvstore.blocks.block_files import BlockFiles
from kvchat.kvstore.index.index import Index, IndexFailed, IndexLost, disk_errors, store_unusable_error
from kvchat.kvstore.inventory import Inventory
from kvchat.kvstore.memory_files import MemoryRoom
from kvchat.kvstore.restorer import Restorer
from kvchat.kvstore.savepoint import AbsorbReport, Bounds, CancelCheck, StoreRefused, never_cancelled
from kvchat.kvstore.saver import Saver
from kvchat.kvstore.staging import Staging
from kvchat.text.language import N_, _
from kvchat.text.reasons import Reason, ReasonCode

UNAVAILABLE_TITLE = N_("Chat memory is unavailable")


class BlockStore:
    """A store, with its parts `saver`, `restorer`, `inventory` and `staging`.

    All their methods may block on disk, so do not call them on the event loop (use asyncio.to_thread). They are
    thread-safe, but only one process may own the folder. They raise StoreRefused unless stated otherwise.
    """

    def __init__(
        self,
        folder: Path,
        bounds: Bounds,
        memory_room: MemoryRoom = lambda held: 0,
        *,
        sync: bool = True,
        problem: StoreRefused | None = None,
    ) -> None:
        """Open or create the store. Raises StoreRefused, and migrations.DatabaseTooNew.

        `problem`: error that prevents saving; `folder` then holds only engines' files, and `close` deletes it.
        """
        self.problem = problem
        self._closing, self._closed = threading.Lock(), False
        try:
            disk.private_folder(folder)
            self.staging = Staging(folder / disk.STAGING, memory_room)
            index = Index(folder / disk.INDEX, on_loss=self.staging.mark_absorbed, problem=problem)
            blocks = BlockFiles(folder / disk.BLOCKS, sync=sync)
            self.inventory = Inventory(folder, bounds, self.staging, index, blocks)
            self.saver = Saver(self.inventory)
            self.restorer = Restorer(self.inventory, self.saver)
            if problem is None:
                try:
                    self.inventory.recover()
                except IndexLost:
                    self.inventory.recover()  # the index is now new
        except (OSError, IndexFailed, IndexLost) as error:
            raise store_unusable_error(folder, error) from error

    def close(self, cancelled: CancelCheck = never_cancelled) -> None:
        """Absorb staged files until cancelled, then delete them and close the index. Engines must have stopped."""
        inventory = self.inventory
        with self._closing:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(StoreRefused):
                self.saver.absorb(cancelled)
                for point_id in inventory.unabsorbed_points() if cancelled() else ():
                    inventory.delete_unusable(point_id, Reason(ReasonCode.NOT_WAITED_FOR))
            self.restorer.close()
            self.staging.close()
            inventory.index.close()
            if self.problem is not None:
                shutil.rmtree(inventory.folder, ignore_errors=True)

    @disk_errors()
    def absorb_pending(self, cancelled: CancelCheck = never_cancelled) -> AbsorbReport:
        """Absorb staged files (see `Saver.absorb`) until cancelled, and enforce the bounds.

        For a background thread, after each save.
        """
        inventory = self.inventory
        inventory.run_deferred_work()
        newest = max(map(int, inventory.unabsorbed_points()), default=None)
        report = self.saver.absorb(cancelled, low_priority=True)
        if report.save_points:
            inventory.enforce_bounds(protected_id=newest)
        if cancelled():
            return report
        for conversation_id in list(self.saver.windows):
            if point := self.saver.windows.pop(conversation_id, None):
                self.restorer.build_warm_file(*point, cancelled)
        self.restorer.preallocate_file().result()
        return report


def unavailable_error(cause: KvchatError) -> StoreRefused:
    advice = _(
        "{advice} You can keep chatting, but a chat is reprocessed each time you return to it from another chat.",
        advice=cause.advice,
    )
    return StoreRefused(_(UNAVAILABLE_TITLE), f"{cause.title} {cause.detail}".strip(), advice.strip())


def store_without_memory(cause: KvchatError) -> BlockStore:
    """Return a store that saves nothing because of `cause`; engines get a temporary folder."""
    return BlockStore(Path(tempfile.mkdtemp(prefix="kvchat-")), Bounds(0, 0), problem=unavailable_error(cause))
