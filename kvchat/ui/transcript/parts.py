"""The parts of messages, the rows that show them, and how to copy them as text or Markdown."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape, unescape
from itertools import groupby
from operator import attrgetter
from typing import Any

from PySide6.QtGui import QTextBlock, QTextCursor, QTextDocument
from PySide6.QtWidgets import QTextEdit, QWidget

from kvchat.ui.rendering.code_view import CodeView
from kvchat.ui.rendering.formulas import FORMULA_PREFIX
from kvchat.ui.rendering.markdown import Block, Code, Prose, WideBlock
from kvchat.ui.rendering.text_page import FORMULA_PLACEHOLDER, PageStyle, TextPage, WidePage, fragments, join_blocks
from kvchat.ui.widgets.text_search import utf16_slice

_MAX_PAGE_LENGTH = 1_000  # source characters per page of prose; an update lays out one page again
_COLUMN_TOP = 20  # pixels above the first row
_INDENT = 24  # pixels per list level
_GAP, _GAP_ITEM, _GAP_CARD, _GAP_HEADING = 6, 7, 10, 0  # pixels above a part; headings and texts add their own margins
MAX_HEIGHT = (1 << 24) - 1  # pixels; Qt's maximum
_INVISIBLE = dict.fromkeys(map(ord, "\ufdd0\ufdd1\u2060"))  # Qt's marks around tables, and formulas' word joiner
_OBJECT_CHARACTER = "\ufffc"
_TASK_BOXES = ("☐", "☑")
_TAG = re.compile("<[^>]*>")


@dataclass(frozen=True)
class Part:
    """Content of one row of a message. A row whose part has changed keeps its widget if the class is the same."""

    widget_class: type[QWidget]  # has show_blocks and show_state as needed
    blocks: tuple[Block, ...] = ()  # its text
    state: Any = None  # other content of the widget
    gap: int = 0  # pixels above it
    indent: int = 0  # pixels beside it
    is_framed: bool = False  # in the bubble of a question, or beside the line that marks thinking
    max_height: int = MAX_HEIGHT
    make: Callable[[], QWidget] | None = field(default=None, compare=False)  # None: a page or code in the usual style

    @cached_property
    def text(self) -> str:
        """The text without formatting, to search it before it has a widget."""
        texts = (block.text if isinstance(block, Code) else unescape(_TAG.sub("", block.html)) for block in self.blocks)
        return "\n".join(texts)

    def estimated_height(self, style: PageStyle, width: int) -> int:
        return self.gap + sum(estimated_height(block.source, style, width) for block in self.blocks)


END = Part(QWidget)  # of the row below a message's parts, which has no widget


class Row:
    """A row of the transcript: a part of a message, or its end. Only rows in view have widgets."""

    def __init__(self, message_id: str, part: Part, height: int) -> None:
        self.message_id, self.part = message_id, part
        self.height, self.is_measured = height, False  # pixels; estimated until it is measured
        self.index = self.top = 0  # -1: it was removed
        self.widget: Any = None
        self.text: QTextEdit | None = None  # the widget's text

    @property
    def bottom(self) -> int:
        return self.top + self.height


class RowList:
    """The rows, top to bottom. Their positions are computed when they are needed."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._placed = 0  # number of leading rows whose index and position are up to date

    @property
    def rows(self) -> list[Row]:
        y = self._rows[self._placed - 1].bottom if self._placed else _COLUMN_TOP
        for index in range(self._placed, len(self._rows)):
            row = self._rows[index]
            row.index, row.top = index, y
            y += row.height
        self._placed = len(self._rows)
        return self._rows

    @property
    def bottom(self) -> int:
        return self.rows[-1].bottom if self._rows else _COLUMN_TOP

    def between(self, top: int, bottom: int) -> list[Row]:
        first = bisect_right(self.rows, top, key=attrgetter("bottom"))
        return self._rows[first : bisect_left(self._rows, bottom, lo=first, key=attrgetter("top"))]

    def replace(self, first: int, last: int, rows: Iterable[Row]) -> None:
        """Replace the rows from index `first` to `last`."""
        self._rows[first : last + 1] = rows
        self._placed = min(self._placed, first)

    def set_height(self, row: Row, height: int) -> bool:
        has_changed = height != row.height
        if has_changed:
            row.height = height
            self._placed = min(self._placed, row.index + 1)
        return has_changed


def estimated_height(text: str, style: PageStyle, width: int) -> int:
    return round((1 + text.count("\n") + len(text) * style.letter_width / width) * style.line_height)


def text_parts(blocks: Sequence[Block], before: Sequence[Part] = ()) -> list[Part]:
    """Return the parts of a reply's text. Short prose is joined to pages. `before` are the parts at the last call."""
    parts: list[Part] = []
    at = 0
    for part in before:
        if part.blocks != tuple(blocks[at : at + len(part.blocks)]):
            break
        parts.append(part)
        at += len(part.blocks)
    if parts:
        at -= len(parts.pop().blocks)  # more may fit
    while at < len(blocks):
        first, end = blocks[at], at + 1
        room = _MAX_PAGE_LENGTH - len(first.source)
        while isinstance(first, Prose) and end < len(blocks) and isinstance(blocks[end], Prose):
            room -= len(blocks[end].source)
            if room < 0:
                break
            end += 1
        gap = _gap_between(blocks[at - 1], first) if at else 0
        if isinstance(first, Code):
            parts.append(Part(CodeView, (first,), first.language, gap, _INDENT * first.indent))
        else:
            kind = WidePage if isinstance(first, WideBlock) else TextPage
            parts.append(Part(kind, tuple(blocks[at:end]), gap=gap))
        at = end
    return parts


def _gap_between(above: Block, below: Block) -> int:
    if not (isinstance(above, Prose) and isinstance(below, Prose)):
        return _GAP_CARD
    return _GAP_HEADING if below.is_heading else _GAP_ITEM if above.list_tag and below.list_tag else _GAP


def selected_markdown(part: Part, text: QTextEdit) -> str:
    """Return the Markdown of all blocks that the selection in `text` touches; plain text if within one block."""
    selection, (first, *_rest) = selected_text(text), part.blocks
    if isinstance(first, Code):
        is_whole = len(selection) >= text.document().characterCount() - 1
        return f"```{first.language}\n{first.text if is_whole else selection}\n```"
    assert isinstance(text, TextPage)
    cursor = text.textCursor()
    start, end = cursor.selectionStart(), cursor.selectionEnd()
    starts = text.block_starts()
    ends = [*starts[1:], text.document().characterCount()]
    touched = [i for i in range(len(starts)) if starts[i] < end and ends[i] > start]
    if len(touched) == 1 and (start > starts[touched[0]] or end < ends[touched[0]] - 1):
        return selection
    return whole_markdown(part.blocks[i] for i in touched)


def whole_markdown(blocks: Iterable[Block]) -> str:
    separated = (block.source + ("" if isinstance(block, Prose) and block.list_tag else "\n") for block in blocks)
    return "".join(separated).strip("\n")


def whole_text(blocks: Iterable[Block]) -> str:
    """Return the text of blocks without formatting."""
    pieces: list[str] = []
    for kind, group in groupby(blocks, type):
        if kind is Prose:
            pieces.append(_plain_text([block for block in group if not isinstance(block, Code)]))
        else:
            pieces += [block.text if isinstance(block, Code) else _plain_text([block]) for block in group]
    return "\n\n".join(pieces)


def selected_text(text: QTextEdit) -> str:
    cursor = text.textCursor()
    source = text.formulas.source if isinstance(text, TextPage) else str
    return _text_between(text.document(), cursor.selectionStart(), cursor.selectionEnd(), source)


def _plain_text(blocks: Sequence[Prose | WideBlock]) -> str:
    def with_sources(block: Prose | WideBlock) -> str:
        return FORMULA_PLACEHOLDER.sub(
            lambda match: escape(block.formulas[int(match[1])].source, quote=False), block.html
        )

    document = QTextDocument()
    document.setHtml(join_blocks(blocks, map(with_sources, blocks)))
    return _text_between(document, 0, document.characterCount(), str)


def _text_between(document: QTextDocument, start: int, end: int, formula_source: Callable[[str], str]) -> str:
    """Return the text from `start` to `end`, with formulas as LaTeX, list bullets, and tabs between table cells."""
    pieces: list[str] = []
    block = document.findBlock(start)
    previous: QTextBlock | None = None
    while block.isValid() and block.position() < end:
        if previous is not None:
            pieces.append("\t" if _in_same_row(previous, block) else "\n")
        items = block.textList()
        if items is not None and start <= block.position() and not block.text().startswith(_TASK_BOXES):
            item, indent = items.itemText(block), "  " * (items.format().indent() - 1)
            pieces.append(f"{indent}{item if item[:1].isdigit() else '-'} ")
        for fragment in fragments(block):
            first, form = fragment.position(), fragment.charFormat()
            piece = utf16_slice(fragment.text(), max(start - first, 0), max(end - first, 0))
            if piece and form.isImageFormat():
                name = form.toImageFormat().name()
                piece = piece.replace(
                    _OBJECT_CHARACTER, formula_source(name) if name.startswith(FORMULA_PREFIX) else ""
                )
            pieces.append(piece.replace("\u2028", "\n").replace("\xa0", " "))
        previous, block = block, block.next()
    return "".join(pieces).translate(_INVISIBLE).strip("\n")


def _in_same_row(first: QTextBlock, second: QTextBlock) -> bool:
    cursor, next_cursor = QTextCursor(first), QTextCursor(second)
    table = cursor.currentTable()
    if table is None or next_cursor.currentTable() != table:
        return False
    cell, next_cell = table.cellAt(cursor), table.cellAt(next_cursor)
    return cell.row() == next_cell.row() and cell.column() != next_cell.column()
