"""A fenced code block: an append-only document. Only new lines are laid out; a thread highlights them.

Some Pygments expressions take quadratic time, and Python blocks all other threads while one is matched. So text is
highlighted in bounded pieces, and a piece that is still slow stays plain.
"""

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Literal, Name, Number, String, _TokenType
from pygments.util import ClassNotFound
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QColor, QResizeEvent, QTextBlockFormat, QTextCharFormat, QTextCursor, QTextOption, QWheelEvent
from PySide6.QtWidgets import QApplication, QFrame, QTextEdit, QWidget

from kvchat.text.language import _, format_number
from kvchat.text.safe_text import safe_code, safe_prose
from kvchat.ui.base.building import button, label, styled
from kvchat.ui.base.icons import icon
from kvchat.ui.base.theme import Theme
from kvchat.ui.rendering.text_page import PageStyle, remove_chrome, scroll_sideways
from kvchat.ui.widgets.text_search import format_range, select

_MAX_REREAD = 6_000  # characters re-lexed at most as code grows
_EXTEND_MS = 15.0  # time limit for that
_CHUNK = 60_000  # characters lexed at once in finished code
_MAX_LINE = 2_000  # characters used of a line; the copy button gives all of it
_HIGHLIGHT_S = 3.0  # time limit for one text
_SLOW_S, _MAX_SLOW_S = 0.025, 0.25  # a token slower than this is slow; limit for all slow tokens together
_LINE_HEIGHT = 128.0  # percent
_PAINT_MS = 6.0  # longest painting step
_LINES_PAINTED = 50  # lines per step
_POLL_MS = 30  # polling interval for the thread
_MAX_HIGHLIGHTED = 400_000  # characters; longer code stays plain
_COPIED_MS = 1500
_LEFT, _TOP, _RIGHT, _BOTTOM, _GAP = 14, 6, 8, 9, 4  # pixels around the card’s parts
_thread = ThreadPoolExecutor(1, thread_name_prefix="colours")

Span = tuple[int, int, str]  # start and length in a line, colour


class LineHighlighter:
    """Syntax highlighter in the theme's few colours. `spans[i]` are the coloured spans of line i."""

    def __init__(self, language: str, theme: Theme) -> None:
        self.spans: list[list[Span]] = []
        self._language = language
        self._lexer = _lexer(language)
        self._is_slow = False  # to lex: stays plain while it grows
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
        self._safe = self._safe_line = 0  # where lexing can resume as the code grows: no token was open there

    def extend(self, text: str) -> range:
        """Highlight what was appended to `text`; return the lines that may have changed.

        Starts where a line last began outside any token, which is nearly always right. Code after more than
        `_MAX_REREAD` characters of one string or comment stays plain. `highlight` corrects both.
        """
        if self._lexer is None or self._is_slow or len(text) - self._safe > _MAX_REREAD:
            return range(0)
        first = self._safe_line
        until = time.thread_time() + _EXTEND_MS / 1000
        spans, safe, safe_line, left = self._read(self._lexer, text[self._safe :], until, _EXTEND_MS)
        self._is_slow = left < 0
        self.spans[first:] = spans
        self._safe, self._safe_line = self._safe + safe, first + safe_line
        self.spans += [[] for _ in range(text.count("\n") + 1 - len(self.spans))]
        return range(first, len(self.spans))

    def highlight(self, text: str) -> list[list[Span]]:
        """Return the spans of all of `text`; slow code stays plain. Thread-safe: changes no state."""
        lexer, spans = _lexer(self._language), list[list[Span]]()
        if lexer is None:
            return spans
        text = "\n".join(line[:_MAX_LINE] for line in text.split("\n"))
        at, until, left = 0, time.thread_time() + _HIGHLIGHT_S, _MAX_SLOW_S
        while at < len(text):
            more, safe, safe_line, left = self._read(lexer, text[at : at + _CHUNK], until, left)
            if left < 0 or not safe or at + _CHUNK >= len(text):
                return spans + more
            spans += more[:safe_line]
            at += safe
        return spans

    def _read(
        self, lexer: Lexer, text: str, deadline: float, slow_after: float
    ) -> tuple[list[list[Span]], int, int, float]:
        """Return the spans of a text's lines, and position and line where lexing can last be resumed.

        The last value is the rest of the `slow_after` seconds for slow tokens; negative if used up or after `deadline`.
        """
        spans: list[list[Span]] = [[]]
        safe = safe_line = 0
        before = time.thread_time()
        for start, kind, piece in lexer.get_tokens_unprocessed(text):
            ancestor = kind
            while ancestor not in self._tones and ancestor.parent is not None:
                ancestor = ancestor.parent
            colour = self._tones.get(ancestor, "")
            column = start - (text.rfind("\n", 0, start) + 1)
            for i, part in enumerate(piece.split("\n")):
                if i:
                    spans.append([])
                    column = 0
                if colour and part.strip():
                    spans[-1].append((column, len(part), colour))
            end = start + len(piece)
            if end < len(text) and piece.endswith("\n") and kind[:2] != String and kind[:1] != Comment:
                safe, safe_line = end, len(spans) - 1
            now = time.thread_time()
            slow_after -= now - before if now - before > _SLOW_S else 0
            if now > deadline or slow_after < 0:
                return spans, safe, safe_line, -1.0
            before = now
        return spans, safe, safe_line, slow_after


def _lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False) if language else None
    except ClassNotFound:  # show as plain
        return None


class CodeText(QTextEdit):
    def __init__(self, style: PageStyle, language: str) -> None:
        super().__init__()
        self.setReadOnly(True)
        remove_chrome(self, _("Code"))
        self.setFont(style.code_font)
        self.setWordWrapMode(QTextOption.WrapMode.NoWrap)
        self._full_text = ""
        self._shown_length = 0  # characters of it in the document as whole lines
        self._is_ended = False
        self._highlighter = LineHighlighter(language, style.theme)
        self._formats: dict[str, QTextCharFormat] = {}  # by colour
        self._must_highlight = False  # finished code
        self._highlighting: Future[list[list[Span]]] | None = None
        self._painted_lines = 0  # lines painted so far
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._paint_next)
        lines = QTextBlockFormat()
        lines.setLineHeight(_LINE_HEIGHT, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        QTextCursor(self.document()).setBlockFormat(lines)

    def show_text(self, text: str, *, is_final: bool) -> None:
        """Show `text`; cheap if only appended to. `is_final`: no more will come."""
        if text == self._full_text and is_final == self._is_ended:
            return
        cursor = QTextCursor(self.document())
        if not text.startswith(self._full_text[: self._shown_length]):
            cursor.select(QTextCursor.SelectionType.Document)
            cursor.removeSelectedText()
            self._shown_length = 0
        self._full_text, self._is_ended = text, is_final
        changed = self._highlighter.extend(text) if not is_final else range(0)
        cursor.movePosition(QTextCursor.MoveOperation.End)
        lines = "\n".join(map(_shortened, text[self._shown_length :].split("\n")))
        last_line = self.document().lastBlock().text()
        if not lines.startswith(last_line):
            cursor.movePosition(QTextCursor.MoveOperation.StartOfBlock, QTextCursor.MoveMode.KeepAnchor)
            last_line = ""
        anchor, head = self.textCursor().anchor(), self.textCursor().position()
        cursor.insertText(lines[len(last_line) :])
        if anchor != head:  # a selection ending at the code's end would have grown
            select(self, anchor, head)
        self._shown_length = text.rfind("\n") + 1
        self._paint(changed.start, changed.stop)
        self._highlighting, self._must_highlight = None, is_final and len(text) <= _MAX_HIGHLIGHTED
        if self._must_highlight:
            self._timer.start(0)  # the thread would slow down the layout of the rest
        else:
            self._timer.stop()

    def wheelEvent(self, event: QWheelEvent) -> None:
        scroll_sideways(self, event)

    def _paint_next(self) -> None:
        if self._must_highlight:
            self._must_highlight, self._painted_lines = False, 0
            self._highlighting = highlighting = _thread.submit(self._highlighter.highlight, self._full_text)
            self.destroyed.connect(lambda: highlighting.cancel())
        if self._highlighting is not None:
            if not self._highlighting.done():
                self._timer.start(_POLL_MS)
                return
            self._highlighter.spans, self._highlighting = self._highlighting.result(), None
        until = time.thread_time() + _PAINT_MS / 1000
        while self._painted_lines < len(self._highlighter.spans):
            if time.thread_time() > until:
                self._timer.start(0)
                return
            line = min(self._painted_lines + _LINES_PAINTED, len(self._highlighter.spans))
            self._paint(self._painted_lines, line)
            self._painted_lines = line

    def _paint(self, first: int, end: int) -> None:
        if first >= end:
            return  # an empty change would drop the line's layout
        document = self.document()
        block = document.findBlockByNumber(first)
        start = block.position()
        for line in range(first, min(end, document.blockCount())):
            text, ranges = block.text(), []
            for at, count, colour in self._highlighter.spans[line] if len(text) <= _MAX_LINE else ():
                if colour not in self._formats:
                    self._formats[colour] = QTextCharFormat()
                    self._formats[colour].setForeground(QColor(colour))
                ranges.append(format_range(text, at, at + count, self._formats[colour]))
            block.layout().setFormats(ranges)
            block = block.next()
        document.markContentsDirty(start, (block.position() if block.isValid() else document.characterCount()) - start)


class CodeView(QFrame):
    def __init__(self, style: PageStyle, language: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        styled(self, "code")
        self._theme = style.theme
        self.language = language
        self.text = ""
        self.body = CodeText(style, language)
        self.body.setParent(self)
        self.body.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # in any language, scroll bar included
        self._label = label(safe_prose(language)[:40] or _("code"), "small")
        left = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignAbsolute
        self._label.setAlignment(left | Qt.AlignmentFlag.AlignVCenter)
        self.copy_button = button(_("Copy"), self._copy, "quiet", name=_("Copy this code"))
        self.copy_button.setCursor(Qt.CursorShape.PointingHandCursor)
        for part in (self._label, self.copy_button):
            part.setParent(self)
        self._reset_timer = QTimer(self, singleShot=True, interval=_COPIED_MS)
        self._reset_timer.timeout.connect(lambda: self._show_copied(False))
        self._show_copied(False)

    def show_code(self, text: str, *, is_final: bool) -> None:
        self.text = text
        self.body.show_text(text, is_final=is_final)

    def heightForWidth(self, width: int) -> int:
        document = self.body.document()  # its size is at least the widget's, which may not be laid out yet
        overflows = document.idealWidth() > width - _LEFT - _RIGHT
        bar = self.body.horizontalScrollBar().sizeHint().height() if overflows else 0
        return self._body_top() + math.ceil(document.size().height()) + bar + _BOTTOM

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


def _shortened(line: str) -> str:
    if len(line) > _MAX_LINE:
        rest = format_number(len(line) - _MAX_LINE)
        line = _("{line} … {count} more characters", line=line[:_MAX_LINE], count=rest)
    return safe_code(line)
