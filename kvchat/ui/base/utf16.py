"""Qt counts UTF-16 units, Python whole characters: an emoji is two here and one there."""

from __future__ import annotations


def part(text: str, start: int, end: int) -> str:
    """The part of `text` between two positions of Qt's."""
    if text.isascii():
        return text[start:end]
    return text.encode("utf-16-le", "surrogatepass")[2 * start : 2 * end].decode("utf-16-le", "replace")


def position(text: str, index: int) -> int:
    """Qt's position of the character at `index`."""
    return index if text.isascii() else len(text[:index].encode("utf-16-le", "surrogatepass")) // 2
