"""Which titles fit what was typed, best first: letters in order, those at the beginning of words count more. No Qt."""

from __future__ import annotations

import heapq
import unicodedata
from collections.abc import Sequence

_WHOLE, _START, _WORD, _INSIDE, _SCATTERED = 5, 4, 3, 2, 1  # how well the letters lie, from best to worst


def folded(text: str) -> str:
    """Without case and accents."""
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in parts if not unicodedata.combining(letter))


def best(typed: str, titles: Sequence[str], most: int) -> list[int]:
    """The places of the `most` titles that fit best; `titles` are folded. With nothing typed, the first ones.

    Of titles that fit equally well the shorter goes first, then the one that stands first.
    """
    wanted = " ".join(folded(typed).split())
    if not wanted:
        return list(range(min(most, len(titles))))
    scored = ((_score(wanted, title), -len(title), -place) for place, title in enumerate(titles))
    return [-place for _, _, place in heapq.nlargest(most, (one for one in scored if one[0]))]


def _score(wanted: str, title: str) -> int:
    """0 if it does not fit."""
    found = title.find(wanted)
    if found >= 0:
        if found == 0:
            return _WHOLE if len(title) == len(wanted) else _START
        return _WORD if f" {wanted}" in title else _INSIDE
    if all(word in title for word in wanted.split(" ")):
        return _INSIDE
    at = -1
    for letter in wanted.replace(" ", ""):
        at = title.find(letter, at + 1)
        if at < 0:
            return 0
    return _SCATTERED
