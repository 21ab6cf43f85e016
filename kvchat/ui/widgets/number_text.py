"""Numbers as they stand in a settings field: how each is written and read back. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from kvchat.settings import GB

_SEPARATORS = re.compile(r"[\s,_'’]")
_TOKENS = re.compile(r"(\d+)(k?)(?:tokens?)?", re.IGNORECASE)
_DAYS = re.compile(r"(\d+)(?:days?)?", re.IGNORECASE)
_MINUTES = re.compile(r"(\d+)(?:min|minutes?)?", re.IGNORECASE)
_SIZE = re.compile(r"(\d+|\d*\.\d+)([mgt]?)b?", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"(\d),(\d{1,2})(?!\d)")
_SCALES = {"m": GB // 1000, "g": GB, "": GB, "t": 1000 * GB}


@dataclass(frozen=True)
class Notation:
    """How one kind of number is written and read. `read` raises ValueError with the reason, a sentence."""

    unit: str  # stands after the field
    write: Callable[[int], str]
    read: Callable[[str], int]


def read_tokens(text: str) -> int:
    """A count of tokens: "32768", "32,768", "32K" (of 1,024)."""
    found = _TOKENS.fullmatch(_SEPARATORS.sub("", text))
    if found is None:
        raise ValueError("This must be a number of tokens, such as 8192 or 32K.")
    return int(found[1]) * (1024 if found[2] else 1)


def read_days(text: str) -> int:
    """A count of days: "90", "90 days"."""
    found = _DAYS.fullmatch(_SEPARATORS.sub("", text))
    if found is None:
        raise ValueError("This must be a whole number of days, such as 90.")
    return int(found[1])


def read_minutes(text: str) -> int:
    """A count of minutes: "15", "15 min"."""
    found = _MINUTES.fullmatch(_SEPARATORS.sub("", text))
    if found is None:
        raise ValueError("This must be a whole number of minutes, such as 15.")
    return int(found[1])


def read_size(text: str) -> int:
    """Bytes, from decimal gigabytes unless another unit is given: "20", "7.5 GB", "500 MB", "1 TB"."""
    found = _SIZE.fullmatch(_SEPARATORS.sub("", _DECIMAL_COMMA.sub(r"\1.\2", text)))
    if found is None:
        raise ValueError("This must be a size, such as 20 GB or 500 MB.")
    return round(float(found[1]) * _SCALES[found[2].lower()])


TOKENS = Notation("tokens", "{:,}".format, read_tokens)
DAYS = Notation("days", "{:,}".format, read_days)
MINUTES = Notation("min", "{:,}".format, read_minutes)
GIGABYTES = Notation("GB", lambda count: f"{count / GB:.10g}", read_size)
