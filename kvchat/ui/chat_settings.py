"""Chat settings: how the open conversation is answered. Presets fill the fields; nothing is taken before Save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QWidget

from kvchat.chat.presets import Preset
from kvchat.runtime import Runtime
from kvchat.ui.confirm import confirm
from kvchat.ui.elided import ElidedLabel
from kvchat.ui.options_form import Filling
from kvchat.ui.options_panel import OptionsPanel
from kvchat.ui.settings_entries import ChoiceBox
from kvchat.ui.tasks import Wishes
from kvchat.ui.theme import Look

_WORDS = "An empty field is left to it; what stands there faintly is used then."


@dataclass(frozen=True)
class Subject:
    """What is being set: a conversation, or with None the one that has not begun."""

    conversation_id: str | None
    title: str
    model: str | None  # path


class ChatSettings(OptionsPanel):
    """One window, shown for one conversation at a time."""

    begun = Signal(str)  # a conversation that was made here
    presets_requested = Signal()

    def __init__(self, runtime: Runtime, look: Look, wishes: Wishes, parent: QWidget | None = None) -> None:
        super().__init__(look, wishes, "Chat settings", parent)
        self._runtime = runtime
        self._subject = Subject(None, "", None)
        self._before = Filling()
        self._said = False
        self._presets: list[Preset] = []
        self._model: str | None = None  # that of a preset that was taken
        self.resize(600, 680)
        self.setMinimumSize(520, 460)
        self.title, self.words = ElidedLabel("title"), QLabel()
        self.preset, self.manage = ChoiceBox(look), QPushButton("Presets…")
        self.preset.activated.connect(self._take_preset)
        self.manage.clicked.connect(self.presets_requested)
        self._fill()

    def show_subject(self, subject: Subject) -> None:
        """Show how a conversation is answered."""
        self._subject, self._model = subject, None
        self.title.set_text(subject.title)
        self.come()
        self.wish(self._load(subject))

    async def _load(self, subject: Subject) -> None:
        chat, runtime = self._runtime.chat.options, self._runtime
        self._presets = await chat.presets()
        if subject.conversation_id is not None:
            id = subject.conversation_id
            manner, self._said = await chat.manner(id), await chat.begun(id)
            filling = Filling(await chat.system_prompt(id), manner.options)
        else:
            preset = await chat.default_preset()
            filling, self._said = (Filling(preset.system, preset.options) if preset else Filling()), False
        model = subject.model or runtime.settings.model_path
        offered, defaults = await runtime.model.template_options(model), await runtime.model.default_sampling(model)
        if subject != self._subject:
            return  # another conversation was opened meanwhile
        self.form.offer(offered, defaults, begun=self._said)
        self.form.fill(filling)
        self._before = filling
        self.words.setText(f"Answered by {runtime.model.name_of(model)}. {_WORDS}" if model else _WORDS)
        self.preset.clear()
        self.preset.addItem("Take from a preset…" if self._presets else "No presets yet")
        self.preset.addItems([preset.name for preset in self._presets])
        self.preset.setEnabled(bool(self._presets))
        self.save.setEnabled(True)

    def _take_preset(self, index: int) -> None:
        if index < 1:
            return
        preset = self._presets[index - 1]
        options = preset.options
        if self._said:  # they are fixed here
            options = type(options)(options.sampling, self._before.options.template)
        self.form.fill(Filling(preset.system, options))
        self._model = preset.model

    def _take(self, filling: Filling) -> None:
        if self._said and filling.system != self._before.system:
            self._ask(lambda: self.wish(self._store(self._subject, filling)))
        else:
            self.wish(self._store(self._subject, filling))

    def _ask(self, go_on: Callable[[], object]) -> None:
        confirm(
            self,
            "Go on with another system prompt?",
            "It stands before everything that was said. The chat goes on in a new branch, which the model reads once "
            "from the beginning; the branch as it was is kept.",
            "Go on",
            go_on,
        )

    async def _store(self, subject: Subject, filling: Filling) -> None:
        chat, id = self._runtime.chat, subject.conversation_id
        await chat.options.check(filling.options)
        if id is None:
            made = await chat.begin(Preset("", filling.system, self._model, filling.options))
            self.begun.emit(made.id)
        else:
            await chat.options.change(id, filling.options)
            await chat.options.change_system_prompt(id, filling.system)
            if self._model:
                await chat.use_model(id, self._model)
        self.close()

    def _fill(self) -> None:
        self.words.setProperty("kind", "small")
        self.words.setTextFormat(Qt.TextFormat.PlainText)
        self.words.setWordWrap(True)
        self.preset.setAccessibleName("Preset")
        self.manage.setAccessibleName(self.manage.text())
        row = QHBoxLayout()
        row.setSpacing(8)
        row.addWidget(self.preset, 1)
        row.addWidget(self.manage)
        self._build(self.title, self.words, self.notices, row)
