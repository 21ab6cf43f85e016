"""Code colours: Pygments' tokens in the theme's few tones. No Qt.

Some of Pygments' expressions take a time that grows with the square of the text, and Python lets nobody else run while
one is matched. So a text is given to it in bounded stretches, and one that is slow all the same stays plain.
"""

from __future__ import annotations

import time

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Literal, Name, Number, String, _TokenType
from pygments.util import ClassNotFound

from kvchat.ui.base.theme import Theme

Span = tuple[int, int, str]  # start and length within a line, colour
_REACH = 6_000  # characters that may be read again when code grows
_GROW_MS = 15.0  # and how long that may take
_STRETCH = 60_000  # characters that are read together of code that has ended
_LONGEST_LINE = 2_000  # characters of a line that are looked at
_WHOLE_S = 3.0  # so long all of a text may take
_SLOW_S, _ALL_SLOW_S = 0.025, 0.25  # a token that takes longer is slow, and all slow ones together may take so long


class LineColours:
    """The colours of a code's lines. `spans[i]` are those of line i that are not plain."""

    def __init__(self, language: str, theme: Theme) -> None:
        self.spans: list[list[Span]] = []
        self._language = language
        self._lexer = _lexer(language)
        self._slow = False  # this code takes long to read: it stays plain while it grows
        self._tones = _tones(theme)
        self._safe = 0  # where lexing may begin again while the code grows: no token was open there
        self._safe_line = 0

    def grow(self, text: str) -> range:
        """Colour what is new in `text`, which begins as it did last time; the lines whose colours may have changed.

        Begins where a line last began outside of any token, which is nearly always right, and leaves code plain whose
        string or comment goes on for more than `_REACH` characters. `whole` puts right what was not.
        """
        if self._lexer is None or self._slow or len(text) - self._safe > _REACH:
            return range(0)
        first = self._safe_line
        until = time.thread_time() + _GROW_MS / 1000
        found, safe, safe_line, left = self._read(self._lexer, text[self._safe :], until, _GROW_MS)
        self._slow = left < 0
        self.spans[first:] = found
        self._safe, self._safe_line = self._safe + safe, first + safe_line
        self.spans += [[] for _ in range(text.count("\n") + 1 - len(self.spans))]
        return range(first, len(self.spans))

    def whole(self, text: str) -> list[list[Span]]:
        """The colours of all of `text`; of what takes too long, none. Of any thread: nothing here is changed."""
        lexer, spans = _lexer(self._language), list[list[Span]]()
        if lexer is None:
            return spans
        text = "\n".join(line[:_LONGEST_LINE] for line in text.split("\n"))
        at, until, left = 0, time.thread_time() + _WHOLE_S, _ALL_SLOW_S
        while at < len(text):
            found, safe, safe_line, left = self._read(lexer, text[at : at + _STRETCH], until, left)
            if left < 0 or not safe or at + _STRETCH >= len(text):
                return spans + found
            spans += found[:safe_line]
            at += safe
        return spans

    def _read(self, lexer: Lexer, text: str, until: float, slow: float) -> tuple[list[list[Span]], int, int, float]:
        """The colours of a text's lines; where the last one begins that can be read alone, and which it is.

        The last value is what is left of the `slow` seconds for slow tokens; below 0 after that, and after `until`.
        """
        spans: list[list[Span]] = [[]]
        safe = safe_line = 0
        before = time.thread_time()
        for start, kind, piece in lexer.get_tokens_unprocessed(text):
            colour = self._tone(kind)
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
            slow -= now - before if now - before > _SLOW_S else 0
            if now > until or slow < 0:
                return spans, safe, safe_line, -1.0
            before = now
        return spans, safe, safe_line, slow

    def _tone(self, kind: _TokenType) -> str:
        """The colour of a kind of token; empty for plain text."""
        while kind not in self._tones and kind.parent is not None:
            kind = kind.parent
        return self._tones.get(kind, "")


def _tones(theme: Theme) -> dict[_TokenType, str]:
    return {
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


def _lexer(language: str) -> Lexer | None:
    """Pygments' lexer; None for an unknown language, whose code is plain."""
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False) if language else None
    except ClassNotFound:
        return None
