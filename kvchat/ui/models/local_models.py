"""Models on this computer: the list, verdicts, and selection."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import QFile, Qt, Signal
from PySide6.QtWidgets import QFileDialog, QMenu, QWidget

from kvchat.errors import KvchatError
from kvchat.library.model_library import FoundModel, JudgedModel, UnreadableFolder
from kvchat.library.remote.starter import is_starter_downloaded
from kvchat.runtime import Runtime
from kvchat.ui.base.building import button, column, label, row
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import confirm, file_dialog
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.models.first_start import starter_words
from kvchat.ui.models.model_choice import found_row, in_order
from kvchat.ui.widgets.controls import Card
from kvchat.ui.widgets.layouts import flow
from kvchat.ui.widgets.lists import Row, RowList
from kvchat.ui.widgets.text_search import ClearableField
from kvchat.words.language import N_, _, beside, several
from kvchat.words.wording import size

_NO_MODEL = N_(
    "Models are .gguf files. kvchat looks for them in its own folder, in the folders of other apps "
    "and in the folders you add."
)
_SHOW_EVERY = 25  # models; the first scan of hundreds takes seconds


class ModelsHere(QWidget):
    use_requested = Signal(object)  # Path

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__()
        self._runtime, self._panel = runtime, panel
        self._models: list[JudgedModel] = []
        self._looking = False
        self.filter = ClearableField(look, _("Filter the models by name"), _("Filter by name"))
        self.filter.textChanged.connect(self.refresh)
        self.list = RowList(look, _("Models on this computer"))
        self.list.taken.connect(self._use)
        self.list.current_changed.connect(self._show_current)
        self.status, self.reason = label(kind="small", wraps=True), label(kind="small", wraps=True)
        tip = _("New chats use this model. Existing chats keep their model.")
        self.use = button(_("Use this model"), lambda: self._use(self.list.current), "primary", tip=tip)
        self.delete = button(_("Delete…"), self._ask_delete, name=_("Delete this model"))
        self.folders = button(_("Folders…"), self.open_folders, name=_("Model folders"))
        self.none = Card()
        self.none.say(_("No models found on this computer"), _(_NO_MODEL), "")
        words = starter_words(here=False)
        self.starter, self.more = self.none.add_button(words, "primary"), self.none.add_button(_("Download another…"))
        self.none.add_button(_("Choose a folder…"), "", self._ask_folder)
        self.none.hide()
        below = row((self.status, 1), flow(self.folders, self.delete, self.use, at_end=True), spacing=8)
        parts = self.filter, self.none, (self.list, 1), self.reason, below
        column(*parts, on=self, spacing=8, margins=0)
        self.refresh()

    def look(self) -> None:
        if not self._looking:
            self._looking = True
            self._panel.run(self._look())

    def open_folders(self) -> QMenu:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction(_("Add a folder…"), self._ask_folder)
        menu.addAction(_("Look again"), self.look)
        chosen = self._runtime.settings.model_folders
        if chosen:
            menu.addSeparator()
        for folder in chosen:
            others = [other for other in chosen if other != folder]
            words = _("Stop looking in {folder}", folder=folder).replace("&", "&&")
            menu.addAction(words, partial(self._choose, others))
        menu.popup(self.folders.mapToGlobal(self.folders.rect().topLeft()))
        return menu

    def add_folder(self, folder: str) -> None:
        self._choose([*self._runtime.settings.model_folders, folder])

    def _ask_folder(self) -> None:
        dialog = file_dialog(self, _("Choose a folder with models"), QFileDialog.FileMode.Directory)
        dialog.fileSelected.connect(self.add_folder)
        dialog.open()

    def _choose(self, folders: Sequence[str]) -> None:
        async def apply() -> None:
            chosen = tuple(dict.fromkeys(folders))
            await self._runtime.apply_settings(dataclasses.replace(self._runtime.settings, model_folders=chosen))
            self.look()

        self._panel.run(apply())

    async def _look(self) -> None:
        fresh: list[JudgedModel] = []

        def found(model: JudgedModel) -> None:
            fresh.append(model)
            if len(fresh) % _SHOW_EVERY == 0 and len(fresh) > len(self._models):
                self._models = list(fresh)
                self.refresh()

        try:
            self._say(())
            here = await asyncio.to_thread(is_starter_downloaded, self._runtime.paths.models)
            self.starter.setText(starter_words(here=here))
            judge = await self._runtime.engine.model_judge()
            unreadable = await self._runtime.models.find(judge, found, self._runtime.settings.model_path)
        finally:
            self._looking = False
        self._models = fresh
        self.refresh()
        self._say(unreadable)

    def refresh(self) -> None:
        words = self.filter.text().lower().split()
        path = self._runtime.settings.model_path
        rows = [found_row(model, Path(path) if path else None) for model in sorted(self._models, key=in_order)]
        self.list.show_rows([row for row in rows if all(word in f"{row.title} {row.words}".lower() for word in words)])
        self._show_current()

    def _ask_delete(self) -> None:
        if (current := self._model_of(self.list.current)) is not None:
            model = current.model
            words = _(
                "This moves {size} to the trash. Your chats with this model are not deleted, but "
                "need another model to continue.",
                size=size(model.size),
            )
            title = _("Delete {model}?", model=model.name)
            confirm(self, title, words, _("Delete"), lambda: self._panel.run(self._delete(model)))

    async def _delete(self, model: FoundModel) -> None:
        """Move the files to the trash; if the folder has none, ask to delete them for good."""
        left = [file for file in model.files if not await asyncio.to_thread(_to_trash, file)]
        self.look()

        async def delete() -> None:
            try:
                for file in left:
                    await asyncio.to_thread(file.unlink, missing_ok=True)
            except OSError as error:
                raise ModelNotDeleted(error) from error
            finally:
                self.look()

        if left:
            words = _("This disk has no trash. {size} will be permanently deleted.", size=size(model.size))
            title = _("Permanently delete {model}?", model=model.name)
            confirm(self, title, words, _("Delete"), lambda: self._panel.run(delete()))

    def _model_of(self, row: Row | None) -> JudgedModel | None:
        return next((judged for judged in self._models if row and judged.model.path == row.value), None)

    def _say(self, unreadable: Sequence[UnreadableFolder]) -> None:
        empty = not self._looking and not self._models
        self.none.setVisible(empty)
        for widget in (self.filter, self.use, self.delete):
            widget.setVisible(not empty)
        if self._looking:
            self.status.setText(_("Looking for models…"))
            return
        count = len(self._models)
        words = [several(count, "{count} model", "{count} models")] if count else []
        words += [_("{path} cannot be read.", path=folder.path) for folder in unreadable]
        self.status.setText(beside(words))

    def _show_current(self) -> None:
        chosen, used = self.list.current, self._runtime.settings.model_path
        current = self._model_of(chosen)
        model = current.model if current else None
        self.use.setEnabled(current is not None and current.judgement is not None)
        in_use = model is not None and str(model.path) in (used, self._runtime.model.path)
        why_not = _("This model is in use.") if in_use else ""
        if model is not None and not model.can_delete:
            why_not = _("Delete it in the app that installed it.")
        self.delete.setEnabled(model is not None and not why_not)
        self.delete.setToolTip(why_not)
        self.reason.setText(chosen.tip if chosen else "")
        self.reason.setVisible(bool(chosen and chosen.tip))

    def _use(self, row: Row | None) -> None:
        if (model := self._model_of(row)) is not None and model.judgement is not None:
            self.use_requested.emit(model.model.path)


class ModelNotDeleted(KvchatError):
    def __init__(self, error: OSError) -> None:
        super().__init__(
            _("The model could not be deleted"),
            f"{error.filename}: {error.strerror}.",
            _("Check the permissions of the folder."),
        )


def _to_trash(file: Path) -> bool:
    QFile.moveToTrash(str(file))  # its return value differs between PySide versions
    return not file.exists()
