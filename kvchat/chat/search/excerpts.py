"""The line that shows a hit: plain words around it, without Markdown's marks, and where the hits are in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.words.folding import Term, any_span, spans
from kvchat.words.safe_text import calm
from kvchat.words.wording import one_line

Marks = tuple[tuple[int, int], ...]

_BEFORE, _AFTER = 32, 160  # characters of the line around its first hit
_MARGIN = 240  # so many more are read on both sides, to see the marks whose other end is cut off
_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_LINE = re.compile(  # what a line of Markdown may begin with, and lines that hold no words
    r"^[ \t]*(?:(?:>[ \t]?|\#{1,6}[ \t]+|[-*+][ \t]+(?:\[[ xX]\][ \t]+)?)+|[-=|:*_ \t]{3,}$)", re.MULTILINE
)
_INLINE = re.compile(
    r"(?P<tick>`+)(?P<code>[^`\n]+)(?P=tick)"
    r"|!?\[(?P<words>[^\]\n]*)\]\([^)\n]*\)"
    r"|(?P<gone>\*\*|__|~~|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w))"
    r"|\\(?P<escaped>[!-/:-@\[-`{-~])"
)
_ROW = re.compile(r"^[ \t]*\|.*$", re.MULTILINE)


@dataclass(frozen=True)
class Excerpt:
    """A line of a text, and where the hits are in it."""

    text: str
    marks: Marks


def excerpt(text: str, terms: Sequence[Term], *, markdown: bool) -> Excerpt | None:
    """The line of `text` around the first hit, None without one. `markdown`: it is read, and shown without its marks.

    A hit inside what Markdown hides, such as a link's address, is shown as it was written.
    """
    at = any_span(text, terms)
    if at is None:
        return None
    begin = max(at[0] - _BEFORE - _MARGIN, 0)
    piece = text[begin : at[1] + _AFTER + _MARGIN]
    in_code = len(_FENCE.findall(text, 0, begin)) % 2 == 1
    readings = (plain(piece, code=in_code), piece) if markdown else (piece,)
    for reading in readings:
        line = one_line(calm(reading))
        if found := spans(line, terms):
            break
    start = max(found[0][0] - _BEFORE, 0) if found else 0
    if start:  # not in the middle of a word, where there are words
        start = line.find(" ", start, found[0][0]) + 1 or start
    line = ("…" if start or begin else "") + line[start : start + _BEFORE + _AFTER]
    return Excerpt(line, tuple(spans(line, terms)))


def beginning(text: str, terms: Sequence[Term] = ()) -> Excerpt:
    """A text's first words."""
    line = one_line(calm(text[: _BEFORE + _AFTER + _MARGIN]))[: _BEFORE + _AFTER]
    return Excerpt(line, tuple(spans(line, terms)))


def plain(piece: str, *, code: bool = False) -> str:
    """A piece of Markdown, which may begin and end anywhere, as words; `code`: it begins inside a fenced block."""
    parts = _FENCE.split(piece)
    return "\n".join(part if (i % 2 == 1) is not code else _prose(part) for i, part in enumerate(parts))


def _prose(piece: str) -> str:
    rows = _ROW.sub(lambda row: row[0].replace("|", " "), _LINE.sub("", piece))
    return _INLINE.sub(_kept, rows)


def _kept(found: re.Match[str]) -> str:
    return found["code"] or found["words"] or found["escaped"] or ""
