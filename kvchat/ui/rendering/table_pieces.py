"""A long table is read as several short ones while it grows: each is soon laid out again."""

from __future__ import annotations

from collections.abc import Iterable

from kvchat.ui.rendering.blocks import Block, Wide
from kvchat.ui.rendering.markdown import Unit

TABLE_CELLS = 120  # of one table while it grows; a longer one goes on in another one below it, under the same head
JOINED_CELLS = 360  # of one that has ended: it is joined again if it is laid out in a few milliseconds
_FEWEST_ROWS = 8


def table_pieces(unit: Unit, source: str) -> list[str]:
    """A table as one or more that are soon laid out, each with the head. Lines behind it go with the last one."""
    columns = sum(token.type == "th_open" for token in unit.tokens)
    lines = source.splitlines(keepends=True)
    end, most = unit.end_line - unit.first_line, _rows_of_a_piece(columns)
    cuts = range(2, max(min(end, len(lines)), 3), most)
    ends = [*cuts[1:], len(lines)]
    return ["".join([*lines[:2], *lines[at:to]]) for at, to in zip(cuts, ends, strict=True)]


def pieces_of_one_table(blocks: Iterable[Block]) -> tuple[list[str], int]:
    """The sources of the pieces of one table with which `blocks` begins, the head in the first alone, and their cells.

    All but a table's last piece have just as many rows as a piece may have.
    """
    pieces: list[str] = []
    head, cells = "", 0
    for block in blocks:
        if not isinstance(block, Wide) or not block.columns:
            break
        lines = block.source.splitlines(keepends=True)
        if pieces and "".join(lines[:2]) != head:
            break
        head = "".join(lines[:2])
        pieces.append(block.source.removeprefix(head) if pieces else block.source)
        cells += (len(lines) - 2) * block.columns
        if len(lines) - 2 != _rows_of_a_piece(block.columns):
            break
    return pieces, cells


def _rows_of_a_piece(columns: int) -> int:
    return max(TABLE_CELLS // columns, _FEWEST_ROWS)
