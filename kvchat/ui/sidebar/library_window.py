"""The library window: documents that are processed once and that many chats can start with."""

import asyncio
import itertools
from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFileDialog, QWidget

from kvchat.chat.events import EngineChanged, Event, LibraryChanged, SettingsChanged
from kvchat.chat.prepared.documents import PreparedSet
from kvchat.chat.prepared.library import Estimate, PreparationTooLong, PreparedStatus, ProcessingTask
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.text.formatting import TimeRange, format_age, format_estimate, format_percent, format_size, format_tokens
from kvchat.text.language import N_, _, format_number, join_list, join_parts, join_sentences, plural
from kvchat.ui.base.building import STRETCH, button, column, label, left_to_right, line_edit, progress_bar, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import Question, confirm, file_dialog
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.widgets.lists import Row, RowList, Tone

_PURPOSE = N_("kvchat processes these documents once. A chat that starts with them replies without delay.")
_EMPTY = N_(
    "No documents yet. Add a manual, papers or a source code folder. kvchat processes them once, in "
    "the background. Every chat that starts with them knows them from the first question."
)


class LibraryWindow(Panel):
    chat_started = Signal(str)  # chat id

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Library"), parent, size=(680, 520), min_size=(440, 360))
        self._library = runtime.chat.library
        self._statuses: list[PreparedStatus] = []
        self._load_timer = QTimer(self, singleShot=True, interval=0)  # combines several events into one load
        self._load_timer.timeout.connect(lambda: self.run(self._load()))
        self._errors: dict[str, KvchatError] = {}  # processing errors by id
        self._id_to_select = ""  # selected once it is listed
        self.details = label(kind="small", wraps=True, selectable=True)
        self.details.hide()
        self.empty_label = label(_(_EMPTY), "muted", wraps=True)
        self.empty_label.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.list = RowList(look, _("Library"))
        self.list.row_activated.connect(lambda _: self._run_for_current(self._start_chat))
        self.list.current_changed.connect(self._show_current)
        self.bar = progress_bar(_("Processing progress"))
        self.add_files_button = button(_("Add files…"), lambda: self._choose(QFileDialog.FileMode.ExistingFiles))
        self.add_folder_button = button(_("Add a folder…"), lambda: self._choose(QFileDialog.FileMode.Directory))
        self.remove_button = button(_("Remove…"), self._ask_to_remove, "danger")
        self.stop_button = button(_("Stop processing"), lambda: self._run_for_current(self._library.cancel))
        self.reprocess_button = button(_("Reprocess"), lambda: self._run_for_current(self._process))
        self.start_chat_button = button(_("Start a chat"), lambda: self._run_for_current(self._start_chat), "primary")
        purpose = label(_(_PURPOSE), "muted", wraps=True)
        above = row(self.add_files_button, self.add_folder_button, STRETCH, spacing=8)
        actions = self.remove_button, self.stop_button, self.reprocess_button, self.start_chat_button
        below = row(STRETCH, *actions, spacing=8)
        parts = self.notices, purpose, above, (self.empty_label, 1), (self.list, 1), self.bar, self.details, below
        column(*parts, on=self, spacing=12, margins=(20, 16, 20, 16))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.list.setFocus()
        self._load_timer.start()

    def choose(self, prepared_id: str) -> None:
        self._id_to_select = prepared_id
        if self._statuses:
            self._show()

    def _choose(self, mode: QFileDialog.FileMode) -> None:
        title = _("Add a folder") if mode is QFileDialog.FileMode.Directory else _("Add files")
        dialog = file_dialog(self, title, mode)
        dialog.filesSelected.connect(lambda names: self.run(self.ask_to_add(list(map(Path, names)))))
        dialog.open()

    async def ask_to_add(self, paths: Sequence[Path]) -> None:
        now = await self._runtime.engine.fingerprint_and_limit(self._runtime.settings.model_path)
        estimate = await self._library.estimate(paths, now)
        taken = set((await self._library.names_by_owner()).values())

        async def add(name: str) -> None:
            prepared = await self._library.add(paths, name)
            self._id_to_select = prepared.id
            await self._process(prepared)

        dialog = AddDocumentsDialog(self, await asyncio.to_thread(unused_name, paths, taken), estimate)
        dialog.accepted.connect(lambda: self.run(add(dialog.name)))
        dialog.open()

    async def _process(self, prepared: PreparedSet) -> None:
        try:
            await self._library.process(prepared)
        except KvchatError as error:
            self._errors[prepared.id] = error
            raise

    def _handle_event(self, event: Event) -> None:
        match event:
            case LibraryChanged(progress_only=True):
                self._show()
            case LibraryChanged() | EngineChanged() | SettingsChanged():
                self._load_timer.start()

    async def _load(self) -> None:
        usage = await self._runtime.save_points.usage()
        now = await self._runtime.engine.fingerprint_and_limit(self._runtime.settings.model_path)
        self._statuses = await self._library.statuses(now, usage.conversations)
        self._show()

    def _show(self) -> None:
        before, processing = self.list.current, self._library.processing
        self.list.show_rows([prepared_row(status, processing.get(status.prepared.id)) for status in self._statuses])
        ids = [status.prepared.id for status in self._statuses]
        if self._id_to_select in ids:
            self.list.select(self._id_to_select)
            self._id_to_select = ""
        elif before is None and ids:
            self.list.select(ids[0])
        self.list.setVisible(bool(ids))
        self.empty_label.setVisible(not ids)
        self._show_current()

    def _show_current(self) -> None:
        current = self._current
        progress = self._library.processing.get(current.prepared.id) if current else None
        if current is not None:
            left, folder = self._library.time_left(current.prepared), self._runtime.paths.save_points
            self.details.setText(describe_status(current, progress, left, folder))
        if progress is not None:
            self.bar.setValue(1000 * progress.done_tokens // max(progress.total, 1))
        self.bar.setVisible(progress is not None)
        self.stop_button.setVisible(progress is not None)
        for action in (self.reprocess_button, self.remove_button):
            action.setVisible(current is not None and progress is None)
        self.details.setVisible(current is not None)
        self.start_chat_button.setVisible(current is not None)
        self.start_chat_button.setEnabled(current is not None and current.prepared.is_read)

    @property
    def _current(self) -> PreparedStatus | None:
        id = self.list.current.value if self.list.current else None
        return next((status for status in self._statuses if status.prepared.id == id), None)

    def _run_for_current(self, action: Callable[[PreparedSet], Coroutine[Any, Any, object]]) -> None:
        if current := self._current:
            self.run(action(current.prepared))

    async def _start_chat(self, prepared: PreparedSet) -> None:
        if prepared.is_read:
            chat = await self._runtime.chat.create(await self._library.new_chat(prepared))
            self.close()
            self.chat_started.emit(chat.id)

    def _ask_to_remove(self) -> None:
        if (current := self._current) is None:
            return
        prepared = current.prepared

        async def remove() -> None:
            await self._library.remove(prepared)
            if (error := self._errors.pop(prepared.id, None)) is not None:
                self.notices.withdraw_error(error)

        title = _("Remove “{name}” from the library?", name=prepared.name)
        text = _(
            "The files and the chats that started with them are not deleted. To use the files here "
            "again, you must add and process them again."
        )
        confirm(self, title, text, _("Remove"), lambda: self.run(remove()))


class AddDocumentsDialog(Question):
    def __init__(self, parent: QWidget, name: str, estimate: Estimate) -> None:
        self.field, self.add_button = line_edit(_("Name"), _("Name")), button(_("Add"), self.accept, "primary")
        self.estimate = label(describe_estimate(estimate), "muted", wraps=True)
        self.field.textChanged.connect(
            lambda _: self.add_button.setEnabled(bool(self.name) and not estimate.is_too_long)
        )
        self.field.setText(name)
        self.add_button.setEnabled(not estimate.is_too_long)
        title, answers = _("Add to the library"), (button(_("Not now"), self.reject), self.add_button)
        super().__init__(parent, title, (label(title, "title"), self.field, self.estimate), *answers)

    @property
    def name(self) -> str:
        return self.field.text().strip()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.field.setFocus()
        self.field.selectAll()


def unused_name(paths: Sequence[Path], used_names: Collection[str]) -> str:
    """Return a name for these files that is not in `used_names`, based on the first file's name."""
    name = paths[0].name if paths[0].is_dir() else paths[0].stem
    if len(paths) > 1:
        name = _("{name} and {count}", name=name, count=plural(len(paths) - 1, "{count} more", "{count} more"))
    names = itertools.chain([name], (f"{name} {number}" for number in itertools.count(2)))
    return next(candidate for candidate in names if candidate not in used_names)


def describe_estimate(estimate: Estimate) -> str:
    files = plural(estimate.files, "{count} file", "{count} files")
    if estimate.is_too_long:
        error = PreparationTooLong(estimate)
        return join_sentences(files, error.title, error.detail, error.advice)
    tokens = format_number(round(estimate.tokens, -3 if estimate.tokens >= 10_000 else -2))
    text = _("{files}, about {tokens} tokens.", files=files, tokens=tokens)
    if estimate.time:
        time = format_estimate(estimate.time)
        text = _("{files}, about {tokens} tokens; processing takes {time}.", files=files, tokens=tokens, time=time)
    return join_sentences(text, _("You can keep chatting: your messages take priority."))


def prepared_row(status: PreparedStatus, progress: ProcessingTask | None) -> Row:
    prepared = status.prepared
    parts = [plural(len(prepared.sources), "{count} file", "{count} files")]
    if prepared.is_read:
        parts += [_("{tokens} tokens", tokens=format_tokens(prepared.tokens)), format_size(status.bytes)]
        if status.time and not status.reprocess_reason:
            parts.append(_("saves {time}", time=format_estimate(status.time)))
        parts.append(Path(prepared.model).stem)
    chip, tone = _("ready"), Tone.GOOD
    if progress is not None:
        share = format_percent(progress.done_tokens / progress.total) if progress.total else "…"
        chip, tone = _("processing {share}", share=share), Tone.PLAIN
    elif status.reprocess_reason:
        chip, tone = _("needs processing") if prepared.is_read else _("not processed"), Tone.WARN
    elif status.changes:
        chip, tone = _("files changed"), Tone.WARN
    return Row(prepared.id, prepared.name, join_parts(parts), chip, tone)


def describe_status(
    status: PreparedStatus, progress: ProcessingTask | None, left: TimeRange | None, folder: Path
) -> str:
    """Describe prepared documents. `left` is the time until they are processed, `folder` where memory is saved."""
    prepared, reason = status.prepared, status.reprocess_reason
    lines = [left_to_right(join_list(prepared.paths))]
    if progress is not None:
        done, total = format_number(progress.done_tokens), format_number(progress.total)
        text = _("Waiting to be processed.")
        if progress.total and left:
            time = format_estimate(left)
            text = _("{done} of {total} tokens processed, {time} left.", done=done, total=total, time=time)
        elif progress.total:
            text = _("{done} of {total} tokens processed.", done=done, total=total)
        return "\n".join([*lines, join_sentences(text, _("Your messages take priority."))])
    if prepared.is_read:
        when = format_age(prepared.created_at.astimezone(), datetime.now().astimezone())
        text, place = _("Processed {when}.", when=when), left_to_right(str(folder))
        if status.bytes:
            size = format_size(status.bytes)
            text = _("Processed {when}; {size} saved in {place}.", when=when, size=size, place=place)
        lines.append(text)
    if changes := status.changes.text if status.changes else "":
        text = _("{words} since then. Chats start with the processed version. Reprocess to include the changes.")
        lines.append(text.format(words=changes))
    if not prepared.is_read:
        text = _(
            "Processing was interrupted, so no chat can start with these documents yet. "
            "Reprocess to continue from the saved progress."
        )
        lines.append(text)
    elif reason:
        text = _("A chat with these documents would have to process them first: {why}.", why=reason)
        if status.time:
            text = _(
                "A chat with these documents would have to process them first, which takes {time}: {why}.",
                time=format_estimate(status.time),
                why=reason,
            )
        lines.append(text)
    return "\n".join(lines)
