"""Export, import and backup for the window: off the UI thread, parallel to the chats, reported as events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from kvchat.chat.events import ConversationsChanged, EventBus
from kvchat.chat.record.database import Database
from kvchat.chat.turn.imported_memory import MemoryTest
from kvchat.kvstore.exchange import Manifest
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.kvstore.store import BlockStore
from kvchat.system.concurrency import Progress, Worker, in_thread_with_progress
from kvchat.system.paths import Paths
from kvchat.transfer.backup import BackupFacts, check_backup, lay_ready, make_backup
from kvchat.transfer.exporting import ExportForm, export_file
from kvchat.transfer.importing import ImportReport, import_paths
from kvchat.transfer.memory_file import NothingKept, export_with_memory, memory_to_export, told_of

TryOut = Callable[[str, Fingerprint, bool], Awaitable[MemoryTest]]  # conversation id; fingerprint; may start an engine


class TransferService:
    """Imports and exports for the window. `progress` runs on another thread. Cancelling undoes all."""

    def __init__(
        self,
        paths: Paths,
        database: Database,
        worker: Worker,
        events: EventBus,
        store: BlockStore | None = None,
        try_out: TryOut | None = None,
    ) -> None:
        self._paths, self._database, self._worker, self._events = paths, database, worker, events
        self._store, self._try_out = store, try_out

    async def export(self, ids: Sequence[str], target: Path, progress: Progress) -> int:
        def work(tell: Progress) -> int:
            with closing(Database(self._paths.database)) as beside:  # separate connection: blocks nobody
                return export_file(beside, ids, ExportForm.of(target), target, tell)

        return await in_thread_with_progress(work, progress)

    async def memory_of(self, conversation_id: str) -> Manifest:
        return await asyncio.to_thread(lambda: memory_to_export(self._absorbed(), conversation_id))

    async def export_with_memory(
        self, conversation_id: str, target: Path, progress: Progress, passphrase: str = ""
    ) -> int:
        """Write a conversation with its memory; return the bytes. Raises KvchatError."""

        def work(tell: Progress) -> int:
            with closing(Database(self._paths.database)) as beside:
                return export_with_memory(beside, self._absorbed(), conversation_id, target, passphrase, tell)

        return await in_thread_with_progress(work, progress)

    async def take_in(
        self, paths: Sequence[Path], progress: Progress, passphrase: str = "", *, start: bool = False
    ) -> ImportReport:
        """Import files and folders; `start`: an engine may be started to test their memory."""

        def work(tell: Progress) -> ImportReport:
            return import_paths(
                self._database, paths, tell, self._worker.call, store=self._store, passphrase=passphrase
            )

        try:
            report = await in_thread_with_progress(work, progress)
        finally:
            self._events.publish(ConversationsChanged())
        told = list(report.told)
        for brought in report.memories if self._try_out else ():
            assert self._try_out is not None
            tried = await self._try_out(brought.conversation_id, brought.fingerprint, start)
            told.append(told_of(brought, tried))
        return replace(report, told=tuple(told))

    def _absorbed(self) -> Path:
        """Absorb what waits in the store; return its folder."""
        if self._store is None:
            raise NothingKept
        self._store.absorb_pending()
        return self._store.inventory.folder

    async def back_up(self, target: Path, progress: Progress) -> BackupFacts:
        return await in_thread_with_progress(lambda tell: make_backup(self._paths, target, tell), progress)

    async def check(self, source: Path) -> BackupFacts:
        return await asyncio.to_thread(check_backup, source)

    async def lay_ready(self, source: Path, progress: Progress, *, with_engine: bool = False) -> BackupFacts:
        work = partial(lay_ready, self._paths, source, with_engine=with_engine)
        return await in_thread_with_progress(work, progress)
