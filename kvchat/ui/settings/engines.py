"""Settings, Engine: which one, whether it works, how to get a better one, and expert options."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PySide6.QtWidgets import QFileDialog, QLineEdit, QWidget

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
from kvchat.ui.dialogs.engine_offer import PROMISE, EngineOffer, cards
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.entries import ChoiceBox, Entry
from kvchat.ui.widgets.layouts import flow

_DECIDES = N_("Automatic")
_NOT_LOOKED = N_("The program that runs the model. By default, kvchat uses the first suitable one it finds.")
_TRIAL = N_(
    "Starts this engine alongside the running one, with the smallest available model. This takes a few seconds."
)


class EnginePage(SettingsPage):
    """Engine settings. Looks for engines when shown, after a download or choice, and on request."""

    name, key = N_("Engine"), "engine"

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        self._engines = runtime.engines
        self.found: tuple[EngineEntry, ...] = ()
        self._graphics: Graphics | None = None  # this computer's, once detected
        self._looked_with: tuple[str | None, ...] = ()  # engine setting at the last look; empty: look again
        self.box = ChoiceBox(look, _("Engine"))
        self.browse = button(_("Choose a file…"), self.open_file_dialog, name=_("Choose a llama-server"))
        self.again = button(_("Look again"), self.look_again, name=_("Look for engines again"))
        self.engine = self.add(Entry(_("Engine"), _(_NOT_LOOKED), _flow(self.box, self.browse, self.again), wide=True))
        self.test = button(_("Test"), lambda: self.run(self._try()), name=_("Test the engine"))
        self.trial = self.add(Entry(_("Engine test"), _(_TRIAL), self.test))
        self.offer = EngineOffer(look, runtime.engines, self.run)
        self.card = self.add(Entry(_("GPU acceleration"), _(PROMISE), self.offer, wide=True))
        self.fetched = self.add(FetchedEntry(self))
        panel.follow(self._engines.subscribe, self._hear_fetching)
        self.add_settings(through="engine_url")
        self.key_entry = self.add(KeyEntry(self))
        self.add_settings()
        self.box.setAccessibleDescription(_("The engine that kvchat starts. The list below describes each engine."))
        self.box.activated.connect(lambda index: self._choose(self.box.itemData(index)))

    def refresh(self) -> None:
        super().refresh()
        self.key_entry.setVisible(self.runtime.settings.engine_url is not None)  # used only with a server
        self._show_engines()
        if self.isVisible() and self._looked_with != (self.runtime.settings.engine_path,):
            self._begin_to_look()

    def showEvent(self, event: Any) -> None:
        super().showEvent(event)
        self._looked_with = ()
        self.refresh()

    def look_again(self) -> None:
        self.engine.set_help(_("Looking for engines…"))
        self._begin_to_look()

    def _hear_fetching(self) -> None:
        """List downloaded engines, also from the first-run page and if the test failed."""
        if self._engines.fetching is None and self.isVisible():
            self._begin_to_look()

    def _begin_to_look(self) -> None:
        if not self.found:
            self.engine.set_help(_("Looking for engines…"))
        self._looked_with = (self.runtime.settings.engine_path,)
        self.run(self._look())

    async def _look(self) -> None:
        with_engine = self._looked_with
        fetched = await asyncio.to_thread(downloaded_engines, self.runtime.paths.engines)
        found = await self._engines.engines()
        self._graphics = await asyncio.to_thread(detect_graphics)  # a driver can be slow
        if with_engine == self._looked_with:
            self.found = found
            self.fetched.show_engines(fetched)
            self._show_engines()
            if not found:
                self.engine.set_help(_("No engine was found."))

    def _show_engines(self) -> None:
        path = self.runtime.settings.engine_path
        self.box.clear()
        self.box.addItem(_(_DECIDES), None)
        for entry in self.found:
            self.box.addItem(_name(entry), str(entry.location.path or EMBEDDED))
        if path is not None and self.box.findData(path) < 0:
            self.box.addItem(path, path)
        self.box.setCurrentIndex(max(0, self.box.findData(path)))
        if self.found:
            self.engine.set_help("\n".join(_described(entry) for entry in self.found))
        graphics = self._graphics
        self.card.setVisible(graphics is not None and bool(graphics.vendors))
        if graphics is not None:
            self.card.set_help(_card_words(graphics, self.found))
            self.offer.show_choices(graphics)

    def open_file_dialog(self) -> None:
        dialog = file_dialog(self, _("Choose a llama-server"), QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(self._choose)
        dialog.open()

    def _choose(self, path: str | None) -> None:
        self.change("engine_path", path)

    async def _try(self) -> None:
        told: list[str] = []

        def tell(step: TrialStep) -> None:
            told.append(f"{'✗' if step.error else '✓'} {step.name}: {step.detail}".rstrip(": "))
            if step.error is not None and step.error.advice:
                told.append(step.error.advice)
            self.trial.set_help("\n".join(told))

        self.test.setEnabled(False)
        self.trial.set_help(_("Starting…"))
        try:
            path = self.runtime.settings.engine_path
            location = EngineLocation()
            if path is not None and path != EMBEDDED:
                location = EngineLocation(Path(path))
            location = next((entry.location for entry in self.found if entry.chosen), location)
            await self._engines.test_engine(location, tell)
        finally:
            self.test.setEnabled(True)


class FetchedEntry(Entry):
    def __init__(self, page: EnginePage) -> None:
        self._page, self._list = page, QWidget()
        self._rows = column(on=self._list, spacing=4, margins=0)
        super().__init__(
            _("Downloaded engines"), _("Choose an engine above. You can remove unused ones."), self._list, wide=True
        )

    def show_engines(self, engines: Sequence[DownloadedEngine]) -> None:
        clear(self._rows)
        for engine in engines:
            holder, words = QWidget(), join_list((engine.name, format_size(engine.size)))
            name = _("Remove {name}", name=engine.name)
            remove = button(_("Remove"), lambda _, engine=engine: self._ask(engine), "link", name=name)
            row((label(words, wraps=True), 1), remove, on=holder, spacing=10, margins=0)
            self._rows.addWidget(holder)
        self.setVisible(bool(engines))

    def _ask(self, engine: DownloadedEngine) -> None:
        async def remove() -> None:
            try:
                await self._page.runtime.engines.remove(engine.name)
            finally:
                self._page.look_again()

        words = _("This frees {size}. You can download it again.", size=format_size(engine.size))
        if self._page.runtime.settings.engine_path == str(engine.location.path):
            words += " " + _("It is in use. kvchat will use another engine instead.")
        title = _("Remove {name}?", name=engine.name)
        confirm(self, title, words, _("Remove"), lambda: self._page.run(remove()))


class KeyEntry(Entry):
    def __init__(self, page: SettingsPage) -> None:
        self.field = line_edit(_("Server API key"), _("the value of the server’s --api-key"))
        self._engines = page.runtime.engines
        self.forget = button(_("Forget"), lambda: page.run(self._keep("")), "link", name=_("Forget the server API key"))
        words = _("Required only if the server uses an API key.")
        super().__init__(_("Server API key"), words, _flow(self.field, self.forget), wide=True)
        self.field.setEchoMode(QLineEdit.EchoMode.Password)
        self.field.setAccessibleDescription(_("Required only if the server uses an API key"))

        def keep() -> None:
            if key := self.field.text().strip():
                page.run(self._keep(key))

        self.field.returnPressed.connect(keep)

    async def _keep(self, key: str) -> None:
        """key: empty to forget the stored one"""
        keeper = await self._engines.save_key(key)
        kept = _("Saved in {place}. Used the next time the engine starts.", place=_(keeper.value)) if keeper else ""
        self.set_help(kept or _("No API key is saved."))
        self.field.clear()


def _name(entry: EngineEntry) -> str:
    return str(entry.location.path or _("Embedded engine"))


def _card_words(graphics: Graphics, found: Sequence[EngineEntry]) -> str:
    chosen = next((entry for entry in found if entry.chosen), None)
    if chosen is not None and chosen.backends:
        words = [_("The current engine uses it.")]
    else:
        words = [_("An engine that supports it generates replies several times faster."), driver_advice(graphics)]
    return join_sentences(cards(graphics), *words, _(PROMISE))


def _described(entry: EngineEntry) -> str:
    name = f"{'●' if entry.chosen else '○'} {_name(entry)}{punctuation(': ')}"
    if entry.problem is not None:
        return f"{name}{join_sentences(entry.problem.title, entry.problem.detail)}"
    devices = join_list(device.description for device in entry.devices) or _("CPU only")
    return f"{name}{entry.version}{punctuation('; ')}{devices}"


def _flow(*widgets: QWidget) -> QWidget:
    holder = QWidget()
    holder.setLayout(flow(*widgets))
    return holder
