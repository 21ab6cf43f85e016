"""Export, import and backup for the window: off the UI's thread, beside whatever the chats do, and told as events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from kvchat.chat.events import ConversationsChanged, EventBus
from kvchat.chat.record.database import Database
from kvchat.system.concurrency import Progress, Worker, in_thread_with_progress
from kvchat.system.paths import Paths
from kvchat.transfer.backup import BackupFacts, make_backup
from kvchat.transfer.exporting import ExportForm, export_file
from kvchat.transfer.importing import ImportReport, import_paths
from kvchat.transfer.restore import check_backup, lay_ready


class TransferService:
    """What the window asks for. `progress` is called on another thread. Cancelled, each leaves all as it was."""

    def __init__(self, paths: Paths, database: Database, worker: Worker, events: EventBus) -> None:
        self._paths, self._database, self._worker, self._events = paths, database, worker, events

    async def export(self, ids: Sequence[str], target: Path, progress: Progress) -> int:
        """Write these conversations in the form the file's name asks for; returns how many. Raises ExportFailed."""

        def work(tell: Progress) -> int:
            with closing(Database(self._paths.database)) as beside:  # a connection of its own holds nobody up
                return export_file(beside, ids, ExportForm.of(target), target, tell)

        return await in_thread_with_progress(work, progress)

    async def take_in(self, paths: Sequence[Path], progress: Progress) -> ImportReport:
        """Import files and folders. `progress` is told how many conversations. Raises StorageFailed."""
        try:
            return await in_thread_with_progress(
                lambda tell: import_paths(self._database, paths, tell, self._worker.call), progress
            )
        finally:
            self._events.publish(ConversationsChanged())

    async def back_up(self, target: Path, progress: Progress) -> BackupFacts:
        """Write a backup. Raises BackupFailed."""
        return await in_thread_with_progress(lambda tell: make_backup(self._paths, target, tell), progress)

    async def check(self, source: Path) -> BackupFacts:
        """What a backup holds. Raises BadBackup."""
        return await asyncio.to_thread(check_backup, source)

    async def lay_ready(self, source: Path, progress: Progress) -> BackupFacts:
        """Have a backup take the data's place at the next start. Raises BadBackup."""
        return await in_thread_with_progress(lambda tell: lay_ready(self._paths, source, tell), progress)
