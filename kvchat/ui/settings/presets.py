"""Presets and chat settings: their common form, the window of each, and the settings page of presets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QLayout, QListWidget, QListWidgetItem, QWidget

from kvchat.chat.options import InvalidOptions, Preset, chat_from_preset
from kvchat.runtime import Runtime
from kvchat.text.language import N_, _, end_sentence, join_sentences
from kvchat.ui.base.building import STRETCH, button, column, label, line_edit, row, styled
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.dialogs.panel import Panel
from kvchat.ui.models.model_choice import ModelBox
from kvchat.ui.settings.options_form import FormValues, OptionsForm
from kvchat.ui.settings.page import SettingsPage
from kvchat.ui.widgets.entries import ChoiceBox, Entry
from kvchat.ui.widgets.layouts import ElidedLabel, ScrollPage, flow

_WORDS = N_(
    "A preset is a system prompt with sampling settings and, optionally, a model. Apply it in the "
    "settings of a chat. New chats start with the default preset."
)


class OptionsPanel(Panel):
    """Window with an options form. Subclasses call `_build`, and override `_take`."""

    def __init__(
        self,
        runtime: Runtime,
        look: Look,
        runner: TaskRunner,
        title: str,
        parent: QWidget | None,
        size: tuple[int, int],
        least: tuple[int, int],
    ) -> None:
        super().__init__(runtime, look, runner, title, parent, size=size, least=least)
        self.form = OptionsForm(look)
        self.save, self._leave = button(_("Save"), self._save, "primary"), button(_("Cancel"), self.close)
        self.save.setDefault(True)  # Enter in a field saves

    async def _load_options(self, model: str | None, is_meant: Callable[[], bool], *, begun: bool = False) -> bool:
        """Show a model's options if `is_meant` still holds once loaded; return whether it did."""
        offered = await self._runtime.model.template_options(model)
        defaults = await self._runtime.model.default_sampling(model)
        if is_meant():
            self.form.set_options(offered, defaults, begun=begun)
        return is_meant()

    def open_empty(self) -> None:
        """Come to the front. Save is disabled until the form is filled."""
        self.save.setEnabled(False)
        self.bring_forward()

    def _take(self, values: FormValues) -> None:
        raise NotImplementedError

    def _save(self) -> None:
        if (values := self._read()) is not None:
            self._take(values)

    def _read(self) -> FormValues | None:
        try:
            values = self.form.read()
        except InvalidOptions as error:
            self.form.refuse(end_sentence(join_sentences(error.title, error.detail)))
            return None
        self.form.refuse("")
        return values

    def _build(self, *above: QWidget | QLayout) -> None:
        scroll = ScrollPage("settingsPage")
        column(self.form, on=scroll.content, margins=(24, 4, 24, 12))
        top = column(*above, spacing=8, margins=(24, 18, 24, 8))
        below = row(STRETCH, self._leave, self.save, spacing=8, margins=(24, 10, 24, 16))
        column(top, (scroll, 1), below, on=self, spacing=0, margins=0)


class PresetDialog(OptionsPanel):
    stored = Signal()

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Preset"), parent, (580, 640), (440, 360))
        self._preset = Preset("")
        self.setWindowModality(Qt.WindowModality.WindowModal)  # blocks its parent window
        self.name, self.with_model = line_edit(_("Name"), _("Name")), ChoiceBox(look, _("Model"))
        self._build(self.notices, self.name, self.with_model)

    def edit(self, preset: Preset) -> None:
        self._preset = preset
        self.name.setText(preset.name)
        model = preset.model or self._runtime.settings.model_path
        self.with_model.clear()
        self.with_model.addItem(_("Use the current model"), None)
        if model is not None:
            self.with_model.addItem(_("Always use {name_of}", name_of=self._runtime.model.name_of(model)), model)
        self.with_model.setCurrentIndex(1 if preset.model else 0)
        self.open_empty()
        self.name.setFocus()
        self.name.selectAll()
        self.run(self._load(preset, model))

    async def _load(self, preset: Preset, model: str | None) -> None:
        if await self._load_options(model, lambda: preset == self._preset):
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
        self.none = label(_("No presets yet. Choose “New…” to create one."), "muted")
        self.new = button(_("New…"), lambda: self.open(Preset(_("New preset"))))
        self.edit = button(_("Edit…"), lambda: self.open(self._chosen()))
        options = runtime.chat.options
        self.duplicate = button(_("Duplicate"), lambda: self._change(options.duplicate_preset))
        self.default = button(
            _("Make default"),
            lambda: self._change(
                lambda preset: options.store_preset(replace(preset, is_default=not preset.is_default))
            ),
        )
        self.delete = button(_("Delete…"), self._ask_delete, "danger")
        holder, buttons = QWidget(), flow(self.new, self.edit, self.duplicate, self.default, self.delete)
        column(self.list, self.none, buttons, on=holder, spacing=10, margins=0)
        self.add(Entry(_("Available presets"), _(_WORDS), holder, wide=True))
        self.list.currentRowChanged.connect(self._show_buttons)
        self.list.itemActivated.connect(lambda _: self.open(self._chosen()))
        self._show_buttons()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.load()

    def load(self) -> None:
        self.run(self._load())

    def open(self, preset: Preset | None) -> PresetDialog | None:
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
        for action in (self.edit, self.duplicate, self.default, self.delete):
            action.setEnabled(chosen is not None)
        self.default.setText(_("Remove default") if chosen and chosen.is_default else _("Make default"))

    def _change(self, work: Callable[[Preset], Awaitable[object]]) -> None:
        async def change(preset: Preset) -> None:
            await work(preset)
            await self._load()

        if preset := self._chosen():
            self.run(change(preset))

    def _ask_delete(self) -> None:
        if preset := self._chosen():
            confirm(
                self,
                _("Delete “{name}”?", name=preset.name),
                _("Chats that use this preset keep its settings."),
                _("Delete"),
                lambda: self._change(lambda _: self.runtime.chat.options.delete_preset(preset)),
            )


_EMPTY_FIELD = N_("Leave a field empty to use the model’s default (shown in gray).")


@dataclass(frozen=True)
class Subject:
    """Conversation to set up; no id means one not yet begun."""

    conversation_id: str | None
    title: str
    model: str | None  # path


class ChatSettings(OptionsPanel):
    begun = Signal(str)  # conversation created here
    presets_requested = Signal()

    def __init__(self, runtime: Runtime, look: Look, runner: TaskRunner, parent: QWidget | None = None) -> None:
        super().__init__(runtime, look, runner, _("Chat settings"), parent, (600, 720), (520, 400))
        self._subject = Subject(None, "", None)
        self._before, self._model_before = FormValues(), ""
        self._said = False
        self._presets: list[Preset] = []
        self._dialog: PresetDialog | None = None
        self.title, self.model = ElidedLabel("title"), ModelBox(runtime, look)
        self.preset, self.manage = ChoiceBox(look, _("Preset")), button(_("Presets…"), self.presets_requested)
        self.keep = button(_("Save as preset…"), self._keep)
        self.model.activated.connect(self._model_chosen)
        self.preset.activated.connect(self._take_preset)
        words, model = label(_(_EMPTY_FIELD), "small", wraps=True), row(label(_("Model")), (self.model, 1), spacing=8)
        below = row(self.manage, self.keep, STRETCH, spacing=8)
        self._build(self.title, words, self.notices, model, self.preset, below)

    def show_subject(self, subject: Subject) -> None:
        self._subject = subject
        self.title.set_text(subject.title)
        self.keep.setEnabled(False)
        self.open_empty()
        self.run(self._load(subject))

    async def _load(self, subject: Subject) -> None:
        chat, runtime, id = self._runtime.chat.options, self._runtime, subject.conversation_id
        await self._load_presets()
        preset, said = await chat.default_preset() or Preset(""), False
        if id is not None:
            chosen, said = await runtime.chat.turn_context.answer_settings(id), await chat.has_messages(id)
            preset = Preset("", await chat.system_prompt(id), subject.model, chosen.options)
        model = preset.model or runtime.settings.model_path
        if not await self._load_options(model, lambda: subject == self._subject, begun=said):
            return  # another conversation was opened meanwhile
        self._said, self._before, self._model_before = said, FormValues(preset.system, preset.options), model or ""
        self.model.begin(model)
        self.form.fill(self._before)
        self.save.setEnabled(True)
        self.keep.setEnabled(True)
        self.run(self.model.look())

    async def _load_presets(self) -> None:
        self._presets = await self._runtime.chat.options.presets()
        self.preset.clear()
        self.preset.addItem(_("Apply a preset…") if self._presets else _("No presets yet"))
        self.preset.addItems([preset.name for preset in self._presets])
        self.preset.setEnabled(bool(self._presets))

    def _model_chosen(self) -> None:
        model = self.model.path
        self.run(self._load_options(model, lambda: model == self.model.path, begun=self._said))

    def _take_preset(self, index: int) -> None:
        if index < 1:
            return
        preset = self._presets[index - 1]
        options = preset.options
        if self._said:  # they are fixed here
            options = type(options)(options.sampling, self._before.options.template)
        self.form.fill(FormValues(preset.system, options))
        if preset.model is not None and self.model.isEnabled():
            self.model.choose(preset.model)
            self._model_chosen()

    def _keep(self) -> None:
        values, model = self._read(), self.model.path
        if values is None:
            return
        if self._dialog is None:
            self._dialog = PresetDialog(self._runtime, self._look, self.runner, self)
            self._dialog.stored.connect(lambda: self.run(self._load_presets()))
        own = model if model != self._runtime.settings.model_path else None
        self._dialog.edit(Preset(_("New preset"), values.system, own, values.options))

    def _take(self, values: FormValues) -> None:
        def store() -> None:
            self.run(self._store(self._subject, values))

        if not self._said or values.system == self._before.system:
            store()
            return
        words = _(
            "The system prompt comes before all messages. The chat continues in a new branch, which "
            "the model processes once from the beginning. The current branch stays unchanged."
        )
        confirm(self, _("Continue with a different system prompt?"), words, _("Continue"), store)

    async def _store(self, subject: Subject, values: FormValues) -> None:
        chat, id, model = self._runtime.chat, subject.conversation_id, self.model.path
        await chat.options.validate(values.options)
        if id is None:
            own = model if model != self._runtime.settings.model_path else None
            made = await chat.create(chat_from_preset(Preset("", values.system, own, values.options)))
            self.begun.emit(made.id)
        else:
            await chat.options.change(id, values.options)
            await chat.options.change_system_prompt(id, values.system)
            if model and model != self._model_before:
                await chat.use_model(id, model)
        self.close()
