"""The models window: models on this computer, models to download, and the downloads in progress."""

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
from kvchat.library.model_library import FoundModel, UnreadableFolder
from kvchat.library.remote.downloads import ACTIVE_STATES, Download, DownloadState
from kvchat.library.remote.hub import AccessNeeded
from kvchat.library.remote.starter import is_starter_downloaded
from kvchat.runtime import Runtime
from kvchat.text.formatting import format_percent, format_rough_duration, format_size
from kvchat.text.language import N_, _, join_parts, plural
from kvchat.ui.base.building import STRETCH, button, column, label, progress_bar, row, show_text, styled
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import ask_if_metered, confirm, file_dialog
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.models.first_start import starter_title
from kvchat.ui.models.hub_models import AccessTokenDialog, HubModelsPage
from kvchat.ui.models.model_choice import found_row, model_sort_key
from kvchat.ui.widgets.controls import Card
from kvchat.ui.widgets.layouts import ElidedLabel, ScrollPage, flow
from kvchat.ui.widgets.lists import RowList
from kvchat.ui.widgets.text_search import ClearableField

_NO_MODEL = N_(
    "Models are .gguf files. kvchat looks for them in its own folder, in the folders of other apps "
    "and in the folders you add."
)
_MODELS_PER_REFRESH = 25  # models per refresh of the list; the first scan of hundreds takes seconds


class LocalModelsPage(QWidget):
    use_requested = Signal(object)  # Path

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__()
        self._runtime, self._panel = runtime, panel
        self._models: list[FoundModel] = []
        self._is_searching = False
        self.filter = ClearableField(look, _("Filter the models by name"), _("Filter by name"))
        self.filter.textChanged.connect(self.refresh)
        self.list = RowList(look, _("Models on this computer"))
        self.list.row_activated.connect(lambda _: self._use_current())
        self.list.current_changed.connect(self._show_current)
        self.status, self.reason = label(kind="small", wraps=True), label(kind="small", wraps=True)
        tip = _("New chats use this model. Existing chats keep their model.")
        self.use_button = button(_("Use this model"), self._use_current, "primary", tip=tip)
        self.delete_button = button(_("Delete…"), self._ask_delete, name=_("Delete this model"))
        self.folders_button = button(_("Folders…"), self.open_folders, name=_("Model folders"))
        self.empty_card = Card()
        self.empty_card.set_text(_("No models found on this computer"), _(_NO_MODEL), "")
        self.starter_button = self.empty_card.add_button(starter_title(is_downloaded=False), "primary")
        self.download_button = self.empty_card.add_button(_("Download another…"))
        self.empty_card.add_button(_("Choose a folder…"), "", self._ask_folder)
        self.empty_card.hide()
        below = row(
            (self.status, 1), flow(self.folders_button, self.delete_button, self.use_button, at_end=True), spacing=8
        )
        parts = self.filter, self.empty_card, (self.list, 1), self.reason, below
        column(*parts, on=self, spacing=8, margins=0)
        self.refresh()

    def search(self) -> None:
        if not self._is_searching:
            self._is_searching = True
            self._panel.run(self._search())

    async def _search(self) -> None:
        models: list[FoundModel] = []

        def add(model: FoundModel) -> None:
            models.append(model)
            if len(models) % _MODELS_PER_REFRESH == 0 and len(models) > len(self._models):
                self._models = list(models)
                self.refresh()

        try:
            self._show_status(())
            is_downloaded = await asyncio.to_thread(is_starter_downloaded, self._runtime.paths.models)
            self.starter_button.setText(starter_title(is_downloaded=is_downloaded))
            judge = await self._runtime.engine.model_judge()
            unreadable = await self._runtime.models.find(judge, add, self._runtime.settings.model_path)
        finally:
            self._is_searching = False
        self._models = models
        self.refresh()
        self._show_status(unreadable)

    def _show_status(self, unreadable: Sequence[UnreadableFolder]) -> None:
        is_empty = not self._is_searching and not self._models
        self.empty_card.setVisible(is_empty)
        for widget in (self.filter, self.use_button, self.delete_button):
            widget.setVisible(not is_empty)
        parts = [_("{path} cannot be read.", path=folder.path) for folder in unreadable]
        if count := len(self._models):
            parts = [plural(count, "{count} model", "{count} models"), *parts]
        self.status.setText(_("Looking for models…") if self._is_searching else join_parts(parts))

    def open_folders(self) -> QMenu:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction(_("Add a folder…"), self._ask_folder)
        menu.addAction(_("Scan again"), self.search)
        folders = self._runtime.settings.model_folders
        if folders:
            menu.addSeparator()
        for folder in folders:
            others = [other for other in folders if other != folder]
            title = _("Stop scanning {folder}", folder=folder).replace("&", "&&")
            menu.addAction(title, partial(self.set_folders, others))
        menu.popup(self.folders_button.mapToGlobal(self.folders_button.rect().topLeft()))
        return menu

    def _ask_folder(self) -> None:
        dialog = file_dialog(self, _("Choose a folder with models"), QFileDialog.FileMode.Directory)
        dialog.fileSelected.connect(lambda path: self.set_folders([*self._runtime.settings.model_folders, path]))
        dialog.open()

    def set_folders(self, folders: Sequence[str]) -> None:
        async def apply() -> None:
            unique = tuple(dict.fromkeys(folders))
            await self._runtime.apply_settings(dataclasses.replace(self._runtime.settings, model_folders=unique))
            self.search()

        self._panel.run(apply())

    def refresh(self) -> None:
        terms = self.filter.text().lower().split()
        path = self._runtime.settings.model_path
        rows = [found_row(model, Path(path) if path else None) for model in sorted(self._models, key=model_sort_key)]
        self.list.show_rows([row for row in rows if all(word in f"{row.title} {row.detail}".lower() for word in terms)])
        self._show_current()

    def _show_current(self) -> None:
        row, model, used = self.list.current, self._current, self._runtime.settings.model_path
        self.use_button.setEnabled(model is not None and model.judgement is not None)
        reason = ""
        if model is not None and str(model.path) in (used, self._runtime.model.path):
            reason = _("This model is in use.")
        if model is not None and not model.can_delete:
            reason = _("Delete it in the app that installed it.")
        self.delete_button.setEnabled(model is not None and not reason)
        self.delete_button.setToolTip(reason)
        show_text(self.reason, row.tip if row else "")

    @property
    def _current(self) -> FoundModel | None:
        row = self.list.current
        return next((model for model in self._models if row and model.path == row.value), None)

    def _use_current(self) -> None:
        if (model := self._current) is not None and model.judgement is not None:
            self.use_requested.emit(model.path)

    def _ask_delete(self) -> None:
        if (model := self._current) is not None:
            text = _(
                "This moves {size} to the trash. Your chats with this model are not deleted, but "
                "need another model to continue.",
                size=format_size(model.size),
            )
            title = _("Delete {model}?", model=model.name)
            confirm(self, title, text, _("Delete"), lambda: self._panel.run(self._delete(model)))

    async def _delete(self, model: FoundModel) -> None:
        """Move the files to the trash. If the disk has no trash, ask whether to delete them permanently."""
        for file in model.files:
            await asyncio.to_thread(QFile.moveToTrash, str(file))  # its return value differs between PySide versions
        remaining = [file for file in model.files if file.exists()]
        self.search()

        async def delete() -> None:
            try:
                for file in remaining:
                    await asyncio.to_thread(file.unlink, missing_ok=True)
            except OSError as error:
                detail = f"{error.filename}: {error.strerror}."
                advice = _("Check the permissions of the folder.")
                raise KvchatError(_("The model could not be deleted"), detail, advice) from error
            finally:
                self.search()

        if remaining:
            text = _("This disk has no trash. {size} will be permanently deleted.", size=format_size(model.size))
            title = _("Permanently delete {model}?", model=model.name)
            confirm(self, title, text, _("Delete"), lambda: self._panel.run(delete()))


class ModelsWindow(Panel):
    starter_requested = Signal()
    model_used = Signal()  # another model was chosen and is loading

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Models"), parent, size=(760, 640), min_size=(480, 440))
        self.subscribe_while_open(runtime.models.downloads.subscribe, self._download_changed)
        self._token = AccessTokenDialog(runtime, look, runner, self)
        self.local, self.hub = LocalModelsPage(runtime, look, self), HubModelsPage(runtime, look, self)
        self.downloads = DownloadsView(self, runtime)
        self._pages, self.tabs = QStackedWidget(), QButtonGroup(self)
        for number, (title, page) in enumerate(((_("On this computer"), self.local), (_("Download"), self.hub))):
            tab = button(title, kind="tab")
            tab.setCheckable(True)
            self.tabs.addButton(tab, number)
            self._pages.addWidget(page)
        token = button(_("Access token…"), self.open_access_token, "link", name=_("Hugging Face access token"))
        above = row(*self.tabs.buttons(), STRETCH, token, spacing=6)
        column(above, self.notices, (self._pages, 1), self.downloads, on=self, spacing=12, margins=(20, 16, 20, 16))
        self.tabs.idToggled.connect(self._show_page)
        self.tabs.button(0).setChecked(True)
        self.local.use_requested.connect(lambda path: self.run(self.use(path)))
        self.local.download_button.clicked.connect(self.tabs.button(1).click)
        self.local.starter_button.clicked.connect(self.starter_requested)
        self.local.starter_button.clicked.connect(self.close)
        self.hub.token_button.clicked.connect(self.open_access_token)

    def open_local(self) -> None:
        self._open_page(self.local)
        self.local.list.setFocus()

    def open_repository(self, repository: str) -> None:
        self._open_page(self.hub)
        self.hub.open_repository(repository)

    def open_search(self, name: str) -> None:
        """Show the download page with this text in its search field, without sending a request."""
        self._open_page(self.hub)
        self.hub.field.setText(name)
        self.hub.field.setFocus()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.local.search()

        async def find_downloads() -> None:
            await self._runtime.models.downloads.find_unfinished()
            for download in self._runtime.models.downloads.all():
                self.downloads.show_download(download)

        self.run(find_downloads())

    def open_access_token(self) -> AccessTokenDialog:
        self._token.bring_forward()
        return self._token

    def _open_page(self, page: QWidget) -> None:
        self.tabs.button(self._pages.indexOf(page)).setChecked(True)
        self.bring_forward()

    def _show_page(self, number: int, is_chosen: bool) -> None:
        if is_chosen:
            self._pages.setCurrentIndex(number)
            if self._pages.currentWidget() is self.hub:
                self.hub.load_if_empty()

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, SettingsChanged | EngineChanged):
            self.local.refresh()

    def _download_changed(self, download: Download) -> None:
        self.downloads.show_download(download)
        if download.state is DownloadState.DONE:
            self.local.search()

    async def use(self, path: Path) -> None:
        """Use a model, then close the window. Raises KvchatError."""
        await self._runtime.use_model(path)
        self.close()
        self.model_used.emit()


_MAX_DOWNLOADS_HEIGHT = 230  # pixels; about three downloads


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
        height = sum(view.sizeHint().height() + 8 for view in self.views.values())
        self.setFixedHeight(min(height, _MAX_DOWNLOADS_HEIGHT))


class DownloadView(QFrame):
    def __init__(self, owner: DownloadsView, window: ModelsWindow, runtime: Runtime, download: Download) -> None:
        super().__init__()
        styled(self, "card")
        self.download = download
        self._owner, self._window, self._downloads = owner, window, runtime.models.downloads
        self.name, self.progress, self.bar = ElidedLabel("strong"), label(kind="small", wraps=True), progress_bar("")
        self.pause_button = button(_("Pause"), lambda: self._downloads.pause(self.download.path))
        self.resume_button, self.retry_button = button(_("Resume"), self._resume), button(_("Try again"), self._resume)
        self.use_button = button(_("Use model"), lambda: window.run(window.use(self.download.path)))
        self.remove_button = button(_("Remove"), self._ask_remove)
        self.token_button = button(_("Access token…"), window.open_access_token, name=_("Access token"))
        left = self.token_button, self.pause_button, self.resume_button
        above = row((self.name, 1), *left, self.retry_button, self.use_button, self.remove_button, spacing=8)
        column(above, self.bar, self.progress, on=self, spacing=6, margins=(14, 10, 10, 10))

    def show_download(self, download: Download) -> None:
        self.download = download
        name, state = download.order.file.name, download.state
        self.name.set_text(name)
        share = download.downloaded_bytes / max(download.total, 1)
        self.bar.setValue(int(1000 * share))
        self.bar.setVisible(state is not DownloadState.DONE)
        self.bar.setAccessibleName(f"{name}: {format_percent(share)}")
        self.progress.setText(describe_download(download))
        for choice, is_shown in (
            (self.pause_button, state in ACTIVE_STATES),
            (self.resume_button, state is DownloadState.PAUSED),
            (self.retry_button, state is DownloadState.FAILED),
            (self.token_button, isinstance(download.error, AccessNeeded)),
            (self.use_button, state is DownloadState.DONE),
        ):
            choice.setVisible(is_shown)
        for choice in (self.pause_button, self.resume_button, self.retry_button, self.use_button, self.remove_button):
            choice.setAccessibleName(f"{choice.text()}: {name}")

    def _resume(self) -> None:
        order = self.download.order
        size = format_size(self.download.total - self.download.downloaded_bytes)
        ask_if_metered(self._window, self._window.run, order.file.name, size, lambda: self._downloads.start(order))

    def _ask_remove(self) -> None:
        download, window, remove = self.download, self._window, self._owner.remove
        if download.state is DownloadState.DONE or not download.downloaded_bytes:
            window.run(remove(download.path))
            return
        done, name = format_size(download.downloaded_bytes), download.order.file.name
        terms = _("The {done} of {name} downloaded so far will be deleted.", done=done, name=name)
        confirm(window, _("Remove this download?"), terms, _("Remove"), lambda: window.run(remove(download.path)))


def describe_download(download: Download) -> str:
    """Describe the progress, for example "1.2 GB of 4.9 GB · 12 MB/s · 5 min left"."""
    amount = _("{done} of {total}", done=format_size(download.downloaded_bytes), total=format_size(download.total))
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
