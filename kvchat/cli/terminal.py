"""What the commands have in common on a terminal: rows as aligned lines, and how far something is."""

from __future__ import annotations

import argparse
import sys
import unicodedata
from collections.abc import Sequence

from kvchat.words.language import N_, _
from kvchat.words.wording import size


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The rows as lines, indented, each column as wide as its widest entry."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(padded, row, widths)).rstrip() for row in rows]


def width(text: str) -> int:
    """How many cells of a terminal it takes: ideographs, kana and Hangul take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def padded(text: str, cells: int) -> str:
    """As wide as so many cells, if it is not wider."""
    return text + " " * (cells - width(text))


def show_progress(what: str, done: int, total: int) -> None:
    """So many bytes of so many, in a line of standard error that the next one goes over; to nobody else's eyes."""
    if sys.stderr.isatty():
        amount = _("{done} of {total}", done=size(done), total=size(total)) if total else ""
        end = "\n" if total and done == total else ""
        print(f"\r{what} {padded(amount, 24)}", end=end, file=sys.stderr, flush=True)


# argparse's own words: it asks a catalogue for them that nobody has here, so it is given kvchat's.
_ARGPARSE = (
    *(N_("usage: "), N_("positional arguments"), N_("options"), N_("show this help message and exit")),
    *(N_("show program's version number and exit"), N_("%(prog)s: error: %(message)s\n")),
    *(N_("argument %(argument_name)s: %(message)s"), N_("the following arguments are required: %s")),
    *(N_("unrecognized arguments: %s"), N_("invalid choice: %(value)r (choose from %(choices)s)")),
    *(N_("invalid %(type)s value: %(value)r"), N_("expected one argument"), N_("not allowed with argument %s")),
)


def explain_commands(parser: argparse.ArgumentParser) -> None:
    """Have the help of each command, and of theirs, begin with what the list of commands says of it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                command = action.choices[listed.dest]
                command.description = listed.help
                explain_commands(command)


def speak_argparse() -> None:
    """Have argparse say its own words in the language in force."""
    argparse._ = _  # type: ignore[attr-defined]
