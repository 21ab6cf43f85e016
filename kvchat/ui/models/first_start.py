"""The first-start page: detected hardware, a choice of models, and a download of an engine for an unused graphics card.

The user can skip every step and do it later.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QCheckBox, QFileDialog, QLabel, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from kvchat.engine.discovery.engines import find_engine
from kvchat.errors import KvchatError
from kvchat.library.memory.verdict import Verdict, judge_size
from kvchat.library.model_library import FoundModel
from kvchat.library.remote.starter import fetch_starter, is_starter_downloaded, starter_path
from kvchat.runtime import Runtime
from kvchat.system.login import can_start_at_login, start_at_login, starts_at_login
from kvchat.text.formatting import format_size
from kvchat.text.language import _, join_parts
from kvchat.ui.base.building import STRETCH, button, column, label, progress_bar, row
from kvchat.ui.base.icons import app_icon
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look, restyle
from kvchat.ui.dialogs.confirm import ask_if_metered, file_dialog
from kvchat.ui.dialogs.engine_offer import EngineOffer
from kvchat.ui.models.model_choice import found_row
from kvchat.ui.widgets.controls import Card
from kvchat.ui.widgets.layouts import ElidedButton, ScrollPage

STARTER_SIZE = 98_000_000  # model size, bytes
_MAX_LOCAL_MODELS = 3
_WIDTH_IN_LETTERS = 66  # width of the page in average characters


class FirstStart(QWidget):
    def __init__(
        self, runtime: Runtime, look: Look, runner: TaskRunner, use: Callable[[Path], Coroutine[Any, Any, None]]
    ) -> None:
        """`use` loads a model file."""
        super().__init__()
        self._runtime, self._runner, self._use_model = runtime, runner, use
        self._download: asyncio.Task[None] | None = None
        self._has_starter = False
        self.engine_offer = EngineOffer(look, runtime.engines, runner.start, standalone=True)
        self.engine_offer.install_finished.connect(self._load_facts)  # larger models may fit now
        self.machine_label, self.storage_label = label(kind="small", wraps=True), label(kind="small", wraps=True)
        self.local_model_buttons: list[QPushButton] = []  # models already present
        self.login_box = QCheckBox(_("Start kvchat at login, in the tray"))
        self.login_box.clicked.connect(lambda on: runner.start(asyncio.to_thread(start_at_login, on)))
        self.setObjectName("firstStart")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.starter_button = _widen(button(starter_title(is_downloaded=False), self.fetch_starter, "primary"))
        self.models_button = _widen(button(_("Find or download another model…")))
        self.choose_file_button = _widen(
            button(_("Choose a model file…"), lambda: open_gguf_dialog(self, lambda path: runner.start(use(path))))
        )
        self.other_computer_button = _widen(button(_("Use the models of another computer…")))
        self.back_button = _widen(button(_("Not now"), kind="flat"))
        self.error_card = Card()
        for widget in (self.error_card, self.error_card.title):
            widget.setProperty("tone", "bad")
        self.error_card.hide()
        area = ScrollPage("page")
        row(STRETCH, (self._build_column(), 1000), STRETCH, on=area.content)
        column(area, on=self, margins=0)

    def show_choices(self) -> None:
        self._show_download(False)
        self.error_card.hide()
        self.engine_offer.show_if_gpu_unused()
        self._load_facts()

    def show_progress(self, done: int, total: int) -> None:
        """Show the progress of the download in bytes; `total` is 0 while unknown."""
        self._show_download(True)
        self.bar.setRange(0, 1000 if total else 0)
        self.bar.setValue(int(1000 * done / total) if total else 0)
        progress = _("{done} of {total}", done=format_size(done), total=format_size(total))
        self.progress_label.setText(progress if total else _("{done} so far", done=format_size(done)))

    @property
    def is_fetching(self) -> bool:
        return not self._progress.isHidden()

    def show_error(self, error: KvchatError) -> None:
        self._show_download(False)
        self.error_card.set_text(error.title, error.detail, error.advice)
        self.error_card.show()

    def fetch_starter(self) -> None:
        async def fetch() -> None:
            models = self._runtime.paths.models
            await self._use_model(await fetch_starter(models, lambda _, done, total: self.show_progress(done, total)))
            self._show_download(False)

        def begin() -> None:
            self.show_progress(0, 0)
            self.progress_label.setText(_("Connecting…"))
            self._download = self._runner.start(fetch(), self.show_error)

        if self._has_starter:
            begin()
        else:
            ask_if_metered(self, self._runner.start, _("the starter model"), format_size(STARTER_SIZE), begin)

    def _cancel_download(self) -> None:
        self._show_download(False)
        if self._download is not None:
            self._download.cancel()

    def _load_facts(self) -> None:
        async def load_starter() -> None:
            self._has_starter = await asyncio.to_thread(is_starter_downloaded, self._runtime.paths.models)
            self.starter_button.setText(starter_title(is_downloaded=self._has_starter))
            self.starter_button.setAccessibleName(self.starter_button.text())

        for run in (load_starter(), self._load_hardware(), self._load_models()):
            self._runner.start(run)

    async def _load_hardware(self) -> None:
        runtime = self._runtime
        try:
            location = await asyncio.to_thread(find_engine, runtime.settings.engine_path)
            engine = str(location.path or _("embedded engine"))
        except KvchatError as error:
            engine = error.title
        memory = (await runtime.engine.capacity()).memory
        self.starter_button.setToolTip(judge_size(STARTER_SIZE, memory).reason)
        free, whole = format_size(memory.available), format_size(memory.total)
        memory_free, cards = _("{free} of {whole} memory free", free=free, whole=whole), _("no supported GPU")
        if memory.devices:
            cards = _("{free} free on {cards}", free=format_size(memory.device_free), cards=memory.device_names)
        usage = await runtime.save_points.usage()
        saving = _(
            "Chat memory takes up to {size} on disk and saves seconds to minutes of waiting each "
            "time you return to a chat. You can change the limit in Settings, Storage.",
            size=format_size(usage.quota_bytes),
        )
        at_login = await asyncio.to_thread(starts_at_login) if can_start_at_login() else None
        self.machine_label.setText(_("Detected: {hardware}.", hardware=join_parts((engine, memory_free, cards))))
        self.storage_label.setText(saving)
        self.login_box.setVisible(at_login is not None)
        self.login_box.setChecked(bool(at_login))

    async def _load_models(self) -> None:
        models: list[FoundModel] = []
        await self._runtime.models.find(await self._runtime.engine.model_judge(), models.append, None)
        starter = starter_path(self._runtime.paths.models)  # has its own button
        usable = [
            (judgement.verdict is not Verdict.FITS, -model.size, model)
            for model in models
            if (judgement := model.judgement) and judgement.verdict is not Verdict.NO and model.path != starter
        ]
        for old in self.local_model_buttons:
            old.deleteLater()
        best = sorted(usable, key=lambda known: known[:2])[:_MAX_LOCAL_MODELS]
        self.local_model_buttons = [self._model_button(model) for *_order, model in best]
        for choice in self.local_model_buttons:
            self._local_model_column.addWidget(choice)
        first, *others = *self.local_model_buttons, self.starter_button
        restyle(first, "kind", "primary")
        for other in others:
            restyle(other, "kind", "")
        self._show_download(self.is_fetching)

    def _model_button(self, model: FoundModel) -> QPushButton:
        shown, use = found_row(model, None), ElidedButton("", padding=52)
        title = _("Use {model}", model=shown.title)
        use.set_text(title.replace("&", "&&"), f"· {shown.chip}", f"{shown.detail}\n{shown.tip}")
        use.setAccessibleName(join_parts((title, shown.chip)))
        use.clicked.connect(lambda: self._runner.start(self._use_model(model.path)))
        return _widen(use)

    def _show_download(self, fetching: bool) -> None:
        self._progress.setVisible(fetching)
        others = self.models_button, self.choose_file_button, self.other_computer_button, self.back_button
        for choice in (*self.local_model_buttons, self.starter_button, *others):
            choice.setVisible(not fetching)
        if fetching:
            self.error_card.hide()

    def _build_column(self) -> QVBoxLayout:
        box = QWidget()
        box.setMaximumWidth(self.fontMetrics().averageCharWidth() * _WIDTH_IN_LETTERS)
        self._local_model_column = column(spacing=12)
        self._progress = QWidget()
        self.bar = progress_bar(_("Downloading the starter model"))
        self.progress_label = label(kind="muted")
        self.cancel_button = button(_("Cancel"), self._cancel_download, name=_("Cancel the download"))
        below = row((self.progress_label, 1), self.cancel_button)
        column(self.bar, below, on=self._progress, spacing=10, margins=(0, 4, 0, 0))
        self._progress.hide()
        choices = self._local_model_column, self.starter_button, self.models_button, self.choose_file_button
        outcome = self.other_computer_button, self._progress, self.error_card, self.back_button
        more = self.storage_label, self.login_box, self.engine_offer
        logo = QLabel(pixmap=app_icon().pixmap(QSize(64, 64)))
        title = label(_("Choose a model to chat with"), "hero", wraps=True)
        text = _(
            "Everything stays on this computer. kvchat saves the memory of each chat, so that chats "
            "continue without delay when you come back."
        )
        greeting = logo, title, label(text, "muted", wraps=True), self.machine_label
        column(*greeting, 8, *choices, *outcome, 8, *more, on=box, spacing=12, margins=24)
        return column(STRETCH, STRETCH, box, STRETCH, STRETCH, STRETCH)


def starter_title(*, is_downloaded: bool) -> str:
    if is_downloaded:
        return _("Use the starter model")
    return _("Download the starter model ({size})", size=format_size(STARTER_SIZE))


def open_gguf_dialog(parent: QWidget, on_pick: Callable[[Path], object]) -> None:
    mode = QFileDialog.FileMode.ExistingFile
    dialog = file_dialog(parent, _("Choose a model file"), mode, _("Models (*.gguf);;All files (*)"))
    dialog.fileSelected.connect(lambda name: on_pick(Path(name)))
    dialog.open()


def _widen(choice: QPushButton) -> QPushButton:
    choice.setMinimumHeight(38)
    choice.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
    return choice
