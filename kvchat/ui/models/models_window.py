"""The models window: models on this computer, downloadable models, and the downloads below both."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import QFile, Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QButtonGroup, QFileDialog, QFrame, QMenu, QStackedWidget, QWidget

from kvchat.chat.events import EngineChanged, Event, SettingsChanged
from kvchat.errors import KvchatError
from kvchat.library.model_library import FoundModel, JudgedModel, UnreadableFolder
from kvchat.library.remote.downloads import ACTIVE_STATES, Download, DownloadState
from kvchat.library.remote.hub import AccessNeeded
from kvchat.library.remote.starter import is_starter_downloaded
from kvchat.runtime import Runtime
from kvchat.text.formatting import format_rough_duration, format_size
from kvchat.text.language import N_, _, join_list, join_parts, plural
from kvchat.ui.base.building import STRETCH, button, column, label, progress_bar, row, styled
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import ask_if_metered, confirm, file_dialog
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.models.first_start import starter_words
from kvchat.ui.models.hub_models import ModelsHub, TokenDialog
from kvchat.ui.models.model_choice import found_row, in_order
from kvchat.ui.widgets.controls import Card
from kvchat.ui.widgets.layouts import ElidedLabel, ScrollPage, flow
from kvchat.ui.widgets.lists import Row, RowList
from kvchat.ui.widgets.text_search import ClearableField

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
        self.list.row_activated.connect(self._use)
        self.list.current_changed.connect(self._show_current)
        self.status, self.reason = label(kind="small", wraps=True), label(kind="small", wraps=True)
        tip = _("New chats use this model. Existing chats keep their model.")
        self.use = button(_("Use this model"), lambda: self._use(self.list.current), "primary", tip=tip)
        self.delete = button(_("Delete…"), self._ask_delete, name=_("Delete this model"))
        self.folders = button(_("Folders…"), self.open_folders, name=_("Model folders"))
        self.none = Card()
        self.none.set_text(_("No models found on this computer"), _(_NO_MODEL), "")
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
                size=format_size(model.size),
            )
            title = _("Delete {model}?", model=model.name)
            confirm(self, title, words, _("Delete"), lambda: self._panel.run(self._delete(model)))

    async def _delete(self, model: FoundModel) -> None:
        """Move the files to the trash; if the folder has none, ask to delete them for good."""
        files = model.files
        for file in files:
            await asyncio.to_thread(QFile.moveToTrash, str(file))  # its return value differs between PySide versions
        left = [file for file in files if file.exists()]
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
            words = _("This disk has no trash. {size} will be permanently deleted.", size=format_size(model.size))
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
        words = [plural(count, "{count} model", "{count} models")] if count else []
        words += [_("{path} cannot be read.", path=folder.path) for folder in unreadable]
        self.status.setText(join_parts(words))

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
        title, advice = _("The model could not be deleted"), _("Check the permissions of the folder.")
        super().__init__(title, f"{error.filename}: {error.strerror}.", advice)


class ModelsWindow(Panel):
    """Window that searches only once opened."""

    starter_requested = Signal()
    model_used = Signal()  # another model was chosen and is loading

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Models"), parent, size=(760, 640), least=(480, 440))
        self.follow(runtime.models.downloads.subscribe, self._download_changed)
        self._token = TokenDialog(runtime, look, runner, self)
        self.here, self.hub = ModelsHere(runtime, look, self), ModelsHub(runtime, look, self)
        self.downloads = DownloadsView(self, runtime)
        self._pages, self.tabs = QStackedWidget(), QButtonGroup(self)
        for number, (words, page) in enumerate(((_("On this computer"), self.here), (_("Download"), self.hub))):
            tab = button(words, kind="tab")
            tab.setCheckable(True)
            self.tabs.addButton(tab, number)
            self._pages.addWidget(page)
        token = button(_("Access token…"), self.open_token, "link", name=_("Hugging Face access token"))
        above = row(*self.tabs.buttons(), STRETCH, token, spacing=6)
        column(above, self.notices, (self._pages, 1), self.downloads, on=self, spacing=12, margins=(20, 16, 20, 16))
        self.tabs.idToggled.connect(self._show_page)
        self.tabs.button(0).setChecked(True)
        self.here.use_requested.connect(lambda path: self.run(self.use(path)))
        self.here.more.clicked.connect(self.tabs.button(1).click)
        self.here.starter.clicked.connect(self.starter_requested)
        self.here.starter.clicked.connect(self.close)
        self.hub.token.clicked.connect(self.open_token)

    def open_here(self) -> None:
        self._come(self.here)
        self.here.list.setFocus()

    def open_repository(self, repository: str) -> None:
        self._come(self.hub)
        self.hub.open_repository(repository)

    def look_for(self, name: str) -> None:
        """Open with this name in the search field, without a network request."""
        self._come(self.hub)
        self.hub.field.setText(name)
        self.hub.field.setFocus()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.here.look()

        async def find_downloads() -> None:
            await self._runtime.models.downloads.find_unfinished()
            for download in self._runtime.models.downloads.all():
                self.downloads.show_download(download)

        self.run(find_downloads())

    def open_token(self) -> TokenDialog:
        self._token.bring_forward()
        return self._token

    def _come(self, page: QWidget) -> None:
        self.tabs.button(self._pages.indexOf(page)).setChecked(True)
        self.bring_forward()

    def _show_page(self, number: int, on: bool) -> None:
        if on:
            self._pages.setCurrentIndex(number)
            if self._pages.currentWidget() is self.hub:
                self.hub.open()

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, SettingsChanged | EngineChanged):
            self.here.refresh()

    def _download_changed(self, download: Download) -> None:
        self.downloads.show_download(download)
        if download.state is DownloadState.DONE:
            self.here.look()

    async def use(self, path: Path) -> None:
        """Use a model and close. Raises KvchatError, which is shown here."""
        await self._runtime.use_model(path)
        self.close()
        self.model_used.emit()


_MAX_HEIGHT = 230  # pixels; about three downloads


class DownloadsView(ScrollPage):
    def __init__(self, window: ModelsWindow, runtime: Runtime) -> None:
        super().__init__("page")
        self._window, self._runtime = window, runtime
        self.views: dict[Path, DownloadView] = {}
        self.setAccessibleName(_("Downloads"))
        self._column = column(STRETCH, on=self.content, spacing=8, margins=0)
        self.hide()

    def show_download(self, download: Download) -> None:
        view = self.views.get(download.path)
        if view is None:
            view = self.views[download.path] = DownloadView(self, self._window, self._runtime, download)
            self._column.insertWidget(self._column.count() - 1, view)
        view.show_download(download)
        self._fit()

    async def remove(self, path: Path) -> None:
        await self._runtime.models.downloads.remove(path)
        if (view := self.views.pop(path, None)) is not None:
            view.hide()
            self._column.removeWidget(view)
            view.deleteLater()
        self._fit()

    def _fit(self) -> None:
        self.setVisible(bool(self.views))
        wanted = sum(view.sizeHint().height() + 8 for view in self.views.values())
        self.setFixedHeight(min(wanted, _MAX_HEIGHT))


class DownloadView(QFrame):
    def __init__(self, owner: DownloadsView, window: ModelsWindow, runtime: Runtime, download: Download) -> None:
        super().__init__()
        styled(self, "card")
        self.download = download
        self._owner, self._window, self._downloads = owner, window, runtime.models.downloads
        self.name, self.words, self.bar = ElidedLabel("strong"), label(kind="small", wraps=True), progress_bar("")
        self.pause = button(_("Pause"), lambda: self._downloads.pause(self.download.path))
        self.resume, self.again = button(_("Resume"), self._resume), button(_("Try again"), self._resume)
        self.use = button(_("Use model"), lambda: window.run(window.use(self.download.path)))
        self.remove = button(_("Remove"), self._ask_remove)
        self.token = button(_("Access token…"), window.open_token, name=_("Access token"))
        buttons = self.token, self.pause, self.resume, self.again, self.use, self.remove
        above = row((self.name, 1), *buttons, spacing=8)
        column(above, self.bar, self.words, on=self, spacing=6, margins=(14, 10, 10, 10))

    def show_download(self, download: Download) -> None:
        self.download = download
        name, state = download.order.file.name, download.state
        self.name.set_text(name)
        self.bar.setValue(int(1000 * download.done / max(download.total, 1)))
        self.bar.setVisible(state is not DownloadState.DONE)
        self.bar.setAccessibleName(f"{name}: {100 * download.done // max(download.total, 1)} %")
        self.words.setText(download_words(download))
        for choice, wanted in (
            (self.pause, state in ACTIVE_STATES),
            (self.resume, state is DownloadState.PAUSED),
            (self.again, state is DownloadState.FAILED),
            (self.token, isinstance(download.error, AccessNeeded)),
            (self.use, state is DownloadState.DONE),
        ):
            choice.setVisible(wanted)
        for choice in (self.pause, self.resume, self.again, self.use, self.remove):
            choice.setAccessibleName(f"{choice.text()}: {name}")

    def _resume(self) -> None:
        order = self.download.order
        what = join_list((order.file.name, format_size(self.download.total - self.download.done)))
        ask_if_metered(self._window, self._window.run, what, lambda: self._downloads.begin(order))

    def _ask_remove(self) -> None:
        download, window, remove = self.download, self._window, self._owner.remove
        if download.state is DownloadState.DONE or not download.done:
            window.run(remove(download.path))
            return
        done, name = format_size(download.done), download.order.file.name
        words = _("The {done} of {name} downloaded so far will be deleted.", done=done, name=name)
        confirm(window, _("Remove this download?"), words, _("Remove"), lambda: window.run(remove(download.path)))


def download_words(download: Download) -> str:
    """Return the progress: "1.2 GB of 4.9 GB · 12 MB/s · 5 min left"."""
    amount = _("{done} of {total}", done=format_size(download.done), total=format_size(download.total))
    match download.state:
        case DownloadState.DONE:
            return _("{total}, complete, hash verified.", total=format_size(download.total))
        case DownloadState.FAILED if download.error is not None:
            return join_parts((amount, str(download.error)))
        case DownloadState.FETCHING if download.rate > 0:
            left = _("{time} left", time=format_rough_duration(download.seconds_left or 0))
            return join_parts((amount, _("{size}/s", size=format_size(download.rate)), left))
        case DownloadState.FETCHING:
            return amount
        case _:
            return join_parts((amount, _(download.state.value)))
