"""The models window: local models, downloadable models, and the downloads below both."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QButtonGroup, QFrame, QStackedWidget, QWidget

from kvchat.chat.events import EngineChanged, Event, SettingsChanged
from kvchat.library.remote.downloads import ACTIVE_STATES, Download, DownloadState
from kvchat.library.remote.hub import AccessNeeded
from kvchat.runtime import Runtime
from kvchat.ui.base.building import STRETCH, button, column, label, progress_bar, row, styled
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.dialogs.metered import ask_if_metered
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.models.hub_models import ModelsHub, TokenDialog
from kvchat.ui.models.local_models import ModelsHere
from kvchat.ui.widgets.layouts import ElidedLabel, ScrollPage
from kvchat.words.language import _, beside, listed
from kvchat.words.wording import rough_duration, size


class ModelsWindow(Panel):
    """Window that searches only once opened."""

    starter_requested = Signal()
    model_used = Signal()  # another model was chosen and is loading

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Models"), parent, size=(760, 640), least=(480, 440))
        self.follow(runtime.models.subscribe, self._download_changed)
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

    def _hear(self, event: Event) -> None:
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


_MOST_HEIGHT = 230  # pixels; about three downloads


class DownloadsView(ScrollPage):
    def __init__(self, window: ModelsWindow, runtime: Runtime) -> None:
        super().__init__("page")
        self._window, self._runtime = window, runtime
        self.views: dict[Path, DownloadView] = {}
        self.setAccessibleName(_("Downloads"))
        self._column = column(STRETCH, on=self.ground, spacing=8, margins=0)
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
        self.setFixedHeight(min(wanted, _MOST_HEIGHT))


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
        what = listed((order.file.name, size(self.download.total - self.download.done)))
        ask_if_metered(self._window, self._window.run, what, lambda: self._downloads.begin(order))

    def _ask_remove(self) -> None:
        download, window, remove = self.download, self._window, self._owner.remove
        if download.state is DownloadState.DONE or not download.done:
            window.run(remove(download.path))
            return
        done, name = size(download.done), download.order.file.name
        confirm(
            window,
            _("Remove this download?"),
            _("The {done} of {name} downloaded so far will be deleted.", done=done, name=name),
            _("Remove"),
            lambda: window.run(remove(download.path)),
        )


def download_words(download: Download) -> str:
    """Return the progress: "1.2 GB of 4.9 GB · 12 MB/s · 5 min left"."""
    amount = _("{done} of {total}", done=size(download.done), total=size(download.total))
    match download.state:
        case DownloadState.DONE:
            return _("{total}, complete, hash verified.", total=size(download.total))
        case DownloadState.FAILED if download.error is not None:
            error = download.error
            return beside((amount, str(error)))
        case DownloadState.FETCHING:
            parts = [amount]
            if download.rate > 0:
                parts += [
                    _("{size}/s", size=size(download.rate)),
                    _("{time} left", time=rough_duration(download.seconds_left or 0)),
                ]
            return beside(parts)
        case _:
            return beside((amount, _(download.state.value)))
