"""The models window: those on this computer, those that can be had, and the downloads below both."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QButtonGroup, QStackedWidget, QWidget

from kvchat.chat.events import EngineChanged, Event, SettingsChanged
from kvchat.library.remote.downloads import Download, DownloadState
from kvchat.runtime import Runtime
from kvchat.ui.base.building import STRETCH, button, column, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.dialogs.metered import ask_if_metered
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.models.downloads_view import DownloadsView
from kvchat.ui.models.hub_models import ModelsHub
from kvchat.ui.models.local_models import ModelsHere
from kvchat.ui.models.token_dialog import TokenDialog
from kvchat.words.language import _, listed
from kvchat.words.wording import size


class ModelsWindow(Panel):
    """Finds nothing and asks nothing before it is opened."""

    starter_requested = Signal()
    model_used = Signal()  # another model was chosen and is being loaded

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(look, runner, _("Models"), parent, size=(760, 640), least=(480, 440))
        self._runtime = runtime
        self.follow(runtime.events.subscribe, self._hear)
        self.follow(runtime.models.subscribe, self._download_changed)
        self._token: TokenDialog | None = None
        self.here, self.hub = ModelsHere(runtime, look, self), ModelsHub(runtime, look, self)
        self.downloads = DownloadsView()
        self._pages = QStackedWidget()
        self.tabs = QButtonGroup(self)
        self._build()
        self._connect()

    def open_here(self) -> None:
        """Come to the front with the models on this computer."""
        self._come(self.here)
        self.here.list.setFocus()

    def open_repository(self, repository: str) -> None:
        """Come to the front with the files of a repository, to choose one."""
        self._come(self.hub)
        self.hub.open_repository(repository)

    def look_for(self, name: str) -> None:
        """Come to the front with this to be searched for; nothing is asked of the network yet."""
        self._come(self.hub)
        self.hub.field.setText(name)
        self.hub.field.setFocus()

    def showEvent(self, event: QShowEvent) -> None:
        """Look for models and for downloads an earlier kvchat has left; follow what changes from now on."""
        super().showEvent(event)
        self.here.look()
        self.run(self._find_downloads())

    def open_token(self) -> TokenDialog:
        """Ask for the access token."""
        if self._token is None:
            self._token = TokenDialog(self._runtime.models.token, self._look, self.runner, self)
        self._token.bring_forward()
        return self._token

    def _build(self) -> None:
        tabs = []
        for number, (words, page) in enumerate(((_("On this computer"), self.here), (_("Get more"), self.hub))):
            tab = button(words, kind="tab")
            tab.setCheckable(True)
            self.tabs.addButton(tab, number)
            self._pages.addWidget(page)
            tabs.append(tab)
        token = button(_("Access token…"), self.open_token, "link", name=_("Access token for Hugging Face"))
        parts = row(*tabs, STRETCH, token, spacing=6), self.notices, (self._pages, 1), self.downloads
        column(*parts, on=self, spacing=12, margins=(20, 16, 20, 16))

    def _connect(self) -> None:
        self.tabs.idToggled.connect(self._show_page)
        self.tabs.button(0).setChecked(True)
        self.here.use_requested.connect(lambda path: self.run(self._use(path)))
        self.here.more.clicked.connect(self.tabs.button(1).click)
        self.here.starter.clicked.connect(self.starter_requested)
        self.here.starter.clicked.connect(self.close)
        self.hub.token.clicked.connect(self.open_token)
        self.downloads.token_requested.connect(self.open_token)
        self.downloads.pause_requested.connect(lambda download: self._runtime.models.downloads.pause(download.path))
        self.downloads.resume_requested.connect(self._resume)
        self.downloads.use_requested.connect(lambda download: self.run(self._use(download.path)))
        self.downloads.remove_requested.connect(self._ask_remove)

    def _come(self, page: QWidget) -> None:
        self.tabs.button(self._pages.indexOf(page)).setChecked(True)
        self.bring_forward()

    def _show_page(self, number: int, on: bool) -> None:
        if not on:
            return
        self._pages.setCurrentIndex(number)
        if self._pages.currentWidget() is self.hub:
            self.hub.open()

    def _hear(self, event: Event) -> None:
        if isinstance(event, SettingsChanged | EngineChanged):
            self.here.refresh()

    def _download_changed(self, download: Download) -> None:
        self.downloads.show_download(download)
        if download.state is DownloadState.DONE:
            self.here.look()

    async def _find_downloads(self) -> None:
        await self._runtime.models.downloads.find_unfinished()
        for download in self._runtime.models.downloads.all():
            self.downloads.show_download(download)

    async def _use(self, path: Path) -> None:
        """What happens next is seen in the main window. What is wrong with the model is told here."""
        await self._runtime.use_model(path)
        self.close()
        self.model_used.emit()

    def _resume(self, download: Download) -> None:
        what = listed((download.order.file.name, size(download.total - download.done)))
        ask_if_metered(self, self.run, what, lambda: self._runtime.models.downloads.begin(download.order))

    def _ask_remove(self, download: Download) -> None:
        if download.state is DownloadState.DONE or not download.done:
            self.run(self._remove(download.path))
            return
        confirm(
            self,
            _("Remove this download?"),
            _(
                "{done} of {name} have arrived; they are deleted.",
                done=size(download.done),
                name=download.order.file.name,
            ),
            _("Remove"),
            lambda: self.run(self._remove(download.path)),
        )

    async def _remove(self, path: Path) -> None:
        await self._runtime.models.downloads.remove(path)
        self.downloads.drop(path)
