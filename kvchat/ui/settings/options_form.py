"""Form for chat options: system prompt, sampling, options of the chat template, output format."""

from dataclasses import replace
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QWidget

from kvchat.chat.options import RANGES, ChatOptions, InvalidOptions, Preset, validate_options
from kvchat.engine.api.wire import Sampling
from kvchat.library.gguf.template_options import TemplateOption
from kvchat.session.host import TemplateOptions
from kvchat.text.formatting import SAMPLING
from kvchat.text.language import N_, _, localize_number, pgettext
from kvchat.ui.base.building import STRETCH, button, clear, column, label, line_edit, show_text, text_editor
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.entries import ChoiceBox

_NUMBER_HELP = {
    "temperature": N_("Lower is more predictable, higher is more creative"),
    "top_k": N_("Sample only from this many of the most likely tokens; 0: all"),
    "top_p": N_("Sample from the most likely tokens up to this total probability"),
    "min_p": N_("Exclude tokens less likely than this fraction of the most likely token"),
    "repeat_penalty": N_("Above 1, repeated tokens become less likely"),
    "presence_penalty": N_("Above 0, tokens that have already occurred become less likely"),
    "frequency_penalty": N_("Above 0, tokens become less likely the more often they have occurred"),
    "seed": N_("The same number gives the same reply; -1: different each time"),
    "max_tokens": N_("In tokens"),
}
# llama.cpp's defaults where neither user nor model author sets a value (llama.cpp, common/common.h).
_ENGINE_DEFAULTS: dict[str, float] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
}
_FREE, _SCHEMA, _GRAMMAR = N_("Free text"), N_("JSON that matches a schema"), N_("Text that matches a grammar")
_FORMATS = _FREE, _SCHEMA, _GRAMMAR
_PLACEHOLDERS = {"seed": N_("random"), "max_tokens": N_("no limit")}  # shown if there is no default value
_COLUMNS = 3


class OptionsForm(QWidget):
    """Form for chat options. An empty field uses the model's default, which is the field's placeholder."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.system = text_editor(_("System prompt"), _("Who the model should be and how it should reply"), lines=4)
        self.number_fields = {name: line_edit(_(known.label)) for name, known in RANGES.items()}
        self.stop_words_field = line_edit(_("Stop words"), pgettext("stop words", "none"))
        self.format, self.format_text = (
            ChoiceBox(look, _("Output format")),
            text_editor(_("Schema or grammar"), "", lines=5),
        )
        name, tip = _("Reset sampling"), _("Use the model’s defaults")
        self.reset_button = button(_("Reset"), self._reset, "link", name=name, tip=tip)
        self.refusal = label(kind="refusal", wraps=True)
        self._template: dict[str, ChoiceBox] = {}
        self.tools = ChatOptions()  # only tools and permission, which the form itself does not show
        self._unknown: TemplateOptions = ()  # options unknown to the model's template
        self._template_holder = QWidget()
        self._template_grid = QGridLayout(self._template_holder)
        text = _("Fixed because the chat has started: these options are part of the beginning of the prompt.")
        self._fixed_label = label(text, "small", wraps=True)
        self._build()
        self.format.currentIndexChanged.connect(self._show_format)
        self._show_format(0)

    def set_options(self, options: tuple[TemplateOption, ...], defaults: Sampling, *, chat_has_begun: bool) -> None:
        chosen = self._chosen_template_options()
        for name, field in self.number_fields.items():
            value = getattr(defaults, name)
            value = _ENGINE_DEFAULTS.get(name) if value is None else value
            field.setPlaceholderText(_(_PLACEHOLDERS.get(name, "")) if value is None else localize_number(f"{value:g}"))
        clear(self._template_grid)
        self._template = {}
        for row, option in enumerate(options):
            box = ChoiceBox(self._look, _(option.label))
            box.addItem(_("Model default"), None)
            for value, text in option.choices:
                box.addItem(_(text), value)
            box.setEnabled(not chat_has_begun)
            self._template[option.name] = box
            self._template_grid.addWidget(label(_(option.label), wraps=True), row, 0)
            self._template_grid.addWidget(box, row, 1)
        self._template_holder.setVisible(bool(options))
        self._fixed_label.setVisible(chat_has_begun and bool(options))
        self._select_template_options(chosen)

    def fill(self, preset: Preset) -> None:
        sampling, self.tools = preset.options.sampling, preset.options
        self.system.setPlainText(preset.system)
        for name, field in self.number_fields.items():
            value = getattr(sampling, name)
            field.setText("" if value is None else localize_number(f"{value:.10g}"))
        self.stop_words_field.setText(", ".join(sampling.stop or ()))
        kind = _SCHEMA if sampling.json_schema else _GRAMMAR if sampling.grammar else _FREE
        self.format.setCurrentIndex(_FORMATS.index(kind))
        self.format_text.setPlainText(sampling.json_schema or sampling.grammar or "")
        self._select_template_options(preset.options.template)
        show_text(self.refusal, "")

    def read(self) -> Preset:
        """Return the form's values as a preset without a name. Raises InvalidOptions."""
        values: dict[str, Any] = {}
        for name, field in self.number_fields.items():
            if text := field.text().strip():
                try:
                    values[name] = int(text) if RANGES[name].is_integer else float(text.replace(",", "."))
                except ValueError:
                    raise InvalidOptions(
                        _("{label}: “{text}” is not a valid number", label=_(RANGES[name].label), text=text), "", ""
                    ) from None
        stop = tuple(word.strip() for word in self.stop_words_field.text().split(",") if word.strip())
        text, kind = self.format_text.toPlainText().strip(), _FORMATS[self.format.currentIndex()]
        sampling = Sampling(
            **values,
            stop=stop or None,
            json_schema=text or None if kind == _SCHEMA else None,
            grammar=text or None if kind == _GRAMMAR else None,
        )
        options = replace(self.tools, sampling=sampling, template=self._chosen_template_options())
        validate_options(options)
        return Preset("", self.system.toPlainText().strip(), options=options)

    def _reset(self) -> None:
        options = replace(self.tools, sampling=Sampling(), template=self._chosen_template_options())
        self.fill(Preset("", self.system.toPlainText(), options=options))

    def _chosen_template_options(self) -> TemplateOptions:
        """Return the chosen options of the chat template, including those that only another model's template has."""
        chosen = [(name, box.currentData()) for name, box in self._template.items() if box.currentData() is not None]
        return tuple(sorted([*chosen, *self._unknown]))

    def _select_template_options(self, template: TemplateOptions) -> None:
        self._unknown = tuple(pair for pair in template if pair[0] not in self._template)
        for name, box in self._template.items():
            box.setCurrentIndex(max(0, box.findData(dict(template).get(name))))

    def _show_format(self, number: int) -> None:
        kind = _FORMATS[number]
        self.format_text.setVisible(kind != _FREE)
        example = '{"type": "object", "properties": {"name": {"type": "string"}}}'
        self.format_text.setPlaceholderText(example if kind == _SCHEMA else 'root ::= "yes" | "no"')

    def _build(self) -> None:
        self.stop_words_field.setToolTip(_("The reply ends at any of these words. Separate with commas."))
        self.format.addItems([_(kind) for kind in _FORMATS])
        self._template_grid.setContentsMargins(0, 4, 0, 0)
        self._template_grid.setColumnStretch(0, 1)
        above = label(_("System prompt"), "strong"), self.system, self._template_holder, self._fixed_label
        reset = self.reset_button, 0, Qt.AlignmentFlag.AlignLeft
        numbers = 6, label(_(SAMPLING), "strong"), self._build_numbers(), reset
        below = label(_("Output format"), "strong"), self.format, self.format_text, self.refusal, STRETCH
        column(*above, *numbers, *below, on=self, spacing=8, margins=0)

    def _build_numbers(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setHorizontalSpacing(14)
        grid.setVerticalSpacing(4)
        fields = [(_(RANGES[name].label), name, field) for name, field in self.number_fields.items()]
        for number, (text, name, field) in enumerate([*fields, (_("Stop words"), "", self.stop_words_field)]):
            line, place = divmod(number, _COLUMNS)
            above = label(text, "small", wraps=True)
            above.setBuddy(field)
            grid.setColumnStretch(place, 1)
            if name:
                field.setToolTip(_(_NUMBER_HELP[name]))
                field.setAccessibleDescription(_(_NUMBER_HELP[name]))
            span = _COLUMNS - place if not name else 1
            grid.addWidget(above, 2 * line, place, 1, span, Qt.AlignmentFlag.AlignBottom)
            grid.addWidget(field, 2 * line + 1, place, 1, span)
        return grid
