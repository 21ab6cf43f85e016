"""Code colours: Pygments' tokens in the theme's few tones, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Literal, Name, Number, String, _TokenType
from pygments.util import ClassNotFound

from kvchat.ui.tokens import Theme

Span = tuple[int, int, str]  # start and length within a line, colour
_REACH = 6_000  # characters that may be read again when code grows


class LineColours:
    """The colours of a code's lines. `spans[i]` are those of line i that are not plain."""

    def __init__(self, language: str, theme: Theme) -> None:
        self.spans: list[list[Span]] = []
        self._lexer = _lexer(language)
        self._tones = _tones(theme)
        self._safe = 0  # where lexing may begin again while the code grows: no token was open there
        self._safe_line = 0

    def grow(self, text: str) -> range:
        """Colour what is new in `text`, which begins as it did last time; the lines whose colours may have changed.

        Begins where a line last began outside of any token, which is nearly always right, and leaves code plain whose
        string or comment goes on for more than `_REACH` characters. `whole` puts right what was not.
        """
        if self._lexer is None or len(text) - self._safe > _REACH:
            return range(0)
        first, begin = self._safe_line, self._safe
        self.spans[first:] = [[]]
        for start, kind, piece in self._lexer.get_tokens_unprocessed(text[begin:]):
            position = begin + start
            self._colour(text, position, kind, piece)
            end = position + len(piece)
            if piece.endswith("\n") and end < len(text) and kind[:2] != String and kind[:1] != Comment:
                self._safe, self._safe_line = end, len(self.spans) - 1
        return range(first, len(self.spans))

    def whole(self, text: str) -> Iterator[int]:
        """Colour all of `text` from its beginning; each step yields how many lines are done."""
        self.spans = []
        if self._lexer is None:
            return
        for start, kind, piece in self._lexer.get_tokens_unprocessed(text):
            self._colour(text, start, kind, piece)
            yield len(self.spans) - 1

    def _colour(self, text: str, position: int, kind: _TokenType, piece: str) -> None:
        """Put a token, which may span lines, into the spans."""
        colour = self._tone(kind)
        if not self.spans:
            self.spans.append([])
        column = position - (text.rfind("\n", 0, position) + 1)
        for i, part in enumerate(piece.split("\n")):
            if i:
                self.spans.append([])
                column = 0
            if colour and part.strip():
                self.spans[-1].append((column, len(part), colour))

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
