"""The options of chat templates that kvchat knows: how much a model thinks. Found by their names in the template."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class TemplateOption:
    """A variable of the chat template, and the values it may have with their words."""

    name: str
    words: str
    choices: tuple[tuple[bool | str, str], ...]


_ON_OFF: tuple[tuple[bool | str, str], ...] = ((True, "On"), (False, "Off"))
_EFFORTS: tuple[tuple[bool | str, str], ...] = (("low", "Low"), ("medium", "Medium"), ("high", "High"))
_KNOWN = (
    TemplateOption("enable_thinking", "Think before replying", _ON_OFF),  # Qwen3, GLM, SmolLM3 and many more
    TemplateOption("thinking", "Think before replying", _ON_OFF),  # DeepSeek V3.1, Granite
    TemplateOption("reasoning_effort", "Reasoning effort", _EFFORTS),  # gpt-oss
)
# A name that stands for nothing but a variable of the template: not an attribute, not in quotes.
_VARIABLE = r"(?<![\w.'\"<]){name}(?![\w'\">])"
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_CODE = re.compile(r"\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)


def words_in(template: str) -> tuple[str, ...]:
    """The names of the known options that a chat template asks for."""
    code = " ".join(_CODE.findall(_COMMENT.sub("", template)))
    return tuple(option.name for option in _KNOWN if re.search(_VARIABLE.format(name=option.name), code))


def known_options(names: Iterable[str]) -> tuple[TemplateOption, ...]:
    """The options of these names."""
    wanted = set(names)
    return tuple(option for option in _KNOWN if option.name in wanted)
