"""Settings, Presets: what chats can begin with."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QListWidget, QListWidgetItem, QWidget

from kvchat.chat.options import Preset
from kvchat.runtime import Runtime
from kvchat.ui.base.building import button, column, label, styled
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.presets.preset_dialog import PresetDialog
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.entries import Entry
from kvchat.ui.widgets.layouts import FlowLayout
from kvchat.words.language import N_, _

_WORDS = N_(
    "A preset is a system prompt with settings for creativity and style and, if you wish, a model. A chat takes one "
    "over from its chat settings; new chats begin with the default one."
)


class PresetsPage(SettingsPage):
    """A list, and what can be done with the preset chosen in it."""

    name = N_("Presets")

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        self._presets: list[Preset] = []
        self._dialog: PresetDialog | None = None
        self.list = styled(QListWidget(), "boxed")
        self.list.setAccessibleName(_("Presets"))
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setMinimumHeight(220)
        self.none = label(_("No presets yet. “New…” makes the first."), "muted")
        self.new = button(_("New…"), lambda: self.open(Preset(_("New preset"))))
        self.edit = button(_("Edit…"), lambda: self.open(self._chosen()))
        self.duplicate = button(_("Duplicate"), self._duplicate)
        self.default = button(_("Make default"), self._make_default)
        self.delete = button(_("Delete…"), self._ask_delete, "danger")
        holder, buttons = QWidget(), FlowLayout()
        for one in (self.new, self.edit, self.duplicate, self.default, self.delete):
            buttons.addWidget(one)
        column(self.list, self.none, buttons, on=holder, spacing=10, margins=0)
        self.add(Entry(_("Chats can begin with"), _(_WORDS), holder, wide=True))
        self.list.currentRowChanged.connect(self._show_buttons)
        self.list.itemActivated.connect(lambda _: self.open(self._chosen()))
        self._show_buttons()

    def showEvent(self, event: QShowEvent) -> None:
        """Ask for the presets."""
        super().showEvent(event)
        self.load()

    def load(self) -> None:
        """Ask for the presets anew."""
        self.run(self._load())

    def open(self, preset: Preset | None) -> PresetDialog | None:
        """Change a preset, or make one."""
        if preset is None:
            return None
        if self._dialog is None:
            self._dialog = PresetDialog(self.runtime, self.look, self.panel.runner, self)
            self._dialog.stored.connect(self.load)
        self._dialog.edit(preset)
        return self._dialog

    async def _load(self) -> None:
        chosen = self._chosen()
        self._presets = await self.runtime.chat.options.presets()
        self.list.clear()
        for preset in self._presets:
            item = QListWidgetItem(f"{preset.name} (default)" if preset.is_default else preset.name, self.list)
            item.setToolTip(preset.system[:300])
        row = next((i for i, preset in enumerate(self._presets) if chosen and preset.id == chosen.id), 0)
        self.list.setCurrentRow(row if self._presets else -1)
        self.list.setVisible(bool(self._presets))
        self.none.setVisible(not self._presets)
        self._show_buttons()

    def _chosen(self) -> Preset | None:
        row = self.list.currentRow()
        return self._presets[row] if 0 <= row < len(self._presets) else None

    def _show_buttons(self) -> None:
        chosen = self._chosen()
        for one in (self.edit, self.duplicate, self.default, self.delete):
            one.setEnabled(chosen is not None)
        self.default.setText(_("No default") if chosen and chosen.is_default else _("Make default"))

    def _duplicate(self) -> None:
        if preset := self._chosen():
            self.run(self._then_load(self.runtime.chat.options.duplicate_preset(preset)))

    def _make_default(self) -> None:
        if preset := self._chosen():
            changed = replace(preset, is_default=not preset.is_default)
            self.run(self._then_load(self.runtime.chat.options.store_preset(changed)))

    def _ask_delete(self) -> None:
        if preset := self._chosen():
            confirm(
                self,
                _("Delete “{name}”?", name=preset.name),
                _("Chats that began with it keep what they have of it."),
                _("Delete"),
                lambda: self.run(self._then_load(self.runtime.chat.options.delete_preset(preset))),
            )

    async def _then_load(self, run: Awaitable[object]) -> None:
        await run
        await self._load()
