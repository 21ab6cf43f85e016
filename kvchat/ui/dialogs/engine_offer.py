"""Offer to download an engine for the graphics card, with progress and errors."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QComboBox, QWidget

from kvchat.engine.discovery.graphics import Backend, Graphics, driver_advice, suitable_backends
from kvchat.engine_host.setup import EngineDownload, EngineSetup, Stage
from kvchat.errors import KvchatError
from kvchat.library.remote.github import approximate_size
from kvchat.text.formatting import format_rough_duration, format_size
from kvchat.text.language import N_, _, capitalize_first, join_list, join_parts, join_sentences
from kvchat.ui.base.building import button, column, label, progress_bar, row
from kvchat.ui.base.theme import Look, restyle
from kvchat.ui.dialogs.confirm import ask_if_metered
from kvchat.ui.widgets.controls import Card
from kvchat.ui.widgets.entries import ChoiceBox
from kvchat.ui.widgets.layouts import flow

StartTask = Callable[[Coroutine[Any, Any, None]], object]
ENGINE_DOWNLOAD_HELP = N_(
    "kvchat downloads the engine from llama.cpp’s releases on GitHub, verifies its hash and uses it "
    "only if it passes a test. Your current engine stays installed."
)


class EngineOffer(QWidget):
    """Offer to download an engine, with progress and result. All instances show the same download."""

    install_finished = Signal()  # an engine was downloaded and tested

    def __init__(self, look: Look, engines: EngineSetup, start: StartTask, *, standalone: bool = False) -> None:
        """`start` runs a coroutine as a task. If `standalone`, hide until `show_if_gpu_unused` finds an unused GPU."""
        super().__init__()
        self._engines, self._start = engines, start
        self._unsubscribe: Callable[[], None] | None = None
        self.backend_box = ChoiceBox(look, _("Backend"))
        self.backend_box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.download_button = button(_("Download"), self._ask_to_download, "" if standalone else "primary")
        self.bar, self.progress_label = progress_bar(_("Downloading an engine")), label(kind="muted", wraps=True)
        self.cancel_button = button(_("Cancel"), engines.cancel_download, name=_("Cancel the engine download"))
        self.outcome = Card()
        self._choice_page, self._progress_page = QWidget(), QWidget()
        self._choice_page.setLayout(flow(self.backend_box, self.download_button))
        below = row((self.progress_label, 1), self.cancel_button, spacing=10)
        column(self.bar, below, on=self._progress_page, spacing=8, margins=(0, 4, 0, 0))
        self.title, self.explanation = (
            label("", "strong", wraps=True),
            label(_(ENGINE_DOWNLOAD_HELP), "small", wraps=True),
        )
        parts = self.title, self.explanation, self._choice_page, self._progress_page, self.outcome
        column(*parts, on=self, spacing=8, margins=0)
        for widget in (self.outcome, self._progress_page, *((self,) if standalone else (self.title, self.explanation))):
            widget.hide()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._unsubscribe is None:
            self._unsubscribe = self._engines.subscribe(self._show_download)
        self._show_download()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _ask_to_download(self) -> None:
        backend = self.backend_box.currentData()
        what, size = _("an engine with the {kind} backend", kind=backend.value), approximate_size(backend)
        ask_if_metered(self, self._start, what, size, lambda: self._start(self._install(backend)))

    async def _install(self, backend: Backend) -> None:
        try:
            trial = await self._engines.install(backend)
        except KvchatError as error:
            self.show_error(error)
            if not self.isVisible():
                raise
            return
        if trial is None:
            return
        if trial.steps and (failure := trial.steps[-1].error) is not None:
            self.show_error(failure)
        else:
            detail = "\n".join(f"✓ {step.name}: {step.detail}" for step in trial.steps)
            self._show_outcome(_("The new engine works and has been selected"), detail, "", "")
        self.install_finished.emit()

    def show_if_gpu_unused(self) -> None:
        async def show() -> None:
            graphics = await asyncio.to_thread(self._engines.unused_graphics)
            if graphics is not None:
                title = _("Get replies several times faster with your {cards}", cards=gpu_name(graphics))
                self.title.setText(title)
                self.explanation.setText(join_sentences(driver_advice(graphics), _(ENGINE_DOWNLOAD_HELP)))
                self.show_choices(graphics)
            self.setVisible(graphics is not None or self._engines.download is not None)

        self._start(show())

    def show_choices(self, graphics: Graphics) -> None:
        backends = suitable_backends(graphics)
        chosen = self.backend_box.currentData()
        if [self.backend_box.itemData(at) for at in range(self.backend_box.count())] != list(backends):
            self.backend_box.clear()
            for backend in backends:
                self.backend_box.addItem(join_list((backend.value, approximate_size(backend))), backend)
            self.backend_box.setCurrentIndex(max(0, self.backend_box.findData(chosen)))

    def _show_download(self) -> None:
        download = self._engines.download
        self._choice_page.setVisible(download is None)
        self._progress_page.setVisible(download is not None)
        if download is None:
            return
        self.outcome.hide()
        file = download.order.file if download.order and download.stage in (Stage.CHECKING, Stage.FETCHING) else None
        self.bar.setRange(0, 1000 if file is not None else 0)  # 0: indeterminate
        if file is not None:
            self.bar.setValue(int(1000 * download.downloaded_bytes / max(file.size, 1)))
        self.progress_label.setText(_progress_text(download))

    def show_error(self, error: KvchatError) -> None:
        self._show_outcome(error.title, error.detail, error.advice, "bad")

    def _show_outcome(self, title: str, detail: str, advice: str, tone: str) -> None:
        for widget in (self.outcome, self.outcome.title):
            restyle(widget, "tone", tone)
        self.outcome.set_text(title, detail, advice)
        self.outcome.show()


def gpu_name(graphics: Graphics) -> str:
    return _("{makers} GPU", makers=_(" and ").join(maker.value for maker in graphics.vendors))


def _progress_text(download: EngineDownload) -> str:
    """Describe the progress, for example "llama.cpp-b11457-vulkan: 12 MB of 32 MB · 5 MB/s · 4 s left"."""
    order, stage, steps = download.order, _(download.stage.value), download.steps
    if order is None:
        return f"{capitalize_first(stage)}…"
    file = order.file
    if download.stage is Stage.TESTING and steps:
        return join_sentences(f"{file.name}: {stage}", f"{steps[-1].name}: {steps[-1].detail}")
    if download.stage is not Stage.FETCHING:
        return f"{file.name}: {stage}…"
    done, size = format_size(download.downloaded_bytes), format_size(file.size)
    parts = [_("{name}: {done} of {size}", name=file.name, done=done, size=size)]
    if download.rate > 0:
        left = format_rough_duration((file.size - download.downloaded_bytes) / download.rate)
        parts += [_("{size}/s", size=format_size(download.rate)), _("{time} left", time=left)]
    return join_parts(parts)
