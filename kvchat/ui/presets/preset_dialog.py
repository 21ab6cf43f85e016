"""One preset: its name, its model and how chats that begin with it are answered."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QWidget

from kvchat.chat.options import Preset
from kvchat.runtime import Runtime
from kvchat.ui.base.building import line_edit
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.presets.options_form import FormValues
from kvchat.ui.presets.options_panel import OptionsPanel
from kvchat.ui.widgets.entries import ChoiceBox
from kvchat.words.language import _


class PresetDialog(OptionsPanel):
    """Makes a preset or changes one."""

    stored = Signal()

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Preset"), parent, (580, 640), (440, 360))
        self._preset = Preset("")
        self.setWindowModality(Qt.WindowModality.WindowModal)  # what it was opened from waits
        self.name, self.with_model = line_edit(_("Name"), _("Name")), ChoiceBox(look, _("Model"))
        self._build(self.notices, self.name, self.with_model)

    def edit(self, preset: Preset) -> None:
        """Come to the front with a preset."""
        self._preset = preset
        self.name.setText(preset.name)
        model = preset.model or self._runtime.settings.model_path
        self.with_model.clear()
        self.with_model.addItem(_("Answered by whichever model is in use"), None)
        if model is not None:
            self.with_model.addItem(
                _("Always answered by {name_of}", name_of=self._runtime.model.name_of(model)), model
            )
        self.with_model.setCurrentIndex(1 if preset.model else 0)
        self.come()
        self.name.setFocus()
        self.name.selectAll()
        self.run(self._load(preset, model))

    async def _load(self, preset: Preset, model: str | None) -> None:
        if await self._offer(model, lambda: preset == self._preset):
            self.form.fill(FormValues(preset.system, preset.options))
            self.save.setEnabled(True)

    def _take(self, values: FormValues) -> None:
        name, model = self.name.text().strip() or _("Preset"), self.with_model.currentData()
        self.run(
            self._store(replace(self._preset, name=name, system=values.system, model=model, options=values.options))
        )

    async def _store(self, preset: Preset) -> None:
        await self._runtime.chat.options.store_preset(preset)
        self.stored.emit()
        self.close()
