"""One preset: its name, its model and how chats that begin with it are answered."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QPushButton, QScrollArea, QVBoxLayout, QWidget

from kvchat.chat.options import BadOptions
from kvchat.chat.presets import Preset
from kvchat.runtime import Runtime
from kvchat.ui.options_form import Filling, OptionsForm
from kvchat.ui.panel import Panel
from kvchat.ui.scroll_ground import ScrollGround
from kvchat.ui.settings_entries import ChoiceBox
from kvchat.ui.tasks import Wishes
from kvchat.ui.theme import Look


class PresetDialog(Panel):
    """Makes a preset or changes one."""

    stored = Signal()

    def __init__(self, runtime: Runtime, look: Look, wishes: Wishes, parent: QWidget | None = None) -> None:
        super().__init__(look, wishes, parent)
        self._runtime = runtime
        self._preset = Preset("")
        self.setWindowTitle("Preset")
        self.setAccessibleName("Preset")
        self.resize(580, 640)
        self.name, self.with_model, self.form = QLineEdit(), ChoiceBox(look), OptionsForm(look)
        self.save, leave = QPushButton("Save"), QPushButton("Cancel")
        self._build(leave)
        self.save.clicked.connect(self._save)
        leave.clicked.connect(self.close)

    def edit(self, preset: Preset) -> None:
        """Come to the front with a preset."""
        self._preset = preset
        self.name.setText(preset.name)
        model = preset.model or self._runtime.settings.model_path
        self.with_model.clear()
        self.with_model.addItem("Answered by whichever model is in use", None)
        if model is not None:
            self.with_model.addItem(f"Always answered by {self._runtime.model.name_of(model)}", model)
        self.with_model.setCurrentIndex(1 if preset.model else 0)
        self.save.setEnabled(False)
        self.show()
        self.raise_()
        self.activateWindow()
        self.name.setFocus()
        self.wish(self._load(preset, model))

    async def _load(self, preset: Preset, model: str | None) -> None:
        offered = await self._runtime.model.template_options(model)
        defaults = await self._runtime.model.default_sampling(model)
        if preset == self._preset:
            self.form.offer(offered, defaults, begun=False)
            self.form.fill(Filling(preset.system, preset.options))
            self.save.setEnabled(True)

    def _save(self) -> None:
        try:
            filling = self.form.read()
        except BadOptions as error:
            self.form.refuse(f"{error.title}. {error.detail}".strip())
            return
        model = self.with_model.currentData()
        name = self.name.text().strip() or "Preset"
        self.wish(
            self._store(replace(self._preset, name=name, system=filling.system, model=model, options=filling.options))
        )

    async def _store(self, preset: Preset) -> None:
        await self._runtime.chat.options.store_preset(preset)
        self.stored.emit()
        self.close()

    def _build(self, leave: QPushButton) -> None:
        self.name.setPlaceholderText("Name")
        self.name.setAccessibleName("Name")
        self.with_model.setAccessibleName("Model")
        self.save.setProperty("kind", "primary")
        for button in (self.save, leave):
            button.setAccessibleName(button.text())
        ground = ScrollGround("settingsPage")
        inside = QVBoxLayout(ground)
        inside.setContentsMargins(24, 4, 24, 12)
        inside.addWidget(self.form)
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setWidget(ground)
        above, below = QVBoxLayout(), QHBoxLayout()
        above.setContentsMargins(24, 18, 24, 8)
        above.setSpacing(8)
        below.setSpacing(8)
        for widget in (self.notices, self.name, self.with_model):
            above.addWidget(widget)
        below.setContentsMargins(24, 10, 24, 16)
        below.addStretch(1)
        below.addWidget(leave)
        below.addWidget(self.save)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addLayout(above)
        column.addWidget(scroll, 1)
        column.addLayout(below)
