"""HTML for QTextDocument: where it, safety or taste want something other than plain CommonMark HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unicodedata import bidirectional

from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from kvchat.ui.base.colors import Theme
from kvchat.ui.rendering.blocks import Formula
from kvchat.words.markdown import SafeRenderer

FORMULAS = "formulas"  # key in markdown-it's env: the formulas of what is being rendered


def prose_css(theme: Theme, mono: str, points: float) -> str:
    """The style sheet of a prose document (QTextDocument's own small subset of CSS); code is `points` large."""
    return f"""
    p, li {{ line-height: 148%; }}
    p {{ margin-top: 0; margin-bottom: 10px; }}
    p.plain {{ margin-bottom: 0; line-height: 135%; white-space: pre-wrap; }}
    td {{ line-height: 136%; }}
    li {{ margin-bottom: 4px; }}
    ul, ol {{ margin-top: 2px; margin-bottom: 10px; }}
    li ul, li ol {{ margin-bottom: 0; }}
    h1 {{ font-size: 150%; font-weight: 600; margin-top: 16px; margin-bottom: 8px; }}
    h2 {{ font-size: 128%; font-weight: 600; margin-top: 16px; margin-bottom: 8px; }}
    h3, h4, h5, h6 {{ font-size: 110%; font-weight: 600; margin-top: 14px; margin-bottom: 6px; }}
    a {{ color: {theme.accent}; text-decoration: underline; }}
    code {{ font-family: "{mono}"; background-color: {theme.code}; font-size: {points}pt; }}
    pre {{ font-family: "{mono}"; background-color: {theme.code}; font-size: {points}pt; white-space: pre-wrap; }}
    """


def renderer_class(theme: Theme, *, links_within: bool = False) -> type[SafeRenderer]:
    """A renderer in these colours. `links_within`: those to another place of the same text are links, too."""

    class Renderer(SafeRenderer):
        """What QTextDocument needs written otherwise; formulas stand as `<!--math:i-->`."""

        def leads(self, url: str) -> bool:
            return super().leads(url) or (links_within and url.startswith("#"))

        def image(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f'<span style="color:{theme.muted}">{super().image(tokens, i, options, env)}</span>'

        def math_inline(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            token, formulas = tokens[i], env[FORMULAS]
            source = f"{token.markup}{token.content}{token.info}"
            formulas.append(Formula(token.content, token.meta["display"], source))
            return f"<!--math:{len(formulas) - 1}-->"

        def math_block(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            if not tokens[i].meta["closed"]:
                return super().math_block(tokens, i, options, env)
            return f'<p align="center">{self.math_inline(tokens, i, options, env)}</p>'

        def footnote_ref(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f'<span style="color:{theme.accent}">{super().footnote_ref(tokens, i, options, env)}</span>'

        def footnote_reference_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return (
                '<table cellspacing="0" cellpadding="0" style="margin-bottom:8px"><tr>'
                f'<td style="padding-right:8px">{self.footnote_ref(tokens, i, options, env)}</td>'
                f'<td style="color:{theme.muted}">'
            )

        def footnote_reference_close(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return "</td></tr></table>"

        def hr(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f'<hr style="background-color:{theme.line}">'

        def table_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f'<table cellspacing="0" cellpadding="7"{_direction(tokens[i:])}>\n'

        def th_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f'<td style="{_cell(tokens[i])}border-bottom: 1px solid {theme.muted}; font-weight:600">'

        def th_close(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return "</td>"

        def td_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f'<td style="{_cell(tokens[i])}border-bottom: 1px solid {theme.line}">'

        def blockquote_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            direction = _direction(tokens[i:])
            side = "right" if direction else "left"
            return (
                f'<table cellspacing="0" cellpadding="0"{direction} style="margin-top:6px; margin-bottom:10px"><tr>'
                f'<td style="border-{side}: 3px solid {theme.line}; padding-{side}: 12px; color: {theme.muted}">'
            )

        def blockquote_close(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return "</td></tr></table>"

    return Renderer


def _direction(tokens: Sequence[Token]) -> str:
    """What a table needs whose words, the first of these, are written from right to left; else nothing."""
    words = next((token.content for token in tokens if token.type == "inline" and token.content.strip()), "")
    strong = (kind for kind in map(bidirectional, words) if kind in ("L", "R", "AL"))
    return ' dir="rtl" align="right"' if next(strong, "L") != "L" else ""


def _cell(token: Token) -> str:
    """The alignment markdown-it put on a table cell; where it put none, the text's own side."""
    style = token.attrGet("style")
    return f"{style}; " if style else ""
