"""What a message is made of on the page: prose, code, and what scrolls sideways. Plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Formula:
    """One LaTeX formula; `source` is how it was written, delimiters included."""

    tex: str
    display: bool
    source: str


@dataclass(frozen=True)
class Prose:
    """A paragraph, heading, quote or list item, as HTML made of tags QTextDocument knows.

    Formula number i stands in the HTML as `<!--math:i-->`. A list item is `<li>…</li>`; its list's tag is `list_tag`.
    """

    html: str
    source: str  # the Markdown it came from
    formulas: tuple[Formula, ...] = ()
    list_tag: str = ""
    heading: bool = False


@dataclass(frozen=True)
class Code:
    """A fenced code block; `indent` counts the lists it stands in."""

    language: str
    text: str
    source: str
    indent: int = 0


@dataclass(frozen=True)
class Wide:
    """What may be wider than the page, a table or a displayed formula, as HTML like Prose."""

    html: str
    source: str
    formulas: tuple[Formula, ...] = ()
    columns: int = 0  # of a table


Block = Prose | Code | Wide
