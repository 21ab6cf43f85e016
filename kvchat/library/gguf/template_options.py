"""Known options of chat templates: reasoning effort, and whether later prompts include earlier reasoning.

Options are found by name in the template, without a Jinja parser. For 70 of the 71 templates of llama.cpp b11434, the
result equals Jinja2's list of undeclared variables.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvchat.text.language import N_

Choices = tuple[tuple[bool | str, str], ...]


@dataclass(frozen=True)
class TemplateOption:
    name: str
    label: str
    choices: Choices


_THINK, _REMEMBER, _HOW_MUCH = N_("Reasoning"), N_("Keep earlier reasoning"), N_("Reasoning effort")
_YES_NO: Choices = ((True, N_("On")), (False, N_("Off")))
_NO_YES: Choices = ((False, N_("On")), (True, N_("Off")))  # for variables that turn the feature off
_EFFORTS: Choices = (("low", N_("Low")), ("medium", N_("Medium")), ("high", N_("High")))
_KNOWN_OPTIONS = (
    TemplateOption("enable_thinking", _THINK, _YES_NO),  # Qwen3, GLM, SmolLM3 and many more
    TemplateOption("thinking", _THINK, _YES_NO),  # DeepSeek V3.1, Granite, Kimi
    TemplateOption("reasoning", _THINK, _YES_NO),  # Cohere
    TemplateOption("thinking_option", _THINK, (("on", N_("On")), ("off", N_("Off")))),  # Ling
    TemplateOption("thinking_mode", _THINK, (("enabled", N_("On")), ("disabled", N_("Off")))),  # MiniMax
    TemplateOption("reasoning_effort", _HOW_MUCH, _EFFORTS),  # gpt-oss
    TemplateOption("thinking_effort", _HOW_MUCH, _EFFORTS),  # Kimi
    TemplateOption("reasoning_strength", _HOW_MUCH, _EFFORTS),
    TemplateOption("preserve_thinking", _REMEMBER, _YES_NO),  # LFM2.5, Laguna
    TemplateOption("preserved_thinking", _REMEMBER, _YES_NO),  # Hy3
    TemplateOption("keep_past_thinking", _REMEMBER, _YES_NO),  # LFM2.5
    TemplateOption("clear_thinking", _REMEMBER, _NO_YES),  # GLM
    TemplateOption("truncate_history_thinking", _REMEMBER, _NO_YES),  # Nemotron
    TemplateOption("drop_thinking", _REMEMBER, _NO_YES),  # DeepSeek V4
)
_EFFORT_ORDER = ("off", "none", "no_think", "disabled", "minimal", "low", "medium", "high", "xhigh", "max")  # ascending
_LABELS = {"no_think": N_("None"), "xhigh": N_("Very high"), "max": N_("Maximum")} | {
    value: label for option in _KNOWN_OPTIONS for value, label in option.choices if isinstance(value, str)
}
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_TAG = re.compile(r"\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
_STRING_LITERAL = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)
_VARIABLE_USE = r"(?<![\w.]){name}\b(?!\s*=[^=])(?!\()"  # not an attribute, assignment or call
_COMPARISON = r"(?<![\w.]){name}(?:\s*\|\s*lower)?\s*(?:[!=]=\s*({text})|(?:not\s+)?in\s*[\[(]([^\])]*)[\])])"


def template_variables(template: str) -> dict[str, tuple[str, ...]]:
    """Return the option variables in a chat template, each with the values that the template compares it with."""
    tags = _TAG.findall(_COMMENT.sub("", template))
    code, bare = " ".join(tags), " ".join(_STRING_LITERAL.sub("''", tag) for tag in tags)
    names = [option.name for option in _KNOWN_OPTIONS if re.search(_VARIABLE_USE.format(name=option.name), bare)]
    return {name: _values(name, code) for name in names}


def known_options(variables: Mapping[str, tuple[str, ...]]) -> tuple[TemplateOption, ...]:
    """Return the options that these variables control. If several variables mean the same, only one is used.

    If the template mentions values for a variable, these are the choices.
    """
    options: dict[str, TemplateOption] = {}
    for option in _KNOWN_OPTIONS:
        if option.name not in variables or option.label in options:
            continue
        if variables[option.name] and not isinstance(option.choices[0][0], bool):
            labels = ((value, value.replace("_", " ").capitalize()) for value in variables[option.name])
            option = replace(option, choices=tuple((value, _LABELS.get(value, label)) for value, label in labels))
        options[option.label] = option
    return tuple(options.values())


def _values(name: str, code: str) -> tuple[str, ...]:
    """Return the strings that a template compares the variable with, in ascending order of effort if known."""
    values: set[str] = set()
    for comparison in re.finditer(_COMPARISON.format(name=name, text=_STRING_LITERAL.pattern), code, re.DOTALL):
        values |= {single or double for single, double in _STRING_LITERAL.findall(comparison[0])}
    rank = {value: position for position, value in enumerate(_EFFORT_ORDER)}
    return tuple(sorted(values - {""}, key=lambda value: (rank.get(value, len(rank)), value)))
