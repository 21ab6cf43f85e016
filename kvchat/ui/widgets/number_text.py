"""Numbers as they stand in a settings field: how each is written and read back. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from kvchat.settings import GB

_SEPARATORS = re.compile(r"[\s,_'’]")
_SIZE = re.compile(r"(\d+|\d*\.\d+)([mgt]?)b?", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"(\d),(\d{1,2})(?!\d)")
_SCALES = {"m": GB // 1000, "g": GB, "": GB, "t": 1000 * GB}


@dataclass(frozen=True)
class Notation:
    """How one kind of number is written and read. `read` raises ValueError with the reason, a sentence."""

    unit: str  # stands after the field
    write: Callable[[int], str]
    read: Callable[[str], int]


def _whole_number(unit: str, pattern: str, wanted: str) -> Notation:
    """A count, with or without its unit: the groups of `pattern` are the number and a K (1,024) where one may stand."""
    expression = re.compile(pattern, re.IGNORECASE)

    def read(text: str) -> int:
        found = expression.fullmatch(_SEPARATORS.sub("", text))
        if found is None:
            raise ValueError(f"This must be {wanted}.")
        return int(found[1]) * (1024 if found[2] else 1)

    return Notation(unit, "{:,}".format, read)


def _read_size(text: str) -> int:
    """Bytes, from decimal gigabytes unless another unit is given: "20", "7.5 GB", "500 MB", "1 TB"."""
    found = _SIZE.fullmatch(_SEPARATORS.sub("", _DECIMAL_COMMA.sub(r"\1.\2", text)))
    if found is None:
        raise ValueError("This must be a size, such as 20 GB or 500 MB.")
    return round(float(found[1]) * _SCALES[found[2].lower()])


TOKENS = _whole_number("tokens", r"(\d+)(k?)(?:tokens?)?", "a number of tokens, such as 8192 or 32K")
DAYS = _whole_number("days", r"(\d+)()(?:days?)?", "a whole number of days, such as 90")
MINUTES = _whole_number("min", r"(\d+)()(?:min|minutes?)?", "a whole number of minutes, such as 15")
GIGABYTES = Notation("GB", lambda count: f"{count / GB:.10g}", _read_size)
