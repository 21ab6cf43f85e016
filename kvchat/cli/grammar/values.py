"""What stands on the command line, as values; argparse makes usage messages of what these functions raise."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.settings import MOST_BYTES, MOST_CONTEXT, why_not
from kvchat.words.wording import size

MOST_QUESTION = 64_000_000  # bytes, as of a file that is attached
_UNREAD = re.compile("[\ud800-\udfff]")  # Python's surrogateescape
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}  # decimal, as all sizes kvchat shows


class NoQuestion(KvchatError):
    """There is nothing that could be asked."""


def positive(digits: str) -> int:
    """A whole number above zero, and none that nobody could wait for."""
    number = int(digits)  # argparse makes a usage message of its ValueError
    if not 1 <= number <= MOST_CONTEXT:
        raise argparse.ArgumentTypeError(f"{digits} is not from 1 to {MOST_CONTEXT:,}")
    return number


def setting(name: str, read: Callable[[str], float]) -> Callable[[str], float]:
    """A number within the bounds that the setting `name` has."""

    def number(digits: str) -> float:
        value = read(digits)
        if why := why_not(name, value):
            raise argparse.ArgumentTypeError(f"{digits}: {why}")
        return value

    return number


def text(words: str) -> str:
    """Words that a locale could not read are read as UTF-8; bytes that are none are shown as such."""
    if not _UNREAD.search(words):
        return words
    return os.fsencode(words).decode("utf-8", "replace")


def named_path(name: str) -> Path:
    """A path that can be written down: what answers a chat is remembered by it."""
    if text(name) != name:
        raise argparse.ArgumentTypeError(f"the name {text(name)!r} is not in UTF-8: rename it")
    return Path(name)


def standard_input() -> str:
    """All of standard input as text. Raises NoQuestion for what nobody can ask."""
    given = sys.stdin.buffer.read(MOST_QUESTION + 1) if sys.stdin else b""
    if len(given) > MOST_QUESTION:
        raise NoQuestion(
            "The question is too long", f"It is larger than {size(MOST_QUESTION)}.", "Attach a part of it."
        )
    return given.decode("utf-8-sig", "replace").replace("\0", "")


def byte_count(words: str) -> int:
    """A size as a user writes it: "2GB", "1.5 gb", "500M", "1000000"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", words, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{words!r} is not a size; write it as 500MB or 2GB")
    size_bytes = float(match[1]) * _UNITS[match[2].upper()]
    if size_bytes > MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{words!r} is more than any disk has")
    return round(size_bytes)
