"""The library window: prepared documents, processed once, from which chats can start."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFileDialog, QWidget

from kvchat.chat.events import EngineChanged, Event, LibraryChanged, SettingsChanged
from kvchat.chat.prepared.documents import PreparedSet
from kvchat.chat.prepared.library import Estimate, PreparationTooLong, PreparedStatus, ReadingTask
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.text.formatting import TimeRange, format_age, format_estimate, format_size, format_tokens
from kvchat.text.language import N_, _, format_number, join_list, join_parts, join_sentences, plural
from kvchat.ui.base.building import STRETCH, button, column, label, left_to_right, line_edit, progress_bar, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import Question, confirm, file_dialog
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.widgets.lists import Row, RowList, Tone

_WHAT_FOR = N_("kvchat processes these documents once. A chat that starts with them replies without delay.")
_EMPTY = N_(
    "No documents yet. Add a manual, papers or a source code folder. kvchat processes them once, in "
    "the background. Every chat that starts with them knows them from the first question."
)


class LibraryWindow(Panel):
    begun = Signal(str)  # chat id

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Library"), parent, size=(680, 520), least=(440, 360))
        self._library = runtime.chat.library
        self._standings: list[PreparedStatus] = []
        self._loading = self._due = False
        self._refused: dict[str, KvchatError] = {}  # read errors by id
        self._added = ""  # id to select once it is listed
        self.what_for = label(_(_WHAT_FOR), "muted", wraps=True)
        self.details = label(kind="small", wraps=True, selectable=True)
        self.details.hide()
        self.empty = label(_(_EMPTY), "muted", wraps=True)
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.list = RowList(look, _("Library"))
        self.list.row_activated.connect(lambda _: self._with_current(self._begin))
        self.list.current_changed.connect(self._show_current)
        self.bar = progress_bar(_("Processing progress"))
        self.files = button(_("Add files…"), lambda: self._choose(QFileDialog.FileMode.ExistingFiles))
        self.folder = button(_("Add a folder…"), lambda: self._choose(QFileDialog.FileMode.Directory))
        self.remove = button(_("Remove…"), self._ask_to_remove, "danger")
        self.cancel = button(_("Stop processing"), lambda: self._with_current(self._library.cancel))
        self.again = button(_("Reprocess"), lambda: self._with_current(self._read))
        self.begin = button(_("Start a chat"), lambda: self._with_current(self._begin), "primary")
        above = row(self.files, self.folder, STRETCH, spacing=8)
        below = row(STRETCH, self.remove, self.cancel, self.again, self.begin, spacing=8)
        shown = self.notices, self.what_for, above, (self.empty, 1), (self.list, 1), self.bar, self.details, below
        column(*shown, on=self, spacing=12, margins=(20, 16, 20, 16))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.list.setFocus()
        self._load()

    def choose(self, prepared_id: str) -> None:
        self._added = prepared_id
        if self._standings:
            self._show()

    async def consider(self, paths: Sequence[Path]) -> None:
        now = await self._runtime.engine.states_now(self._runtime.settings.model_path)
        estimate = await self._library.estimate(paths, now)
        taken = set((await self._library.names_by_owner()).values())

        async def add(name: str) -> None:
            made = await self._library.add(paths, name)
            self._added = made.id
            await self._read(made)

        dialog = AddDialog(self, await asyncio.to_thread(name_for, paths, taken), estimate)
        dialog.accepted.connect(lambda: self.run(add(dialog.name)))
        dialog.open()

    async def _read(self, prepared: PreparedSet) -> None:
        try:
            await self._library.read(prepared)
        except KvchatError as error:
            self._refused[prepared.id] = error
            raise

    async def _remove(self, prepared: PreparedSet) -> None:
        await self._library.remove(prepared)
        if (error := self._refused.pop(prepared.id, None)) is not None:
            self.notices.withdraw_error(error)

    def _choose(self, mode: QFileDialog.FileMode) -> None:
        title = _("Add a folder") if mode is QFileDialog.FileMode.Directory else _("Add files")
        dialog = file_dialog(self, title, mode)
        dialog.filesSelected.connect(lambda names: self.run(self.consider(list(map(Path, names)))))
        dialog.open()

    def _handle_event(self, event: Event) -> None:
        match event:
            case LibraryChanged(progress=True):
                self._show()
            case LibraryChanged() | EngineChanged() | SettingsChanged():
                self._load()

    def _load(self) -> None:
        """Reload; changes during a load cause one more load afterwards."""
        self._due = True
        if not self._loading:
            self.run(self._load_all())

    async def _load_all(self) -> None:
        self._loading = True
        try:
            while self._due:
                self._due = False
                usage = await self._runtime.save_points.usage()
                now = await self._runtime.engine.states_now(self._runtime.settings.model_path)
                self._standings = await self._library.statuses(now, usage.conversations)
                self._show()
        finally:
            self._loading = False

    def _show(self) -> None:
        before = self.list.current
        self.list.show_rows(
            [row_of(standing, self._library.reading.get(standing.prepared.id)) for standing in self._standings]
        )
        if any(standing.prepared.id == self._added for standing in self._standings):
            self.list.select(self._added)
            self._added = ""
        elif before is None and self._standings:
            self.list.select(self._standings[0].prepared.id)
        self.list.setVisible(bool(self._standings))
        self.empty.setVisible(not self._standings)
        self._show_current()

    def _show_current(self) -> None:
        current = self._current
        reading = self._library.reading.get(current.prepared.id) if current else None
        if current is not None:
            left, place = self._library.time_left(current.prepared), self._runtime.paths.save_points
            self.details.setText(details_of(current, reading, left, place))
        if reading is not None:
            self.bar.setValue(1000 * reading.done // max(reading.total, 1))
        self.bar.setVisible(reading is not None)
        self.cancel.setVisible(reading is not None)
        for action in (self.again, self.remove):
            action.setVisible(current is not None and reading is None)
        self.details.setVisible(current is not None)
        self.begin.setVisible(current is not None)
        self.begin.setEnabled(current is not None and current.prepared.is_read)

    @property
    def _current(self) -> PreparedStatus | None:
        chosen = self.list.current.value if self.list.current else None
        return next((standing for standing in self._standings if standing.prepared.id == chosen), None)

    def _with_current(self, do: Callable[[PreparedSet], Coroutine[Any, Any, object]]) -> None:
        if standing := self._current:
            self.run(do(standing.prepared))

    async def _begin(self, prepared: PreparedSet) -> None:
        if prepared.is_read:
            chat = await self._runtime.chat.create(await self._library.new_chat(prepared))
            self.close()
            self.begun.emit(chat.id)

    def _ask_to_remove(self) -> None:
        if (standing := self._current) is None:
            return
        title = _("Remove “{name}” from the library?", name=standing.prepared.name)
        words = _(
            "The files and the chats that started with them are not deleted. To use the files here "
            "again, you must add and process them again."
        )
        confirm(self, title, words, _("Remove"), lambda: self.run(self._remove(standing.prepared)))


class AddDialog(Question):
    def __init__(self, parent: QWidget, name: str, estimate: Estimate) -> None:
        can_be_read = not estimate.is_too_long
        self.field, self.words = line_edit(_("Name"), _("Name")), label(estimate_words(estimate), "muted", wraps=True)
        self.field.setText(name)
        self.read = button(_("Add"), self.accept, "primary")
        self.read.setEnabled(can_be_read)
        self.field.textChanged.connect(lambda _: self.read.setEnabled(bool(self.name) and can_be_read))
        title, answers = _("Add to the library"), (button(_("Not now"), self.reject), self.read)
        super().__init__(parent, title, (label(title, "title"), self.field, self.words), *answers)

    @property
    def name(self) -> str:
        return self.field.text().strip()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.field.setFocus()
        self.field.selectAll()


def name_for(paths: Sequence[Path], taken: Collection[str]) -> str:
    """Return a free name for these files, based on the first."""
    name = paths[0].name if paths[0].is_dir() else paths[0].stem
    if len(paths) > 1:
        name = _("{name} and {count}", name=name, count=plural(len(paths) - 1, "{count} more", "{count} more"))
    names = itertools.chain([name], (f"{name} {number}" for number in itertools.count(2)))
    return next(candidate for candidate in names if candidate not in taken)


def estimate_words(estimate: Estimate) -> str:
    files = plural(estimate.files, "{count} file", "{count} files")
    if estimate.is_too_long:
        error = PreparationTooLong(estimate)
        return join_sentences(files, error.title, error.detail, error.advice)
    tokens = format_number(round(estimate.tokens, -3 if estimate.tokens >= 10_000 else -2))
    words = _("{files}, about {tokens} tokens.", files=files, tokens=tokens)
    if estimate.time:
        time = format_estimate(estimate.time)
        words = _("{files}, about {tokens} tokens; processing takes {time}.", files=files, tokens=tokens, time=time)
    return join_sentences(words, _("You can keep chatting meanwhile: your messages take priority."))


def row_of(standing: PreparedStatus, reading: ReadingTask | None) -> Row:
    prepared = standing.prepared
    parts = [plural(len(prepared.sources), "{count} file", "{count} files")]
    if prepared.is_read:
        parts += [_("{tokens} tokens", tokens=format_tokens(prepared.tokens)), format_size(standing.bytes)]
        parts += (
            [_("saves {time}", time=format_estimate(standing.time))]
            if standing.time and not standing.reprocess_reason
            else []
        )
        parts += [Path(prepared.model).stem]
    chip, tone = _("ready"), Tone.GOOD
    if reading is not None:
        share = f"{100 * reading.done // reading.total} %" if reading.total else "…"
        chip, tone = _("processing {share}", share=share), Tone.PLAIN
    elif standing.reprocess_reason:
        chip, tone = _("needs processing") if prepared.is_read else _("not processed"), Tone.WARN
    elif standing.changes:
        chip, tone = _("files changed"), Tone.WARN
    return Row(prepared.id, prepared.name, join_parts(parts), chip, tone)


def details_of(standing: PreparedStatus, reading: ReadingTask | None, left: TimeRange | None, place: Path) -> str:
    prepared = standing.prepared
    lines = [left_to_right(join_list(prepared.paths))]
    if reading is not None:
        done, total = format_number(reading.done), format_number(reading.total)
        words = _("Waiting to be processed.")
        if reading.total and left:
            words = _(
                "{done} of {total} tokens processed, {time} left.", done=done, total=total, time=format_estimate(left)
            )
        elif reading.total:
            words = _("{done} of {total} tokens processed.", done=done, total=total)
        return "\n".join([*lines, join_sentences(words, _("Your messages take priority."))])
    if prepared.is_read:
        when = format_age(prepared.created_at.astimezone(), datetime.now().astimezone())
        words, there = _("Processed {when}.", when=when), left_to_right(str(place))
        if standing.bytes:
            words = _(
                "Processed {when}; {size} saved in {place}.", when=when, size=format_size(standing.bytes), place=there
            )
        lines.append(words)
    if changed := standing.changes.text if standing.changes else "":
        words = _(
            "{words} since then. Chats start with the processed version. Reprocess to include the changes.",
            words=changed,
        )
        lines.append(words)
    if not prepared.is_read:
        words = _(
            "Processing was interrupted, so no chat can start with these documents yet. "
            "Reprocess to continue from the saved progress."
        )
        lines.append(words)
    elif why := standing.reprocess_reason:
        words = _("A chat with these documents would have to process them first: {why}.", why=why)
        if standing.time:
            time = format_estimate(standing.time)
            words = _(
                "A chat with these documents would have to process them first, which takes {time}: {why}.",
                time=time,
                why=why,
            )
        lines.append(words)
    return "\n".join(lines)
