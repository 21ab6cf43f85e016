"""The engine page of the settings: choice, test and download of an engine, and expert options."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PySide6.QtWidgets import QFileDialog, QLineEdit

from kvchat.engine.discovery.engines import EMBEDDED, EngineEntry, EngineLocation
from kvchat.engine.discovery.graphics import Graphics, detect_graphics, driver_advice
from kvchat.engine_host.setup import DownloadedEngine, downloaded_engines
from kvchat.engine_host.trial import TrialStep
from kvchat.runtime import Runtime
from kvchat.text.formatting import format_size
from kvchat.text.language import N_, _, join_list, join_sentences, punctuation
from kvchat.ui.base.building import button, clear, column, label, line_edit, row
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import confirm, file_dialog
from kvchat.ui.dialogs.engine_offer import ENGINE_DOWNLOAD_HELP, EngineOffer, gpu_name
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.settings.other_computer import OtherComputerEntry
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.entries import ChoiceBox, Entry
from kvchat.ui.widgets.layouts import flow

_AUTOMATIC = N_("Automatic")
_ENGINE_HELP = N_("The program that runs the model. By default, kvchat uses the first suitable one it finds.")
_TEST_HELP = N_(
    "Starts this engine alongside the running one, with the smallest available model. This takes a few seconds."
)


class EnginePage(SettingsPage):
    """Settings of the engine. The page searches for engines when it is shown, after a change, and on request."""

    name, key = N_("Engine"), "engine"

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        self.engines: tuple[EngineEntry, ...] = ()
        self._graphics: Graphics | None = None  # of this computer, once detected
        self._searched_with: tuple[str | None, ...] = ()  # engine setting at the last search; empty to search again
        self.engine_box = ChoiceBox(look, _("Engine"))
        self.engine_box.setAccessibleDescription(
            _("The engine that kvchat starts. The list below describes each engine.")
        )
        self.engine_box.activated.connect(lambda index: self.change("engine_path", self.engine_box.itemData(index)))
        self.choose_file_button = button(_("Choose a file…"), self.open_file_dialog, name=_("Choose a llama-server"))
        self.search_again_button = button(_("Scan again"), self._search_again, name=_("Scan for engines again"))
        choice = flow(self.engine_box, self.choose_file_button, self.search_again_button)
        self.engine = self.add_wide(_("Engine"), _(_ENGINE_HELP), choice)
        self.test_button = button(_("Test"), lambda: self.run(self._test()), name=_("Test the engine"))
        self.test_entry = self.add(Entry(_("Engine test"), _(_TEST_HELP), self.test_button))
        self.engine_offer = EngineOffer(look, runtime.engines, self.run)
        self.card = self.add(Entry(_("GPU acceleration"), _(ENGINE_DOWNLOAD_HELP), self.engine_offer, is_wide=True))
        self._downloads = column(spacing=4)
        help = _("Choose an engine above. You can remove unused ones.")
        self.downloaded = self.add_wide(_("Downloaded engines"), help, self._downloads)
        panel.subscribe_while_open(runtime.engines.subscribe, self._handle_download_change)
        self.computer = self.add(OtherComputerEntry(self))
        self.add_settings(through="engine_url")
        self.api_key_field = line_edit(_("Server API key"), _("the value of the server’s --api-key"))
        self.api_key_field.setEchoMode(QLineEdit.EchoMode.Password)
        self.api_key_field.setAccessibleDescription(_("Required only if the server uses an API key"))
        self.api_key_field.returnPressed.connect(self._save_typed_key)
        name = _("Forget the server API key")
        self.forget_key_button = button(_("Forget"), lambda: self.run(self._save_key("")), "link", name=name)
        help, control = (
            _("Required only if the server uses an API key."),
            flow(self.api_key_field, self.forget_key_button),
        )
        self.key_entry = self.add_wide(_("Server API key"), help, control)
        self.add_settings()

    def refresh(self) -> None:
        super().refresh()
        computer, server = self.computer.used_computer, self.settings["engine_url"]
        self.key_entry.setVisible(
            self.runtime.settings.engine_url is not None and computer is None
        )  # used with a server
        server.field.setReadOnly(computer is not None)
        if computer is not None:
            server.field.setText(_("In use: {name}", name=computer.name))
            server.clear_button.hide()
        self._show_engines()
        if self.isVisible() and self._searched_with != (self.runtime.settings.engine_path,):
            self._search()

    def showEvent(self, event: Any) -> None:
        self._searched_with = ()
        super().showEvent(event)
        self.run(self._load_computer())
        self.computer.start_searching()

    def hideEvent(self, event: Any) -> None:
        super().hideEvent(event)
        self.computer.stop_searching()

    async def _load_computer(self) -> None:
        await self.computer.load()
        self.refresh()

    def _handle_download_change(self) -> None:
        """Update the lists after a download, even one that failed its test or was started on the first-start page."""
        if self.runtime.engines.download is None and self.isVisible():
            self._search()

    def _search_again(self) -> None:
        self.engine.set_help(_("Looking for engines…"))
        self._search()

    def _search(self) -> None:
        async def search() -> None:
            downloaded = await asyncio.to_thread(downloaded_engines, self.runtime.paths.engines)
            engines = await self.runtime.engines.list_engines()
            self._graphics = await asyncio.to_thread(detect_graphics)  # a driver can be slow
            if path == self._searched_with:
                self.engines = engines
                self._show_downloaded(downloaded)
                self._show_engines()
                if not engines:
                    self.engine.set_help(_("No engine was found."))

        if not self.engines:
            self.engine.set_help(_("Looking for engines…"))
        self._searched_with = path = (self.runtime.settings.engine_path,)
        self.run(search())

    def _show_engines(self) -> None:
        path = self.runtime.settings.engine_path
        self.engine_box.clear()
        self.engine_box.addItem(_(_AUTOMATIC), None)
        for entry in self.engines:
            self.engine_box.addItem(_engine_name(entry), str(entry.location.path or EMBEDDED))
        if path is not None and self.engine_box.findData(path) < 0:
            self.engine_box.addItem(path, path)
        self.engine_box.setCurrentIndex(max(0, self.engine_box.findData(path)))
        if self.engines:
            self.engine.set_help("\n".join(map(_describe_engine, self.engines)))
        graphics = self._graphics
        self.card.setVisible(graphics is not None and bool(graphics.vendors))
        if graphics is not None:
            used = any(entry.is_in_use and entry.backends for entry in self.engines)
            advice = [
                _("An engine that supports this GPU generates replies several times faster."),
                driver_advice(graphics),
            ]
            sentences = [_("The current engine uses this GPU.")] if used else advice
            self.card.set_help(join_sentences(gpu_name(graphics), *sentences, _(ENGINE_DOWNLOAD_HELP)))
            self.engine_offer.show_choices(graphics)

    def open_file_dialog(self) -> None:
        dialog = file_dialog(self, _("Choose a llama-server"), QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(lambda path: self.change("engine_path", path))
        dialog.open()

    async def _test(self) -> None:
        lines: list[str] = []

        def show_step(step: TrialStep) -> None:
            lines.append(f"{'✗' if step.error else '✓'} {step.name}: {step.detail}".rstrip(": "))
            if step.error is not None and step.error.advice:
                lines.append(step.error.advice)
            self.test_entry.set_help("\n".join(lines))

        self.test_button.setEnabled(False)
        self.test_entry.set_help(_("Starting…"))
        try:
            path = self.runtime.settings.engine_path
            location = EngineLocation() if path in (None, EMBEDDED) else EngineLocation(Path(str(path)))
            location = next((entry.location for entry in self.engines if entry.is_in_use), location)
            await self.runtime.engines.test_engine(location, show_step)
        finally:
            self.test_button.setEnabled(True)

    def _show_downloaded(self, engines: Sequence[DownloadedEngine]) -> None:
        clear(self._downloads)
        for engine in engines:
            text = label(join_list((engine.name, format_size(engine.size))), wraps=True)
            name = _("Remove {name}", name=engine.name)
            remove = button(_("Remove"), lambda _, engine=engine: self._ask_to_remove(engine), "link", name=name)
            self._downloads.addLayout(row((text, 1), remove, spacing=10))
        self.downloaded.setVisible(bool(engines))

    def _ask_to_remove(self, engine: DownloadedEngine) -> None:
        async def remove() -> None:
            try:
                await self.runtime.engines.remove(engine.name)
            finally:
                self._search_again()

        text = _("This frees {size}. You can download it again.", size=format_size(engine.size))
        if self.runtime.settings.engine_path == str(engine.location.path):
            text = join_sentences(text, _("It is in use. kvchat will use another engine instead."))
        title = _("Remove {name}?", name=engine.name)
        confirm(self, title, text, _("Remove"), lambda: self.run(remove()))

    def _save_typed_key(self) -> None:
        if key := self.api_key_field.text().strip():
            self.run(self._save_key(key))

    async def _save_key(self, key: str) -> None:
        """Save the API key of the external server. An empty key deletes the saved one."""
        keeper = await self.runtime.engines.save_key(key)
        saved = _("Saved in {place}. Used the next time the engine starts.", place=_(keeper.value)) if keeper else ""
        self.key_entry.set_help(saved or _("No API key is saved."))
        self.api_key_field.clear()


def _engine_name(entry: EngineEntry) -> str:
    return str(entry.location.path or _("Embedded engine"))


def _describe_engine(entry: EngineEntry) -> str:
    name = f"{'●' if entry.is_in_use else '○'} {_engine_name(entry)}{punctuation(': ')}"
    if entry.problem is not None:
        return f"{name}{join_sentences(entry.problem.title, entry.problem.detail)}"
    devices = join_list(device.label for device in entry.devices) or _("CPU only")
    return f"{name}{entry.version}{punctuation('; ')}{devices}"
