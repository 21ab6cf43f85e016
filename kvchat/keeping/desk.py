"""Export, import and backup for the window: off the UI's thread, and told as events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from kvchat.chat.database import Database
from kvchat.chat.events import ConversationsChanged, EventBus
from kvchat.chat.worker import Worker
from kvchat.keeping.backup import BackupFacts, Progress, check_backup, lay_ready, make_backup
from kvchat.keeping.exporting import ExportForm, export_file
from kvchat.keeping.importing import ImportReport, import_paths
from kvchat.paths import Paths


class KeepingDesk:
    """What the window asks for. `progress` is called on another thread."""

    def __init__(self, paths: Paths, database: Database, worker: Worker, events: EventBus) -> None:
        self._paths, self._database, self._worker, self._events = paths, database, worker, events

    async def export(self, ids: Sequence[str], target: Path, progress: Callable[[int], None]) -> int:
        """Write these conversations in the form the file's name asks for; returns how many. Raises ExportFailed."""
        return await self._worker.run(export_file, self._database, ids, ExportForm.of(target), target, progress)

    async def take_in(self, paths: Sequence[Path], progress: Callable[[int], None]) -> ImportReport:
        """Import files and folders. Raises StorageFailed."""
        try:
            return await self._worker.run(import_paths, self._database, paths, progress)
        finally:
            self._events.publish(ConversationsChanged())

    async def back_up(self, target: Path, progress: Progress) -> BackupFacts:
        """Write a backup. Raises BackupFailed."""
        return await asyncio.to_thread(make_backup, self._paths, target, progress)

    async def check(self, source: Path) -> BackupFacts:
        """What a backup holds. Raises BadBackup."""
        return await asyncio.to_thread(check_backup, source)

    async def lay_ready(self, source: Path, progress: Progress) -> BackupFacts:
        """Have a backup take the data's place at the next start. Raises BadBackup."""
        return await asyncio.to_thread(lay_ready, self._paths, source, progress)
