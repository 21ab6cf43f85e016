"""Column of a message's parts (prose, code and tables), which can be copied as text or Markdown."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import groupby, takewhile
from typing import TypeVar

from PySide6.QtCore import Signal
from PySide6.QtGui import QResizeEvent, QTextBlock, QTextCursor, QTextDocument
from PySide6.QtWidgets import QTextEdit, QWidget

from kvchat.chat.record.messages import Message, Role
from kvchat.ui.rendering.code_view import CodeView
from kvchat.ui.rendering.formulas import FORMULA_PREFIX
from kvchat.ui.rendering.markdown import Block, Code, Markdown, Prose, WideBlock
from kvchat.ui.rendering.markdown_stream import MarkdownStream
from kvchat.ui.rendering.text_page import FORMULA_PLACEHOLDER, PageStyle, TextPage, WidePage, fragments, join_blocks
from kvchat.ui.widgets.text_search import utf16_slice

_MAX_PAGE_LENGTH = 1_000  # source characters per page of prose; an update lays out one page again
_INDENT = 24  # pixels per list level
_GAP, _GAP_ITEM, _GAP_CARD, _GAP_HEADING = 6, 0, 10, 0  # pixels above a part; headings and texts add their own margins
_INVISIBLE = dict.fromkeys(map(ord, "\ufdd0\ufdd1\u2060"))  # Qt's marks around tables, and formulas' word joiner
_OBJECT_CHARACTER = "\ufffc"
_TASK_BOXES = ("☐", "☑")

Part = TextPage | CodeView
P = TypeVar("P", bound=Part)
Group = Sequence[Block]  # blocks of one part


class PartColumn(QWidget):
    """Column of parts, each of which shows one or more blocks. Only changed parts are laid out again."""

    text_added = Signal(QTextEdit)  # new selectable text
    link_activated = Signal(str)

    def __init__(self, style: PageStyle, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._style, self._name = style, name
        self.parts: list[Part] = []
        self._groups: Sequence[Group] = ()
        self._final_groups = 0  # number of leading groups that can no longer change
        self._width = 0
        self._bottoms: list[int] = []  # bottom of each measured part at that width

    @property
    def texts(self) -> list[QTextEdit]:
        return list(map(_text_edit_of, self.parts))

    def show_blocks(self, settled_blocks: Sequence[Block], open_blocks: Sequence[Block] = ()) -> None:
        """Show these blocks. While the reply streams, `open_blocks`, at the end, may still change."""
        before, self._groups = self._groups, _group_blocks((*settled_blocks, *open_blocks))
        same = takewhile(lambda pair: pair[0] == pair[1], zip(before, self._groups, strict=False))
        first = min(sum(1 for _ in same), self._final_groups)
        self._final_groups = max(len(self._groups) - len(open_blocks), 0)  # at least
        for surplus in self.parts[len(self._groups) :]:
            _delete_part(surplus)
        del self.parts[len(self._groups) :]
        for i in range(first, len(self._groups)):
            self._show_group(i, is_growing=any(self._groups[i][0] is block for block in open_blocks))
        self._relayout_from(first)

    def show_formulas(self) -> bool:
        changed = [i for i, part in enumerate(self.parts) if isinstance(part, TextPage) and part.show_formulas()]
        if changed:
            self._relayout_from(changed[0])
        return bool(changed)

    def natural_width(self) -> int:
        documents = [part.document() for part in self.parts if isinstance(part, TextPage)]
        for document in documents:
            document.setTextWidth(-1)
        self._bottoms = []
        return max((int(document.idealWidth()) + 1 for document in documents), default=0)

    def heightForWidth(self, width: int) -> int:
        if width != self._width:
            self._width, self._bottoms = width, []
        for i in range(len(self._bottoms), len(self.parts)):
            above = self._bottoms[-1] if self._bottoms else 0
            self._bottoms.append(above + self._gap_above(i) + self.parts[i].heightForWidth(width - self._indent(i)))
        return self._bottoms[-1] if self._bottoms else 0

    def resizeEvent(self, event: QResizeEvent) -> None:
        if event.size().width() != event.oldSize().width():
            self._place_parts(0)

    def _relayout_from(self, first: int) -> None:
        del self._bottoms[first:]
        self.updateGeometry()
        self._place_parts(first)

    def _place_parts(self, first: int) -> None:
        width = self.width()
        self.heightForWidth(width)
        for i in range(first, len(self.parts)):
            indent, top = self._indent(i), (self._bottoms[i - 1] if i else 0) + self._gap_above(i)
            self.parts[i].setGeometry(indent, top, width - indent, self._bottoms[i] - top)

    def _show_group(self, i: int, *, is_growing: bool) -> None:
        first, part = self._groups[i][0], self.parts[i] if i < len(self.parts) else None
        if isinstance(first, Code):
            if not isinstance(part, CodeView) or part.language != first.language:
                part = self._set_part(i, CodeView(self._style, first.language, self))
            part.show_code(first.text, is_growing=is_growing)
            return
        kind = WidePage if isinstance(first, WideBlock) else TextPage
        if not isinstance(part, TextPage) or type(part) is not kind:
            part = self._set_part(i, kind(self._style, self._name, self))
            part.anchorClicked.connect(lambda url: self.link_activated.emit(url.toString()))
        part.show_blocks([block for block in self._groups[i] if not isinstance(block, Code)])

    def _set_part(self, i: int, part: P) -> P:
        """Replace the part at index `i`, or append it."""
        for replaced in self.parts[i : i + 1]:
            _delete_part(replaced)
        self.parts[i : i + 1] = [part]
        self.text_added.emit(_text_edit_of(part))
        part.show()
        return part

    def _gap_above(self, i: int) -> int:
        if i == 0:
            return 0
        above, below = self._groups[i - 1][-1], self._groups[i][0]
        if not (isinstance(above, Prose) and isinstance(below, Prose)):
            return _GAP_CARD
        return _GAP_HEADING if below.is_heading else _GAP_ITEM if above.list_tag and below.list_tag else _GAP

    def _indent(self, i: int) -> int:
        first = self._groups[i][0]
        return _INDENT * first.indent if isinstance(first, Code) else 0

    def selected_markdown(self, text: QTextEdit) -> str:
        """Return the Markdown of all blocks that the selection in `text` touches; plain text if within one block."""
        texts, selection = self.texts, selected_text(text)
        if text not in texts:
            return selection
        blocks = self._groups[texts.index(text)]
        if isinstance(first := blocks[0], Code):
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
        chosen = [blocks[i] for i in touched]
        separators = ("" if isinstance(block, Prose) and block.list_tag else "\n" for block in chosen)
        return "".join(block.source + end for block, end in zip(chosen, separators, strict=True)).strip("\n")


def _text_edit_of(part: Part) -> QTextEdit:
    return part.body if isinstance(part, CodeView) else part


def _group_blocks(blocks: Iterable[Block]) -> list[Group]:
    groups: list[list[Block]] = []
    room = -1
    for block in blocks:
        length = len(block.source)
        if isinstance(block, Prose) and length <= room:
            groups[-1].append(block)
            room -= length
        else:
            groups.append([block])
            room = _MAX_PAGE_LENGTH - length if isinstance(block, Prose) else -1
    return list(groups)


def _delete_part(part: QWidget) -> None:
    part.setParent(None)
    part.deleteLater()


def selected_text(text: QTextEdit) -> str:
    cursor = text.textCursor()
    source = text.formulas.source if isinstance(text, TextPage) else str
    return _text_between(text.document(), cursor.selectionStart(), cursor.selectionEnd(), source)


def message_text(markdown: Markdown, message: Message) -> str:
    if message.role is Role.USER:
        return message.content.strip("\n")
    stream = MarkdownStream(markdown)
    stream.feed(message.content)
    stream.finished = True
    while stream.step():
        pass
    pieces: list[str] = []
    for kind, blocks in groupby(stream.settled_blocks, type):
        if kind is Prose:
            pieces.append(_plain_text([block for block in blocks if not isinstance(block, Code)]))
        else:
            pieces += [block.text if isinstance(block, Code) else _plain_text([block]) for block in blocks]
    return "\n\n".join(pieces)


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
