"""Import, export, backup and restore in the main window: file dialogs, progress and results."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from PySide6.QtCore import QSize, Signal
from PySide6.QtWidgets import QFileDialog, QProgressDialog, QPushButton, QWidget

from kvchat.runtime import Runtime
from kvchat.system.concurrency import OnProgress
from kvchat.text.formatting import format_datetime, format_size
from kvchat.text.language import N_, _, format_number, join_list, join_sentences, plural
from kvchat.transfer.backup import BackupFacts, engine_settings_of
from kvchat.transfer.memory_file import PassphraseNeeded, has_memory
from kvchat.ui.base.building import progress_bar
from kvchat.ui.controllers.sidebar import SidebarController
from kvchat.ui.controllers.views import Controller, Views
from kvchat.ui.dialogs.confirm import ask_passphrase, confirm, file_dialog, save_dialog
from kvchat.ui.dialogs.panel import ImportReportDialog

_EXPORT_FILTERS = N_("Complete kvchat export (*.json);;Markdown (*.md *.zip);;Web page (*.html)")
_EXPORTS = N_("Exported chats (*.json *.zip *.kvchat);;All files (*)")
_BACKUPS = N_("Backups (*.zip);;All files (*)")
_WITH_MEMORY = N_("Chats with memory (*.kvchat)")
_ABOUT_MEMORY = N_(
    "The memory of this chat takes {size}. With it, the chat continues with the same model on any "
    "computer without reprocessing. Anyone who has the file can read the chat unless you set a "
    "passphrase. A lost passphrase cannot be recovered."
)
_ABOUT_IMPORT = N_(
    "Import {file} only if you trust its source. kvchat cannot tell whether memory from others is "
    "genuine, and forged memory can change the model’s replies. kvchat uses the memory only for this "
    "chat until it has verified it by reprocessing the chat."
)
_UNSAFE_CHARS = str.maketrans(dict.fromkeys('\\/:*?"<>|\n\r\t\0', " "))  # in file names
_PATIENCE_MS = 600  # shorter work shows no progress
_PAUSE_S = 0.05  # minimum time between updates of the progress
_STEPS, _WIDTH = 1000, 320

R = TypeVar("R")


class TransferController(Controller):
    restart_requested = Signal()
    imported = Signal(list)  # conversation ids

    def __init__(self, runtime: Runtime, views: Views, conversations: SidebarController, window: QWidget) -> None:
        super().__init__(runtime, views, window)
        self._conversations, self._window = conversations, window
        self.in_progress: list[str] = []  # "Importing…"

    def export(self, ids: list[str] | None = None) -> None:
        """Export these chats; None exports all."""

        async def export(target: Path) -> None:
            work = partial(self._runtime.transfer.export, ids or list(self._conversations.titles), target)
            count = await self.with_progress(_("Exporting…"), work, _("Export canceled"))
            title = plural(count, "Exported {count} chat", "Exported {count} chats")
            self._views.notices.notify_file_saved(title, target)

        if ids is None:
            self._save(_("Export all chats"), "Chats.json", _(_EXPORT_FILTERS), export)
        else:
            name = self._file_name(ids[0]) if len(ids) == 1 else _("Chats")
            self._save(_("Export"), f"{name}.json", _(_EXPORT_FILTERS), export)

    def export_with_memory(self, id: str) -> None:
        self._runner.start(self._export_with_memory(id))

    def import_files(self, paths: list[Path]) -> None:
        self._runner.start(self._ask_to_import(paths))

    def choose_import(self) -> None:
        self._open(_("Import chats"), QFileDialog.FileMode.ExistingFiles, _(_EXPORTS), self._ask_to_import)

    def choose_import_folder(self) -> None:
        self._open(_("Import a folder of chats"), QFileDialog.FileMode.Directory, "", self._import)

    def back_up(self) -> None:
        async def save(target: Path) -> None:
            work = partial(self._runtime.transfer.back_up, target)
            facts = await self.with_progress(_("Backing up…"), work, _("Backup canceled"))
            self._views.notices.notify_file_saved(_("Backed up {contents}", contents=_contents(facts)), target)

        self._save(_("Back up"), _("kvchat backup.zip"), _(_BACKUPS), save)

    def restore(self) -> None:
        self._open(_("Restore from a backup"), QFileDialog.FileMode.ExistingFile, _(_BACKUPS), self._ask_to_restore)

    def _file_name(self, id: str) -> str:
        title = self._conversations.title(id).translate(_UNSAFE_CHARS)
        return " ".join(title.split())[:80].strip(". ") or _("Chat")

    async def _export_with_memory(self, id: str) -> None:
        memory = await self._runtime.transfer.exportable_memory(id)

        def choose_file(passphrase: str) -> None:
            async def export(target: Path) -> None:
                work = partial(self._runtime.transfer.export_with_memory, id, target, passphrase=passphrase)
                written = format_size(await self.with_progress(_("Exporting…"), work, _("Export canceled")))
                title = _("Exported 1 chat with memory, {size}", size=written)
                if passphrase:
                    title = _("Exported 1 chat with memory, {size}, encrypted with your passphrase", size=written)
                self._views.notices.notify_file_saved(title, target)

            self._save(_("Export with memory"), f"{self._file_name(id)}.kvchat", _(_WITH_MEMORY), export)

        title, about = _("Export with memory?"), _(_ABOUT_MEMORY, size=format_size(memory.bytes))
        ask_passphrase(self._window, title, about, _("Choose a file…"), choose_file, optional=True)

    async def _ask_to_import(self, paths: list[Path]) -> None:
        """Import the files, but ask first if they contain chat memory, which cannot be verified."""
        if not any(await asyncio.to_thread(lambda: [has_memory(path) for path in paths])):
            await self._import(paths)
            return
        title = plural(len(paths), "Import this chat with its memory?", "Import these chats with their memory?")
        text = _(_ABOUT_IMPORT, file=join_list(path.name for path in paths))
        run = self._runner.start
        confirm(self._window, title, text, _("Import"), lambda: run(self._import(paths)), keep=_("Cancel"))

    async def _import(self, paths: list[Path], passphrase: str = "") -> None:
        work = partial(self._runtime.transfer.import_files, paths, passphrase=passphrase)
        canceled = _("Import canceled"), _("Nothing was imported.")
        try:
            report = await self.with_progress(_("Importing…"), work, *canceled)
        except PassphraseNeeded as needed:

            def retry(passphrase: str) -> None:
                self._runner.start(self._import(paths, passphrase))

            ask_passphrase(self._window, needed.title, needed.explanation, _("Import"), retry)
            return
        restored = [id for id in report.existing if id not in self._conversations.titles]
        if restored:
            await self._runtime.chat.recently_deleted.restore_chats(restored)
        if report.imported or restored:
            self.imported.emit([*report.imported, *restored])
        title = plural(len(report.imported), "Imported {count} chat", "Imported {count} chats")
        summary = ""
        if count := len(report.existing):
            summary = plural(count, "{count} chat already exists.", "{count} chats already exist.")
        if restored:
            each = _("Restored from Recently deleted: {count}.", count=format_number(len(restored)))
            only = _("It was restored from Recently deleted.")
            summary = join_sentences(summary, only if count == 1 else each)
        summary = join_sentences(summary, *report.notes)
        if report.problems:
            ImportReportDialog(self._views.look, title, summary, report.problems, self._window).open()
        else:
            self._views.notices.notify(title, summary)

    async def _ask_to_restore(self, sources: list[Path]) -> None:
        [source] = sources
        facts = await self._runtime.transfer.check(source)
        text = _(
            "The backup contains {contents}. Restoring replaces your current chats and settings; "
            "kvchat saves those in a separate folder first.",
            contents=_contents(facts),
        )

        def restore(*, with_engine: bool = False) -> None:
            self._runner.start(self._restore(source, with_engine=with_engine))

        def ask_about_engine() -> None:
            """Ask whether to run the backup's engine, since the backup may come from another person."""
            program = " ".join(filter(None, facts.engine))
            if not program or facts.engine == engine_settings_of(self._runtime.settings):
                restore()
                return
            text = _(
                "These settings start the engine with: {program}. Use them only if you created this backup yourself.",
                program=program,
            )
            title, action = _("Use the engine settings from the backup?"), _("Use backup settings")
            use, keep = partial(restore, with_engine=True), _("Keep current settings")
            confirm(self._window, title, text, action, use, keep=keep).rejected.connect(restore)

        title = _("Restore the backup of {made_at}?", made_at=format_datetime(facts.made_at))
        keep = _("Keep current chats")
        confirm(self._window, title, text, _("Restore the backup"), ask_about_engine, keep=keep)

    async def _restore(self, source: Path, *, with_engine: bool) -> None:
        work = partial(self._runtime.transfer.stage_restore, source, with_engine=with_engine)
        canceled = _("Restore canceled"), _("Nothing was changed.")
        await self.with_progress(_("Checking the backup…"), work, *canceled)
        title, text = _("Restart kvchat to finish restoring?"), _("The backup will be restored at the next start.")
        confirm(self._window, title, text, _("Restart kvchat"), self.restart_requested.emit, keep=_("Later"))

    async def with_progress(
        self, text: str, work: Callable[[OnProgress], Coroutine[Any, Any, R]], canceled: str, detail: str = ""
    ) -> R:
        """Return the result of `work`. Show a progress dialog if it takes a while.

        Its Cancel button stops the work and shows the notice `canceled` with `detail` (by default: nothing was
        written).
        """
        loop, last_update = asyncio.get_running_loop(), 0.0
        dialog, cancel = QProgressDialog("", "", 0, 0, self._window), QPushButton(_("Cancel"))
        cancel.setAutoDefault(False)  # Enter must not press it
        dialog.setCancelButton(cancel)
        dialog.setBar(progress_bar(text))
        dialog.setWindowTitle("kvchat")
        dialog.setMinimumDuration(_PATIENCE_MS)
        dialog.setAutoReset(False)

        def set_text(text: str) -> None:
            dialog.setLabelText(text)
            dialog.setMinimumSize(dialog.sizeHint().expandedTo(QSize(_WIDTH, 0)))

        set_text(text)
        dialog.setValue(0)

        def report(done: int, total: int) -> None:
            """Show progress: `done` of `total`, or `done` chats if `total` is 0 (unknown). Thread-safe."""
            nonlocal last_update
            if time.monotonic() - last_update >= _PAUSE_S:
                last_update = time.monotonic()
                loop.call_soon_threadsafe(show, done, total)

        def show(done: int, total: int) -> None:
            if task.done() or dialog.wasCanceled():
                return
            step = _STEPS * done // total if total else 0
            if done and not total:
                chats = plural(done, "{count} chat", "{count} chats")
                set_text(f"{text} {chats}")
            dialog.setMaximum(_STEPS if step else 0)
            dialog.setValue(step)

        task = asyncio.create_task(work(report))
        dialog.canceled.connect(lambda: task.cancel())
        self.in_progress.append(text)
        try:
            return await task
        except asyncio.CancelledError:
            if dialog.wasCanceled():  # else kvchat quits
                self._views.notices.notify(canceled, detail or _("Nothing was written."))
            raise
        finally:
            self.in_progress.remove(text)
            dialog.close()
            dialog.deleteLater()

    def _save(self, title: str, name: str, kinds: str, run: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
        save_dialog(self._window, title, name, kinds, lambda path: self._runner.start(run(path)))

    def _open(
        self, title: str, mode: QFileDialog.FileMode, kinds: str, run: Callable[[list[Path]], Coroutine[Any, Any, None]]
    ) -> None:
        dialog = file_dialog(self._window, title, mode, kinds)
        dialog.filesSelected.connect(lambda names: self._runner.start(run([Path(name) for name in names])))
        dialog.open()


def _contents(facts: BackupFacts) -> str:
    return _(
        "{conversations}, {size}",
        conversations=plural(facts.conversations, "{count} chat", "{count} chats"),
        size=format_size(facts.size),
    )
