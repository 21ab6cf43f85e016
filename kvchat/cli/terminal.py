"""What the commands have in common on a terminal: rows as aligned lines, and how far something is."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kvchat.words.language import _
from kvchat.words.wording import size


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The rows as lines, indented, each column as wide as its widest entry."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def show_progress(what: str, done: int, total: int) -> None:
    """So many bytes of so many, in a line of standard error that the next one goes over; to nobody else's eyes."""
    if sys.stderr.isatty():
        amount = _("{done} of {total}", done=size(done), total=size(total)) if total else ""
        end = "\n" if total and done == total else ""
        print(f"\r{what} {amount:<24}", end=end, file=sys.stderr, flush=True)
