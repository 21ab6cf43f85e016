"""JSON with the places of its values, so that one of them can be changed and every other byte stays as it came."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_SPACE = re.compile(r"[ \t\n\r]*")
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True)
class Located:
    """A value in a JSON text that is known to be well-formed."""

    text: str
    start: int
    end: int

    @property
    def value(self) -> Any:
        """The value itself."""
        return _decode(self.text, self.start)[0]

    @property
    def source(self) -> str:
        """As it stands in the text."""
        return self.text[self.start : self.end]

    def members(self) -> dict[str, Located]:
        """The values of an object, the last of those with one name; none of anything else."""
        found: dict[str, Located] = {}
        if self.text[self.start] != "{":
            return found
        at = _skip(self.text, self.start + 1)
        while self.text[at] == '"':
            name, end = _decode(self.text, at)
            at = _skip(self.text, _skip(self.text, end) + 1)
            _, end = _decode(self.text, at)
            found[name] = Located(self.text, at, end)
            at = self._next(end)
        return found

    def items(self) -> list[Located]:
        """The values of an array; none of anything else."""
        found: list[Located] = []
        if self.text[self.start] != "[":
            return found
        at = _skip(self.text, self.start + 1)
        while self.text[at] != "]":
            _, end = _decode(self.text, at)
            found.append(Located(self.text, at, end))
            at = self._next(end)
        return found

    def _next(self, end: int) -> int:
        at = _skip(self.text, end)
        return _skip(self.text, at + 1) if self.text[at] == "," else at


@dataclass(frozen=True)
class Edit:
    """What is to stand in a text instead of a stretch of it."""

    start: int
    end: int
    new: str


def located(text: str) -> Located:
    """The whole of a well-formed JSON text."""
    start = _skip(text, 0)
    return Located(text, start, _decode(text, start)[1])


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with its edits, which do not overlap."""
    pieces, at = list[str](), 0
    for edit in sorted(edits, key=lambda one: one.start):
        pieces += [text[at : edit.start], edit.new]
        at = edit.end
    return "".join([*pieces, text[at:]])


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
