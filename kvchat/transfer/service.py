"""Export, import and backup for the window, in other threads while chats continue."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from kvchat.chat.events import ConversationsChanged, EventBus
from kvchat.chat.record.database import Database
from kvchat.chat.turn.imported_memory import ImportTestResult
from kvchat.kvstore.exchange import Manifest
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.kvstore.store import BlockStore
from kvchat.system.concurrency import OnProgress, Worker, in_thread_with_progress
from kvchat.system.paths import Paths
from kvchat.transfer.backup import BackupFacts, check_backup, make_backup, stage_restore
from kvchat.transfer.exporting import ExportForm, export_file
from kvchat.transfer.importing import ImportReport, import_paths
from kvchat.transfer.memory_file import NoSavedMemory, describe_import, export_with_memory, memory_to_export

# Arguments: conversation id; fingerprint; True if an engine may be started.
TestMemory = Callable[[str, Fingerprint, bool], Awaitable[ImportTestResult]]


class TransferService:
    """Exports, imports and backups. `progress` is called in another thread. Cancelling undoes the operation."""

    def __init__(
        self,
        paths: Paths,
        database: Database,
        worker: Worker,
        events: EventBus,
        store: BlockStore | None = None,
        test_memory: TestMemory | None = None,
    ) -> None:
        self._paths, self._database, self._worker, self._events = paths, database, worker, events
        self._store, self._test_memory = store, test_memory

    async def export(self, ids: Sequence[str], target: Path, progress: OnProgress) -> int:
        def export(report: OnProgress) -> int:
            with closing(Database(self._paths.database)) as database:  # separate connection: blocks nobody
                return export_file(database, ids, ExportForm.from_suffix(target), target, report)

        return await in_thread_with_progress(export, progress)

    async def exportable_memory(self, conversation_id: str) -> Manifest:
        return await asyncio.to_thread(lambda: memory_to_export(self._absorbed(), conversation_id))

    async def export_with_memory(
        self, conversation_id: str, target: Path, progress: OnProgress, passphrase: str = ""
    ) -> int:
        """Export a conversation with its memory; return the file's size in bytes. Raises KvchatError."""

        def export(report: OnProgress) -> int:
            with closing(Database(self._paths.database)) as database:
                return export_with_memory(database, self._absorbed(), conversation_id, target, passphrase, report)

        return await in_thread_with_progress(export, progress)

    async def import_files(
        self, paths: Sequence[Path], progress: OnProgress, passphrase: str = "", *, start_engine: bool = False
    ) -> ImportReport:
        """Import files and folders. With `start_engine`, test imported memory even if no engine is ready."""
        run = partial(
            import_paths, self._database, paths, call=self._worker.call, store=self._store, passphrase=passphrase
        )
        try:
            report = await in_thread_with_progress(run, progress)
        finally:
            self._events.publish(ConversationsChanged())
        notes = list(report.notes)
        if self._test_memory is not None:
            for memory in report.memories:
                test = await self._test_memory(memory.conversation_id, memory.fingerprint, start_engine)
                notes.append(describe_import(memory, test))
        return replace(report, notes=tuple(notes))

    def _absorbed(self) -> Path:
        """Make the store absorb its pending files; return the store's folder. Raises NoSavedMemory without a store."""
        if self._store is None:
            raise NoSavedMemory
        self._store.absorb_pending()
        return self._store.inventory.folder

    async def back_up(self, target: Path, progress: OnProgress) -> BackupFacts:
        return await in_thread_with_progress(partial(make_backup, self._paths, target), progress)

    async def check(self, source: Path) -> BackupFacts:
        return await asyncio.to_thread(check_backup, source)

    async def stage_restore(self, source: Path, progress: OnProgress, *, with_engine: bool = False) -> BackupFacts:
        run = partial(stage_restore, self._paths, source, with_engine=with_engine)
        return await in_thread_with_progress(run, progress)
