"""Chat settings: how the open conversation is answered. Presets fill the fields; nothing is taken before Save."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from kvchat.chat.options import Preset
from kvchat.runtime import Runtime
from kvchat.ui.base.building import STRETCH, button, label, row
from kvchat.ui.base.tasks import TaskRunner
from kvchat.ui.base.theme import Look
from kvchat.ui.dialogs.confirm import confirm
from kvchat.ui.models.model_choice import ModelBox
from kvchat.ui.settings.options_form import FormValues
from kvchat.ui.settings.presets import OptionsPanel, PresetDialog
from kvchat.ui.widgets.entries import ChoiceBox
from kvchat.ui.widgets.layouts import ElidedLabel
from kvchat.words.language import N_, _

_WORDS = N_("An empty field is left to the model; what stands there faintly is used then.")


@dataclass(frozen=True)
class Subject:
    """Conversation to be set up; without an id the one that has not begun."""

    conversation_id: str | None
    title: str
    model: str | None  # path


class ChatSettings(OptionsPanel):
    """One window, shown for one conversation at a time."""

    begun = Signal(str)  # a conversation that was made here
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
        words, model = label(_(_WORDS), "small", wraps=True), row(label(_("Model")), (self.model, 1), spacing=8)
        below = row(self.manage, self.keep, STRETCH, spacing=8)
        self._build(self.title, words, self.notices, model, self.preset, below)

    def show_subject(self, subject: Subject) -> None:
        self._subject = subject
        self.title.set_text(subject.title)
        self.keep.setEnabled(False)
        self.come()
        self.run(self._load(subject))

    async def _load(self, subject: Subject) -> None:
        chat, runtime, id = self._runtime.chat.options, self._runtime, subject.conversation_id
        await self._load_presets()
        preset, said = await chat.default_preset() or Preset(""), False
        if id is not None:
            chosen, said = await chat.answer_settings(id), await chat.begun(id)
            preset = Preset("", await chat.system_prompt(id), subject.model, chosen.options)
        model = preset.model or runtime.settings.model_path
        if not await self._offer(model, lambda: subject == self._subject, begun=said):
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
        self.preset.addItem(_("Take from a preset…") if self._presets else _("No presets yet"))
        self.preset.addItems([preset.name for preset in self._presets])
        self.preset.setEnabled(bool(self._presets))

    def _model_chosen(self) -> None:
        """Offer what the chosen model's template knows and samples with."""
        model = self.model.path
        self.run(self._offer(model, lambda: model == self.model.path, begun=self._said))

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
        """Make a preset of the form's values; its dialog asks for a name."""
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
            "It stands before everything that was said. The chat goes on in a new branch, which the model reads once "
            "from the beginning; the branch as it was is kept."
        )
        confirm(self, _("Go on with another system prompt?"), words, _("Go on"), store)

    async def _store(self, subject: Subject, values: FormValues) -> None:
        chat, id, model = self._runtime.chat, subject.conversation_id, self.model.path
        await chat.options.check(values.options)
        if id is None:
            own = model if model != self._runtime.settings.model_path else None
            made = await chat.begin(Preset("", values.system, own, values.options))
            self.begun.emit(made.id)
        else:
            await chat.options.change(id, values.options)
            await chat.options.change_system_prompt(id, values.system)
            if model and model != self._model_before:
                await chat.use_model(id, model)
        self.close()
