"""Presets and chat settings: the form that both use, a window for each, and the settings page of presets."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QLayout, QListWidget, QListWidgetItem, QWidget

from kvchat.chat.options import InvalidOptions, Preset, chat_from_preset
from kvchat.runtime import Runtime
from kvchat.text.language import N_, _, end_sentence, join_sentences
from kvchat.tools.tool import SourceTools
from kvchat.ui.base.building import STRETCH, button, column, label, line_edit, row, show_text, styled
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.chat.tools_popup import ToolsPopup
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.models.model_choice import ModelBox
from kvchat.ui.settings.options_form import OptionsForm
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.entries import ChoiceBox
from kvchat.ui.widgets.layouts import ElidedLabel, ScrollPage, flow

_PRESETS_HELP = N_(
    "A preset is a system prompt with sampling settings and, optionally, a model. Apply it in the "
    "settings of a chat. New chats start with the default preset."
)


class OptionsPanel(Panel):
    """Window with an options form. Subclasses call `_build` and implement `_save`."""

    def __init__(
        self, runtime: Runtime, look: Look, runner: TaskRunner, title: str, parent: QWidget | None, **sizes: Any
    ) -> None:
        super().__init__(runtime, look, runner, title, parent, **sizes)
        self.form = OptionsForm(look)
        self.save_button = button(_("Save"), lambda: self._save(), "primary")
        self.save_button.setDefault(True)  # Enter in a field saves

    def _build(self, *above: QWidget | QLayout) -> None:
        scroll = ScrollPage("settingsPage")
        column(self.form, on=scroll.content, margins=(24, 4, 24, 12))
        top = column(*above, spacing=8, margins=(24, 18, 24, 8))
        cancel = button(_("Cancel"), self.close)
        below = row(STRETCH, cancel, self.save_button, spacing=8, margins=(24, 10, 24, 16))
        column(top, (scroll, 1), below, on=self, spacing=0, margins=0)

    def _save(self) -> None:
        raise NotImplementedError

    async def _load_options(
        self, model: str | None, is_current: Callable[[], bool], *, chat_has_begun: bool = False
    ) -> bool:
        """Load and show a model's options. Do nothing and return False if `is_current()` is false after loading."""
        options = await self._runtime.model.template_options(model)
        defaults = await self._runtime.model.default_sampling(model)
        if is_current():
            self.form.set_options(options, defaults, chat_has_begun=chat_has_begun)
        return is_current()

    def _read(self) -> Preset | None:
        try:
            values = self.form.read()
        except InvalidOptions as error:
            show_text(self.form.refusal, end_sentence(join_sentences(error.title, error.detail)))
            return None
        show_text(self.form.refusal, "")
        return values


class PresetDialog(OptionsPanel):
    stored = Signal()

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Preset"), parent, size=(580, 640), min_size=(440, 360))
        self._preset = Preset("")
        self.setWindowModality(Qt.WindowModality.WindowModal)  # blocks its parent window
        self.name, self.model_box = line_edit(_("Name"), _("Name")), ChoiceBox(look, _("Model"))
        self.tools_button = button(_("Tools…"), self.choose_tools, name=_("Choose the tools for this preset"))
        self.popup = ToolsPopup(look, self)
        self.popup.settings_button.hide()
        show_text(self.popup.help, _("New chats with this preset start with these tools."))
        self.popup.tree.selection_edited.connect(lambda tools: self._change_tools(tools=tools))
        self.popup.permission_chosen.connect(lambda mode: self._change_tools(permission=mode))
        self._offers: list[SourceTools] = []
        self._build(self.notices, self.name, self.model_box, row(self.tools_button, STRETCH))

    def edit(self, preset: Preset) -> None:
        async def load() -> None:
            if await self._load_options(model, lambda: preset == self._preset):
                self.form.fill(preset)
                self.save_button.setEnabled(True)

        self._preset = preset
        self.name.setText(preset.name)
        model = preset.model or self._runtime.settings.model_path
        self.model_box.clear()
        self.model_box.addItem(_("Use the current model"), None)
        if model is not None:
            self.model_box.addItem(_("Always use {model}", model=self._runtime.model.name_of(model)), model)
        self.model_box.setCurrentIndex(1 if preset.model else 0)
        self.save_button.setEnabled(False)  # until the form is filled
        self.bring_forward()
        self.name.setFocus()
        self.name.selectAll()
        self.run(load())

    def choose_tools(self) -> None:
        async def show() -> None:
            self._offers = await self._runtime.chat.tool_choice.offers()
            self._change_tools()

        self._change_tools()
        self.popup.open_above(self.tools_button)
        self.run(show())

    def _change_tools(self, **changes: Any) -> None:
        form, popup, choice = self.form, self.popup, self._runtime.chat.tool_choice
        form.tools = replace(form.tools, **changes)
        popup.show_permission(form.tools.permission)
        popup.tree.show_offers(self._offers, form.tools.tools)
        self.run(popup.show_costs(choice, self._offers, form.tools.tools, self.model_box.currentData()))

    def _save(self) -> None:
        async def store(preset: Preset) -> None:
            await self._runtime.chat.options.store_preset(preset)
            self.stored.emit()
            self.close()

        if (values := self._read()) is not None:
            name, model = self.name.text().strip() or _("Preset"), self.model_box.currentData()
            preset = replace(self._preset, name=name, system=values.system, model=model, options=values.options)
            self.run(store(preset))


class PresetsPage(SettingsPage):
    name = N_("Presets")

    def __init__(self, runtime: Runtime, look: Look, panel: Panel) -> None:
        super().__init__(runtime, look, panel)
        self._presets: list[Preset] = []
        self._dialog: PresetDialog | None = None
        self.list = styled(QListWidget(), "boxed")
        self.list.setAccessibleName(_("Presets"))
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setMinimumHeight(220)
        self.empty_label = label(_("No presets yet. Choose “New…” to create one."), "muted")
        options = runtime.chat.options
        self.new_button = button(_("New…"), lambda: self.open_dialog(Preset(_("New preset"))))
        self.edit_button = button(_("Edit…"), lambda: self.open_dialog(self._current))
        self.duplicate_button = button(_("Duplicate"), lambda: self._change(options.duplicate_preset))
        self.default_button = button(
            _("Make default"),
            lambda: self._change(
                lambda preset: options.store_preset(replace(preset, is_default=not preset.is_default))
            ),
        )
        self.delete_button = button(_("Delete…"), self._ask_delete, "danger")
        buttons = flow(
            self.new_button, self.edit_button, self.duplicate_button, self.default_button, self.delete_button
        )
        self.add_wide(_("Available presets"), _(_PRESETS_HELP), self.list, self.empty_label, buttons)
        self.list.currentRowChanged.connect(self._show_buttons)
        self.list.itemActivated.connect(lambda _: self.open_dialog(self._current))
        self._show_buttons()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.run(self._load())

    def open_dialog(self, preset: Preset | None) -> PresetDialog | None:
        if preset is None:
            return None
        if self._dialog is None:
            self._dialog = PresetDialog(self.runtime, self.look, self.panel.runner, self)
            self._dialog.stored.connect(lambda: self.run(self._load()))
        self._dialog.edit(preset)
        return self._dialog

    async def _load(self) -> None:
        before = self._current
        self._presets = await self.runtime.chat.options.presets()
        self.list.clear()
        for preset in self._presets:
            item = QListWidgetItem(f"{preset.name} (default)" if preset.is_default else preset.name, self.list)
            item.setToolTip(preset.system[:300])
        row = next((i for i, preset in enumerate(self._presets) if before and preset.id == before.id), 0)
        self.list.setCurrentRow(row if self._presets else -1)
        self.list.setVisible(bool(self._presets))
        self.empty_label.setVisible(not self._presets)
        self._show_buttons()

    @property
    def _current(self) -> Preset | None:
        row = self.list.currentRow()
        return self._presets[row] if 0 <= row < len(self._presets) else None

    def _show_buttons(self) -> None:
        preset = self._current
        for action in (self.edit_button, self.duplicate_button, self.default_button, self.delete_button):
            action.setEnabled(preset is not None)
        self.default_button.setText(_("Remove default") if preset and preset.is_default else _("Make default"))

    def _change(self, change: Callable[[Preset], Awaitable[object]]) -> None:
        async def run(preset: Preset) -> None:
            await change(preset)
            await self._load()

        if preset := self._current:
            self.run(run(preset))

    def _ask_delete(self) -> None:
        if preset := self._current:
            confirm(
                self,
                _("Delete “{name}”?", name=preset.name),
                _("Chats that use this preset keep its settings."),
                _("Delete"),
                lambda: self._change(lambda _: self.runtime.chat.options.delete_preset(preset)),
            )


_EMPTY_FIELD = N_("Leave a field empty to use the model’s default (shown in gray).")


class ChatSettingsWindow(OptionsPanel):
    chat_started = Signal(str)  # id of the created chat
    presets_requested = Signal()

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Chat settings"), parent, size=(600, 720), min_size=(520, 400))
        self._chat_id: str | None = None
        self._saved, self._saved_model = Preset(""), ""
        self._has_messages = False
        self._presets: list[Preset] = []
        self._dialog: PresetDialog | None = None
        self.title, self.model = ElidedLabel("title"), ModelBox(runtime, look)
        self.preset, presets = ChoiceBox(look, _("Preset")), button(_("Presets…"), self.presets_requested)
        self.save_as_preset_button = button(_("Save as preset…"), self._save_as_preset)
        self.model.activated.connect(self._load_model_options)
        self.preset.activated.connect(self._apply_preset)
        help, model = label(_(_EMPTY_FIELD), "small", wraps=True), row(label(_("Model")), (self.model, 1), spacing=8)
        below = row(presets, self.save_as_preset_button, STRETCH, spacing=8)
        self._build(self.title, help, self.notices, model, self.preset, below)

    def show_chat(self, id: str | None, title: str, model: str | None) -> None:
        """Show a chat's settings. `id` is None if the chat does not exist yet; `model` is a path."""
        self._chat_id = id
        self.title.set_text(title)
        for action in (self.save_button, self.save_as_preset_button):
            action.setEnabled(False)  # until the form is filled
        self.bring_forward()
        self.run(self._load(id, model))

    async def _load(self, id: str | None, model: str | None) -> None:
        runtime, options = self._runtime, self._runtime.chat.options
        await self._load_presets()
        preset, has_messages = await options.default_preset() or Preset(""), False
        if id is None:
            choice = runtime.chat.tool_choice
            preset = replace(preset, options=await choice.for_new_chat(preset.options, preset.model))
        else:
            settings = await runtime.chat.turn_context.answer_settings(id)
            preset = Preset("", await options.system_prompt(id), model, settings.options)
            has_messages = await options.has_messages(id)
        model = preset.model or runtime.settings.model_path
        if not await self._load_options(model, lambda: id == self._chat_id, chat_has_begun=has_messages):
            return  # another conversation was opened meanwhile
        self._has_messages, self._saved_model = has_messages, model or ""
        self._saved = preset
        self.model.show_model(model)
        self.form.fill(self._saved)
        self.save_button.setEnabled(True)
        self.save_as_preset_button.setEnabled(True)
        self.run(self.model.load_models())

    async def _load_presets(self) -> None:
        self._presets = await self._runtime.chat.options.presets()
        self.preset.clear()
        self.preset.addItem(_("Apply a preset…") if self._presets else _("No presets yet"))
        self.preset.addItems([preset.name for preset in self._presets])
        self.preset.setEnabled(bool(self._presets))

    def _load_model_options(self) -> None:
        model = self.model.path
        self.run(self._load_options(model, lambda: model == self.model.path, chat_has_begun=self._has_messages))

    def _apply_preset(self, index: int) -> None:
        if index < 1:
            return
        preset = self._presets[index - 1]
        options = preset.options
        if self._has_messages:  # the template's options are fixed
            options = replace(options, template=self._saved.options.template)
        self.form.fill(replace(preset, options=options))
        if preset.model is not None and self.model.isEnabled():
            self.model.choose(preset.model)
            self._load_model_options()

    @property
    def _own_model(self) -> str | None:
        """Path of the model chosen for this chat, or None for the default model."""
        return self.model.path if self.model.path != self._runtime.settings.model_path else None

    def _save_as_preset(self) -> None:
        if (values := self._read()) is None:
            return
        if self._dialog is None:
            self._dialog = PresetDialog(self._runtime, self._look, self.runner, self)
            self._dialog.stored.connect(lambda: self.run(self._load_presets()))
        self._dialog.edit(replace(values, name=_("New preset"), model=self._own_model))

    def _save(self) -> None:
        if (values := self._read()) is None:
            return
        id = self._chat_id
        if not self._has_messages or values.system == self._saved.system:
            self.run(self._store(id, values))
            return
        text = _(
            "The system prompt comes before all messages. The chat continues in a new branch, which "
            "the model processes once from the beginning. The current branch stays unchanged."
        )
        title = _("Continue with a different system prompt?")
        confirm(self, title, text, _("Continue"), lambda: self.run(self._store(id, values)))

    async def _store(self, id: str | None, values: Preset) -> None:
        chat, model = self._runtime.chat, self.model.path
        await chat.options.validate(values.options)
        if id is None:
            preset = replace(values, model=self._own_model)
            self.chat_started.emit((await chat.create(chat_from_preset(preset))).id)
        else:
            options, saved = values.options, self._saved.options
            if (options.tools, options.permission) == (saved.tools, saved.permission):  # no preset changed them
                now = (await chat.turn_context.answer_settings(id)).options
                options = replace(options, tools=now.tools, permission=now.permission)
            await chat.options.change(id, options)
            await chat.options.change_system_prompt(id, values.system)
            if model and model != self._saved_model:
                await chat.use_model(id, model)
        self.close()
