"""View of a code block. When code is appended, only new lines are laid out and highlighted, a few at a time.

Some of Pygments' regular expressions take quadratic time, and no other Python code runs while one is matched. Text is
therefore highlighted in pieces of limited length, and code that is still too slow is not highlighted.
"""

import math
import time
from collections.abc import Iterator, Sequence

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Literal, Name, Number, String, _TokenType
from pygments.util import ClassNotFound
from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QColor, QResizeEvent, QTextBlockFormat, QTextCharFormat, QTextCursor, QWheelEvent
from PySide6.QtWidgets import QApplication, QFrame, QTextEdit, QWidget
from shiboken6 import isValid

from kvchat.text.language import _, format_number
from kvchat.text.safe_text import safe_code, safe_prose
from kvchat.ui.base.building import button, label, styled
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Theme
from kvchat.ui.rendering.markdown import Code
from kvchat.ui.rendering.text_page import PageStyle, remove_chrome, scroll_sideways
from kvchat.ui.widgets.text_search import format_range, select_range

_MAX_PIECE = 20_000  # characters lexed at once
_MAX_LINE = 2_000  # visible characters per line; the copy button copies whole lines
_SLOW_S, _MAX_SLOW_S = 0.003, 0.5  # seconds: minimum for a slow token; maximum of all slow tokens in a piece
_MAX_PIECE_S = 2.0  # seconds to lex a piece, 40 times what usual code takes
_LINE_HEIGHT = 128.0  # percent
_STEP_S, _STEP_LINES = 0.006, 500  # seconds per step of highlighting, lines per step of insertion
_MAX_HIGHLIGHTED = 400_000  # characters; the rest stays plain
_COPIED_MS = 1500
_LEFT, _TOP, _RIGHT, _BOTTOM, _GAP = 14, 6, 8, 9, 4  # pixels around the label and the code

Span = tuple[int, int, str]  # start and length in a line, colour
_highlight_queue: list["CodeText"] = []  # the first gets one step per round of the event loop


class LineHighlighter:
    """Incremental syntax highlighter. `spans[i]` holds the start, length and color of each colored piece of line i."""

    def __init__(self, language: str, theme: Theme) -> None:
        self.spans: list[list[Span]] = []
        try:
            self._lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False) if language else None
        except ClassNotFound:
            self._lexer = None  # unknown languages stay plain
        self._tones: dict[_TokenType, str] = {
            Comment: theme.code_comment,
            String: theme.code_string,
            Number: theme.code_number,
            Literal: theme.code_number,
            Keyword: theme.code_keyword,
            Name.Function: theme.code_name,
            Name.Class: theme.code_name,
            Name.Builtin: theme.code_name,
            Name.Decorator: theme.code_keyword,
            Name.Tag: theme.code_keyword,
            Name.Attribute: theme.code_name,
        }
        self._slow_left, self._piece_left, self._start = _MAX_SLOW_S, _MAX_PIECE_S, 0
        self._safe = self.safe_line = 0  # character and line outside any token, where lexing can resume
        self._text = self._piece = ""
        self._tokens: Iterator[tuple[int, _TokenType, str]] = iter(())

    def set_text(self, text: str) -> None:
        """Set the text to highlight.

        If it extends the last text, highlighting resumes at that text's last line that does not begin inside a syntax
        token.
        """
        if not text.startswith(self._text[: self._safe]):
            self._safe = self.safe_line = 0
        self._text = text[:_MAX_HIGHLIGHTED]
        self._begin_piece()

    def advance(self, seconds: float) -> bool:
        """Highlight for about this many seconds. Return True if text is left to highlight."""
        before = time.thread_time()
        until = before + seconds
        while before < until:
            token = next(self._tokens, None)
            if token is None:
                if self._start + len(self._piece) >= len(self._text) or self._safe == self._start:
                    return False
                self._begin_piece()
                continue
            start, kind, piece = token
            ancestor = kind
            while ancestor not in self._tones and ancestor.parent is not None:
                ancestor = ancestor.parent
            colour = self._tones.get(ancestor, "")
            column = start - (self._piece.rfind("\n", 0, start) + 1)
            for i, part in enumerate(piece.split("\n")):
                if i:
                    self.spans.append([])
                    column = 0
                if colour and part.strip():
                    self.spans[-1].append((column, len(part), colour))
            end = start + len(piece)
            if end < len(self._piece) and piece.endswith("\n") and kind[:2] != String and kind[:1] != Comment:
                self._safe, self.safe_line = self._start + end, len(self.spans) - 1
            now = time.thread_time()
            self._slow_left -= now - before if now - before > _SLOW_S else 0
            self._piece_left -= now - before
            if min(self._slow_left, self._piece_left) < 0:
                self._lexer, self._tokens, self.safe_line = None, iter(()), len(self.spans) - 1
                return False
            before = now
        return True

    def _begin_piece(self) -> None:
        if self._safe != self._start:  # else pauses for garbage collection would add up
            self._slow_left = _MAX_SLOW_S
        self._start, self._piece_left = self._safe, _MAX_PIECE_S
        self._piece = self._text[self._safe : self._safe + _MAX_PIECE]
        if self._lexer is not None:
            del self.spans[self.safe_line :]
            self.spans.append([])
            self._tokens = iter(self._lexer.get_tokens_unprocessed(self._piece))


class CodeText(QTextEdit):
    grown = Signal()  # lines were added later than they were shown

    def __init__(self, style: PageStyle, language: str) -> None:
        super().__init__()
        self.setReadOnly(True)
        remove_chrome(self, _("Code"))
        self.setFont(style.code_font)
        self.setLineWrapMode(QTextEdit.LineWrapMode.NoWrap)  # a wrap mode would lay out all when resized
        self._text = ""
        self._inserted_length = 0  # length of what is in the document
        self._whole_length = 0  # length of its complete lines
        self._shown = ""  # its complete lines as displayed
        self._highlighter = LineHighlighter(language, style.theme)
        self._formats: dict[str, QTextCharFormat] = {}  # by colour
        lines = QTextBlockFormat()
        lines.setLineHeight(_LINE_HEIGHT, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        QTextCursor(self.document()).setBlockFormat(lines)

    def show_text(self, text: str) -> None:
        """Show `text`. If it extends the last text, insert only what is new."""
        if text == self._text:
            return
        is_growing = bool(self._text)
        if not text.startswith(self._text[: self._whole_length]):
            cursor = QTextCursor(self.document())
            cursor.select(QTextCursor.SelectionType.Document)
            cursor.removeSelectedText()
            self._whole_length, self._shown = 0, ""
        self._text = text
        self._insert_lines()
        if (not is_growing or self.step()) and self not in _highlight_queue:
            _highlight_queue.append(self)
            if len(_highlight_queue) == 1:
                QTimer.singleShot(0, _highlight_next)

    @property
    def line_count(self) -> int:
        """The number of lines, including those that are not inserted yet."""
        return self.document().blockCount() + self._text.count("\n", self._inserted_length)

    def insert_all(self) -> None:
        while self._inserted_length < len(self._text):
            self._insert_lines()

    def _insert_lines(self) -> None:
        """Insert more lines for a few milliseconds."""
        rest = self._text[self._whole_length :].split("\n", _STEP_LINES)
        inserted = self._text
        if len(rest) > _STEP_LINES:
            inserted, rest[-1] = self._text[: len(self._text) - len(rest[-1])], ""
        lines = "\n".join(map(_shorten_line, rest))
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        last_line = self.document().lastBlock().text()
        if not lines.startswith(last_line):
            cursor.movePosition(QTextCursor.MoveOperation.StartOfBlock, QTextCursor.MoveMode.KeepAnchor)
            last_line = ""
        anchor, head = self.textCursor().anchor(), self.textCursor().position()
        cursor.insertText(lines[len(last_line) :])
        if anchor != head or not self._inserted_length:  # inserting at its end extended it, or moved the view
            select_range(self, anchor, head)
        self._highlighter.set_text(self._shown + lines)
        self._inserted_length, self._whole_length = len(inserted), inserted.rfind("\n") + 1
        self._shown += lines[: lines.rfind("\n") + 1]

    def wheelEvent(self, event: QWheelEvent) -> None:
        scroll_sideways(self, event)

    def step(self) -> bool:
        """Insert or highlight more lines for a few milliseconds. Return True if lines are left."""
        if self._inserted_length < len(self._text):
            self._insert_lines()
            self.grown.emit()
            return True
        first = self._highlighter.safe_line
        has_more = self._highlighter.advance(_STEP_S)
        document = self.document()
        block = document.findBlockByNumber(first)
        start = block.position()
        for spans in self._highlighter.spans[first:]:
            text, ranges = block.text(), []
            for at, count, colour in spans if len(text) <= _MAX_LINE else ():
                if colour not in self._formats:
                    self._formats[colour] = QTextCharFormat()
                    self._formats[colour].setForeground(QColor(colour))
                ranges.append(format_range(text, at, at + count, self._formats[colour]))
            block.layout().setFormats(ranges)
            block = block.next()
        end = block.position() if block.isValid() else document.characterCount()
        if end > start:  # an empty change would drop the line's layout
            document.markContentsDirty(start, end - start)
        return has_more


def _highlight_next() -> None:
    _highlight_queue[:] = filter(isValid, _highlight_queue)
    if _highlight_queue and not _highlight_queue[0].step():
        del _highlight_queue[0]
    if _highlight_queue:
        QTimer.singleShot(0, _highlight_next)


class CodeView(QFrame):
    def __init__(self, style: PageStyle, language: str, title: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        styled(self, "code")
        self._theme = style.theme
        self.text = ""
        self.body = CodeText(style, language)
        self.body.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # in every language
        self._label = label(safe_prose(title)[:40] or _("code"), "small")
        left = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignAbsolute
        self._label.setAlignment(left | Qt.AlignmentFlag.AlignVCenter)
        self.copy_button = button(_("Copy"), self._copy, "quiet", name=_("Copy this code"))
        self.copy_button.setCursor(Qt.CursorShape.PointingHandCursor)
        for part in (self._label, self.copy_button, self.body):  # the order of Tab
            part.setParent(self)
        self._reset_timer = QTimer(self, singleShot=True, interval=_COPIED_MS)
        self._reset_timer.timeout.connect(lambda: self._show_copied(False))
        self._show_copied(False)

    def show_blocks(self, blocks: Sequence[Code]) -> None:
        self.text = blocks[0].text
        self.body.show_text(self.text)

    def heightForWidth(self, width: int) -> int:
        document = self.body.document()  # its width is no less than the widget's, which may be outdated
        overflows = document.idealWidth() > width - _LEFT - _RIGHT
        bar = self.body.horizontalScrollBar().sizeHint().height() if overflows else 0
        height = document.size().height() / document.blockCount() * self.body.line_count
        return self._body_top() + math.ceil(height) + bar + _BOTTOM

    def resizeEvent(self, event: QResizeEvent | None) -> None:
        width, copy, top = self.width() - _LEFT - _RIGHT, self.copy_button.sizeHint().width(), self._body_top()
        self._label.setGeometry(_LEFT, _TOP, max(width - copy, 0), top - _GAP - _TOP)
        self.copy_button.setGeometry(_LEFT + width - copy, _TOP, copy, top - _GAP - _TOP)
        self.body.setGeometry(_LEFT, top, width, self.height() - top - _BOTTOM)

    def _body_top(self) -> int:
        return _TOP + max(self._label.sizeHint().height(), self.copy_button.sizeHint().height()) + _GAP

    def _copy(self) -> None:
        QApplication.clipboard().setText(self.text)
        self._show_copied(True)
        self._reset_timer.start()

    def _show_copied(self, copied: bool) -> None:
        text, glyph, colour = _("Copy"), "copy", self._theme.muted
        if copied:
            text, glyph, colour = _("Copied"), "check", self._theme.accent
        self.copy_button.setText(text)
        self.copy_button.setIcon(icon(glyph, colour))
        self.resizeEvent(None)


def _shorten_line(line: str) -> str:
    if len(line) > _MAX_LINE:
        rest = format_number(len(line) - _MAX_LINE)
        line = _("{line} … {count} more characters", line=line[:_MAX_LINE], count=rest)
    return safe_code(line)
