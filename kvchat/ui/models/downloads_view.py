"""The downloads, each with its bar and what can be done about it."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Signal, SignalInstance
from PySide6.QtWidgets import QFrame, QPushButton

from kvchat.library.remote.downloads import RUNS, Download, DownloadState
from kvchat.library.remote.hub import AccessNeeded
from kvchat.ui.base.building import STRETCH, button, column, label, progress_bar, row, styled
from kvchat.ui.widgets.elided import ElidedLabel
from kvchat.ui.widgets.layouts import ScrollPage
from kvchat.words.language import _, beside
from kvchat.words.wording import rough_duration, size

_MOST_HEIGHT = 230  # pixels; about three downloads


class DownloadsView(ScrollPage):
    """Hidden while there is none."""

    pause_requested = Signal(object)  # Download
    resume_requested = Signal(object)
    remove_requested = Signal(object)
    use_requested = Signal(object)
    token_requested = Signal()

    def __init__(self) -> None:
        super().__init__("page")
        self.views: dict[Path, DownloadView] = {}
        self.setAccessibleName(_("Downloads"))
        self._column = column(STRETCH, on=self.ground, spacing=8, margins=0)
        self.hide()

    def show_download(self, download: Download) -> None:
        """Show a download as it stands."""
        view = self.views.get(download.path)
        if view is None:
            view = self.views[download.path] = DownloadView(self)
            self._column.insertWidget(self._column.count() - 1, view)
        view.show_download(download)
        self._fit()

    def drop(self, path: Path) -> None:
        """Take a download away."""
        view = self.views.pop(path, None)
        if view is not None:
            view.hide()
            self._column.removeWidget(view)
            view.deleteLater()
        self._fit()

    def _fit(self) -> None:
        self.setVisible(bool(self.views))
        wanted = sum(view.sizeHint().height() + 8 for view in self.views.values())
        self.setFixedHeight(min(wanted, _MOST_HEIGHT))


class DownloadView(QFrame):
    """One download."""

    def __init__(self, owner: DownloadsView) -> None:
        super().__init__()
        styled(self, "card")
        self.download: Download | None = None
        self.name, self.words, self.bar = ElidedLabel("strong"), label(kind="small", wraps=True), progress_bar("")
        self.pause = self._button(_("Pause"), owner.pause_requested)
        self.resume = self._button(_("Resume"), owner.resume_requested)
        self.again = self._button(_("Try again"), owner.resume_requested)
        self.use = self._button(_("Use it"), owner.use_requested)
        self.remove = self._button(_("Remove"), owner.remove_requested)
        self.token = button(_("Access token…"), owner.token_requested, name=_("Access token"))
        buttons = self.token, self.pause, self.resume, self.again, self.use, self.remove
        above = row((self.name, 1), *buttons, spacing=8)
        column(above, self.bar, self.words, on=self, spacing=6, margins=(14, 10, 10, 10))

    def show_download(self, download: Download) -> None:
        """Show it as it stands."""
        self.download = download
        name, state = download.order.file.name, download.state
        self.name.set_text(name)
        self.bar.setValue(int(1000 * download.done / max(download.total, 1)))
        self.bar.setVisible(state is not DownloadState.DONE)
        self.bar.setAccessibleName(f"{name}: {100 * download.done // max(download.total, 1)} %")
        self.words.setText(download_words(download))
        for choice, wanted in (
            (self.pause, state in RUNS),
            (self.resume, state is DownloadState.PAUSED),
            (self.again, state is DownloadState.FAILED),
            (self.token, isinstance(download.error, AccessNeeded)),
            (self.use, state is DownloadState.DONE),
        ):
            choice.setVisible(wanted)
        for choice in (self.pause, self.resume, self.again, self.use, self.remove):
            choice.setAccessibleName(f"{choice.text()}: {name}")

    def _button(self, words: str, signal: SignalInstance) -> QPushButton:
        return button(words, lambda: signal.emit(self.download))


def download_words(download: Download) -> str:
    """How far a download is: "1.2 GB of 4.9 GB · 12 MB/s · 5 min left"."""
    amount = _("{done} of {total}", done=size(download.done), total=size(download.total))
    match download.state:
        case DownloadState.DONE:
            return _("{total}, complete; its hash is right.", total=size(download.total))
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
