"""What is selected, as words and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from PySide6.QtGui import QTextBlock, QTextCursor, QTextDocument, QTextTable
from PySide6.QtWidgets import QTextEdit

from kvchat.chat.record.messages import Message, Role
from kvchat.ui.rendering.formulas import FORMULA, fragments
from kvchat.ui.rendering.markdown import Block, Code, Markdown, Prose, Wide
from kvchat.ui.rendering.markdown_stream import MarkdownStream
from kvchat.ui.rendering.text_page import FORMULA_PLACE, TextPage, as_lists
from kvchat.ui.widgets.text_search import part

_NO_WORDS = dict.fromkeys(map(ord, "\ufdd0\ufdd1\u2060"))  # Qt's signs where tables begin and end, TextPage's strut
_OBJECT = "\ufffc"
_TASK_BOXES = ("☐", "☑")


def selected_text(text: QTextEdit) -> str:
    cursor = text.textCursor()
    source = text.formulas.source if isinstance(text, TextPage) else str
    return _words_between(text.document(), cursor.selectionStart(), cursor.selectionEnd(), source)


def selected_markdown(text: QTextEdit, blocks: Sequence[Block]) -> str:
    """The Markdown of what is selected of a text that shows `blocks`.

    Whole blocks, but just the words of a selection inside one.
    """
    if not blocks:
        return selected_text(text)
    if isinstance(blocks[0], Code):
        words = selected_text(text)
        whole = len(words) >= text.document().characterCount() - 1
        return f"```{blocks[0].language}\n{blocks[0].text if whole else words}\n```"
    assert isinstance(text, TextPage)
    cursor = text.textCursor()
    start, end = cursor.selectionStart(), cursor.selectionEnd()
    starts = text.block_starts()
    ends = [*starts[1:], text.document().characterCount()]
    touched = [i for i in range(len(starts)) if starts[i] < end and ends[i] > start]
    if len(touched) == 1 and (start > starts[touched[0]] or end < ends[touched[0]] - 1):
        return selected_text(text)
    blocks = [blocks[i] for i in touched]
    ends_line = ("" if isinstance(block, Prose) and block.list_tag else "\n" for block in blocks)
    return "".join(block.source + end for block, end in zip(blocks, ends_line, strict=True)).strip("\n")


def message_text(markdown: Markdown, message: Message) -> str:
    """All words of a message, read as `markdown` does."""
    if message.role is Role.USER:
        return message.content.strip("\n")
    stream = MarkdownStream(markdown)
    stream.feed(message.content)
    stream.finish()
    while stream.step():
        pass
    pieces: list[str] = []
    run: list[Prose | Wide] = []
    for block in (*stream.settled, None):
        if isinstance(block, Prose):
            run.append(block)
            continue
        if run:
            pieces.append(_html_text(run))
        run = []
        if block is not None:
            pieces.append(block.text if isinstance(block, Code) else _html_text([block]))
    return "\n\n".join(pieces)


def _html_text(blocks: Sequence[Prose | Wide]) -> str:
    def with_sources(block: Prose | Wide) -> str:
        return FORMULA_PLACE.sub(lambda found: escape(block.formulas[int(found[1])].source, quote=False), block.html)

    document = QTextDocument()
    document.setHtml(as_lists(blocks, map(with_sources, blocks)))
    return _words_between(document, 0, document.characterCount(), str)


def _words_between(document: QTextDocument, start: int, end: int, formula: Callable[[str], str]) -> str:
    """The words from `start` to `end`: formulas as LaTeX, lists with their bullets, cells of a row side by side."""
    parts: list[str] = []
    block = document.findBlock(start)
    before: QTextBlock | None = None
    while block.isValid() and block.position() < end:
        if before is not None:
            parts.append("\t" if _same_row(before, block) else "\n")
        if start <= block.position():
            parts.append(_bullet(block))
        parts.append(_words(block, start, end, formula))
        before, block = block, block.next()
    return "".join(parts).translate(_NO_WORDS).strip("\n")


def _bullet(block: QTextBlock) -> str:
    items = block.textList()
    if items is None or block.text().startswith(_TASK_BOXES):
        return ""
    number = items.itemText(block)
    deep = "  " * (items.format().indent() - 1)
    return f"{deep}{number} " if number[:1].isdigit() else f"{deep}- "


def _words(block: QTextBlock, start: int, end: int, formula: Callable[[str], str]) -> str:
    words: list[str] = []
    for fragment in fragments(block):
        first = fragment.position()
        piece = part(fragment.text(), max(start - first, 0), max(end - first, 0))
        form = fragment.charFormat()
        if piece and form.isImageFormat():
            name = form.toImageFormat().name()
            piece = piece.replace(_OBJECT, formula(name) if name.startswith(FORMULA) else "")
        words.append(piece.replace("\u2028", "\n").replace("\xa0", " "))
    return "".join(words)


def _same_row(before: QTextBlock, block: QTextBlock) -> bool:
    first, second = QTextCursor(before), QTextCursor(block)
    table: QTextTable | None = first.currentTable()
    if table is None or second.currentTable() != table:
        return False
    cell, following = table.cellAt(first), table.cellAt(second)
    return cell.row() == following.row() and cell.column() != following.column()
