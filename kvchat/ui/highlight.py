"""Code colours: Pygments' tokens in the theme's few tones."""

from __future__ import annotations

from collections.abc import Iterator

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Literal, Name, Number, String, _TokenType
from pygments.util import ClassNotFound

from kvchat.ui.tokens import Theme


def coloured(text: str, language: str, theme: Theme) -> Iterator[tuple[str, str]]:
    """`text` in pieces with their colours. An unknown language is one plain piece."""
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False) if language else None
    except ClassNotFound:
        lexer = None
    if lexer is None:
        yield text, theme.text
        return
    for kind, piece in lexer.get_tokens(text):
        yield piece, _colour(kind, theme)


def _colour(kind: _TokenType, theme: Theme) -> str:
    tones = (
        (Comment, theme.code_comment),
        (String, theme.code_string),
        (Number, theme.code_number),
        (Literal, theme.code_number),
        (Keyword, theme.code_keyword),
        (Name.Function, theme.code_name),
        (Name.Class, theme.code_name),
        (Name.Builtin, theme.code_name),
        (Name.Decorator, theme.code_keyword),
        (Name.Tag, theme.code_keyword),
        (Name.Attribute, theme.code_name),
    )
    return next((tone for family, tone in tones if kind[: len(family)] == family), theme.text)
