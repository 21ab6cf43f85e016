"""Import, export, backup and restore from the window: file dialogs, progress, results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from PySide6.QtCore import QSize, Signal
from PySide6.QtWidgets import QFileDialog, QProgressDialog, QPushButton, QWidget

from kvchat.runtime import Runtime
from kvchat.system.concurrency import Progress
from kvchat.text.formatting import format_datetime, format_size
from kvchat.text.language import N_, _, format_number, join_list, join_sentences, plural
from kvchat.transfer.backup import BackupFacts, engine_of
from kvchat.transfer.memory_file import PassphraseNeeded, holds_memory
from kvchat.ui.base.building import progress_bar
from kvchat.ui.controllers.sidebar import SidebarController
from kvchat.ui.controllers.views import Controller, Views
from kvchat.ui.dialogs.confirm import ask_passphrase, confirm, file_dialog, save_dialog
from kvchat.ui.dialogs.panel import ImportReportDialog

_FORMS = N_("Complete kvchat export (*.json);;Markdown (*.md *.zip);;Web page (*.html)")
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
_NO_NAME = str.maketrans(dict.fromkeys('\\/:*?"<>|\n\r\t\0', " "))
_PATIENCE_MS = 600  # shorter work shows no progress
_PAUSE_S = 0.05  # progress polling interval
_STEPS, _WIDTH = 1000, 320

R = TypeVar("R")


class TransferController(Controller):
    restart_requested = Signal()
    imported = Signal(list)  # conversation ids

    def __init__(self, runtime: Runtime, views: Views, conversations: SidebarController, window: QWidget) -> None:
        super().__init__(runtime, views, window)
        self._conversations, self._window = conversations, window
        self._loop = asyncio.get_running_loop()
        self.going_on: list[str] = []  # "Importing…"

    def export(self, ids: list[str]) -> None:
        name = self._file_name(ids[0]) if len(ids) == 1 else _("Chats")
        self._save(_("Export"), f"{name}.json", _(_FORMS), partial(self._export, ids))

    def export_with_memory(self, id: str) -> None:
        self._runner.start(self._offer_memory(id))

    def export_all(self) -> None:
        self._save(_("Export all chats"), "Chats.json", _(_FORMS), partial(self._export, None))

    def take_in(self) -> None:
        self._pick(_("Import chats"), QFileDialog.FileMode.ExistingFiles, _(_EXPORTS), self._offer)

    def import_files(self, paths: list[Path]) -> None:
        self._runner.start(self._offer(paths))

    def take_in_folder(self) -> None:
        self._pick(_("Import a folder of chats"), QFileDialog.FileMode.Directory, "", self._take_in)

    def back_up(self) -> None:
        async def save(target: Path) -> None:
            work = partial(self._runtime.transfer.back_up, target)
            facts = await self._write(_("Backing up…"), work, _("Backup canceled"))
            self._views.notices.notify_file_saved(_("Backed up {contents}", contents=_contents(facts)), target)

        self._save(_("Back up"), _("kvchat backup.zip"), _(_BACKUPS), save)

    def restore(self) -> None:
        self._pick(_("Restore from a backup"), QFileDialog.FileMode.ExistingFile, _(_BACKUPS), self._look_at)

    def _file_name(self, id: str) -> str:
        title = self._conversations.title(id).translate(_NO_NAME)
        return " ".join(title.split())[:80].strip(". ") or _("Chat")

    async def _export(self, ids: list[str] | None, target: Path) -> None:
        """ids: None for all chats"""
        chats = list(self._conversations.titles) if ids is None else ids
        work = partial(self._runtime.transfer.export, chats, target)
        count = await self._write(_("Exporting…"), work, _("Export canceled"))
        self._views.notices.notify_file_saved(plural(count, "Exported {count} chat", "Exported {count} chats"), target)

    async def _offer_memory(self, id: str) -> None:
        memory = await self._runtime.transfer.memory_of(id)
        about = _(_ABOUT_MEMORY, size=format_size(memory.bytes))

        def pick(passphrase: str) -> None:
            async def export(target: Path) -> None:
                work = partial(self._runtime.transfer.export_with_memory, id, target, passphrase=passphrase)
                written = format_size(await self._write(_("Exporting…"), work, _("Export canceled")))
                told = _("Exported 1 chat with memory, {size}", size=written)
                if passphrase:
                    told = _("Exported 1 chat with memory, {size}, encrypted with your passphrase", size=written)
                self._views.notices.notify_file_saved(told, target)

            self._save(_("Export with memory"), f"{self._file_name(id)}.kvchat", _(_WITH_MEMORY), export)

        ask_passphrase(self._window, _("Export with memory?"), about, _("Choose a file…"), pick, optional=True)

    async def _offer(self, paths: list[Path]) -> None:
        """Import the files; ask first if they hold memory, which anybody may have made."""
        if not any(await asyncio.to_thread(lambda: [holds_memory(path) for path in paths])):
            await self._take_in(paths)
            return
        confirm(
            self._window,
            plural(len(paths), "Import this chat with its memory?", "Import these chats with their memory?"),
            _(_ABOUT_IMPORT, file=join_list(path.name for path in paths)),
            _("Import"),
            lambda: self._runner.start(self._take_in(paths)),
            keep=_("Cancel"),
        )

    async def _take_in(self, paths: list[Path], passphrase: str = "") -> None:
        work = partial(self._runtime.transfer.take_in, paths, passphrase=passphrase)
        try:
            report = await self._with_progress(_("Importing…"), work, _("Import canceled"), _("Nothing was imported."))
        except PassphraseNeeded as needed:
            ask_passphrase(
                self._window,
                needed.title,
                needed.explanation,
                _("Import"),
                lambda given: self._runner.start(self._take_in(paths, given)),
            )
            return
        back = [id for id in report.here if id not in self._conversations.titles]
        if back:
            await self._runtime.chat.recently_deleted.restore_chats(back)
        if report.imported or back:
            self.imported.emit([*report.imported, *back])
        title = plural(len(report.imported), "Imported {count} chat", "Imported {count} chats")
        known = ""
        if report.known:
            known = plural(report.known, "{count} chat already exists.", "{count} chats already exist.")
        if back:
            came = _("Restored from Recently deleted: {count}.", count=format_number(len(back)))
            known = join_sentences(known, _("It was restored from Recently deleted.") if report.known == 1 else came)
        known = join_sentences(known, *report.told)
        if report.problems:
            ImportReportDialog(self._views.look, title, known, report.problems, self._window).open()
        else:
            self._views.notices.notify(title, known)

    async def _look_at(self, sources: list[Path]) -> None:
        source = sources[0]
        facts = await self._runtime.transfer.check(source)
        confirm(
            self._window,
            _("Restore the backup of {made_at}?", made_at=format_datetime(facts.made_at)),
            _(
                "The backup contains {contents}. It replaces your current chats and settings, which "
                "are saved in a separate folder.",
                contents=_contents(facts),
            ),
            _("Restore the backup"),
            lambda: self._ask_about_engine(source, facts),
            keep=_("Keep current chats"),
        )

    def _ask_about_engine(self, source: Path, facts: BackupFacts) -> None:
        """Ask before running a backup's engine: the backup may come from anybody."""

        def lay_ready(*, with_engine: bool = False) -> None:
            self._runner.start(self._lay_ready(source, with_engine=with_engine))

        program = " ".join(filter(None, facts.engine))
        if not program or facts.engine == engine_of(self._runtime.settings):
            lay_ready()
            return
        confirm(
            self._window,
            _("Use the engine settings from the backup?"),
            _(
                "These settings start the engine with: {program}. Use them only if you created this backup yourself.",
                program=program,
            ),
            _("Use backup settings"),
            lambda: lay_ready(with_engine=True),
            keep=_("Keep current settings"),
        ).rejected.connect(lay_ready)

    async def _lay_ready(self, source: Path, *, with_engine: bool) -> None:
        work = partial(self._runtime.transfer.lay_ready, source, with_engine=with_engine)
        cancelled = _("Restore canceled"), _("Nothing was changed.")
        await self._with_progress(_("Checking the backup…"), work, *cancelled)
        confirm(
            self._window,
            _("Restart kvchat to finish?"),
            _("The backup will be restored at the next start."),
            _("Restart kvchat"),
            self.restart_requested.emit,
            keep=_("Later"),
        )

    async def _write(self, words: str, work: Callable[[Progress], Awaitable[R]], cancelled: str) -> R:
        return await self._with_progress(words, work, cancelled, _("Nothing was written."))

    async def _with_progress(self, words: str, work: Callable[[Progress], Awaitable[R]], *cancelled: str) -> R:
        """Return the result of `work`. If the user cancels, end its task and show `cancelled`."""
        with _Progress(self._window, words, self._loop) as progress:
            self.going_on.append(words)
            try:
                return await work(progress.report)
            except asyncio.CancelledError:
                if progress.cancelled:  # kvchat quits
                    self._views.notices.notify(*cancelled)
                raise
            finally:
                self.going_on.remove(words)

    def _save(self, title: str, name: str, kinds: str, run: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
        save_dialog(self._window, title, name, kinds, lambda path: self._runner.start(run(path)))

    def _pick(
        self, title: str, mode: QFileDialog.FileMode, kinds: str, run: Callable[[list[Path]], Coroutine[Any, Any, None]]
    ) -> None:
        dialog = file_dialog(self._window, title, mode, kinds)
        dialog.filesSelected.connect(lambda names: self._runner.start(run([Path(name) for name in names])))
        dialog.open()


class _Progress:
    """Progress dialog, shown if the work takes a while; its Cancel ends the task."""

    def __init__(self, window: QWidget, words: str, loop: asyncio.AbstractEventLoop) -> None:
        self.cancelled = False
        self._loop, self._words, self._ended, self._last_at = loop, words, False, 0.0
        self._task = asyncio.current_task()
        self._dialog = QProgressDialog("", "", 0, 0, window)
        cancel = QPushButton(_("Cancel"))
        cancel.setAutoDefault(False)  # Enter must not press it
        self._dialog.setCancelButton(cancel)
        self._dialog.setBar(progress_bar(words))
        self._set_text(words)
        self._dialog.setWindowTitle("kvchat")
        self._dialog.setMinimumDuration(_PATIENCE_MS)
        self._dialog.setAutoReset(False)
        self._dialog.canceled.connect(self._cancel)

    def __enter__(self) -> _Progress:
        self._dialog.setValue(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._dialog.close()
        self._dialog.deleteLater()

    def report(self, done: int, total: int) -> None:
        """done: of `total`, or a count of chats if the total is unknown (0). Thread-safe."""
        now = time.monotonic()
        if now - self._last_at >= _PAUSE_S:
            self._last_at = now
            self._loop.call_soon_threadsafe(self._show, done, total)

    def _show(self, done: int, total: int) -> None:
        if self._ended or self.cancelled:
            return
        step = _STEPS * done // total if total else 0
        if done and not total:
            so_far = plural(done, "{count} chat", "{count} chats")
            self._set_text(f"{self._words} {so_far}")
        self._dialog.setMaximum(_STEPS if step else 0)
        self._dialog.setValue(step)

    def _set_text(self, words: str) -> None:
        self._dialog.setLabelText(words)
        self._dialog.setMinimumSize(self._dialog.sizeHint().expandedTo(QSize(_WIDTH, 0)))

    def _cancel(self) -> None:
        if self._task and not self._ended:  # closing the dialog also cancels
            self.cancelled = True
            self._task.cancel()


def _contents(facts: BackupFacts) -> str:
    return _(
        "{conversations}, {size}",
        conversations=plural(facts.conversations, "{count} chat", "{count} chats"),
        size=format_size(facts.size),
    )
