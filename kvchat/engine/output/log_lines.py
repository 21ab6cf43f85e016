"""The engine's log as lines with a level. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import IntEnum

# "0.00.296.764 E ggml_…": minutes, seconds, milli- and microseconds, level (llama.cpp's common/log.cpp).
_LEVEL = re.compile(r"^(?:\d+\.)+\d+ ([DIWE]) ")
_TROUBLE = re.compile(r"\berror\b|\bfailed\b|GGML_ASSERT|GGML_ABORT|terminate called", re.IGNORECASE)


class Level(IntEnum):
    """How much a line matters."""

    DETAIL = 0
    INFO = 1
    WARNING = 2
    ERROR = 3


_LETTERS = {"D": Level.DETAIL, "I": Level.INFO, "W": Level.WARNING, "E": Level.ERROR}


def with_levels(lines: Iterable[str]) -> Iterator[tuple[Level, str]]:
    """Each line with its level.

    A line without one is an error if it sounds like one, and else continues the line before it.
    """
    level = Level.INFO
    for line in lines:
        match = _LEVEL.match(line)
        if match:
            level = _LETTERS[match[1]]
            yield level, line
        elif _TROUBLE.search(line):
            yield Level.ERROR, line
        else:
            yield level, line


def at_least(lines: Iterable[str], least: Level) -> list[str]:
    """The lines that matter that much."""
    return [line for level, line in with_levels(lines) if level >= least]
