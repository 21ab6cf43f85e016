"""HTML for QTextDocument: where it, safety or taste want something other than plain CommonMark HTML."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from kvchat.ui.base.colors import Theme
from kvchat.ui.rendering.blocks import Formula
from kvchat.words.safe_text import calm, spelled_out

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


def renderer_class(theme: Theme, mono: str, is_link: Callable[[str], bool]) -> type[RendererHTML]:
    """A renderer in these colours; links for which `is_link` is false become plain text."""

    class Renderer(RendererHTML):
        """Rules by token type."""

        def text(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return html.escape(calm(tokens[i].content))

        def code_inline(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f"<code>{html.escape(spelled_out(tokens[i].content))}</code>"

        def image(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            alt = calm(self.renderInlineAsText(tokens[i].children or [], options, env))
            return f'<span style="color:{theme.muted}">[image: {html.escape(alt or "untitled")}]</span>'

        def link_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            url = str(tokens[i].attrGet("href") or "")
            return f'<a href="{html.escape(url)}">' if is_link(url) else "<span>"

        def link_close(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            opened = next(t for t in reversed(tokens[:i]) if t.type == "link_open" and t.level == tokens[i].level)
            return "</a>" if is_link(str(opened.attrGet("href") or "")) else "</span>"

        def html_inline(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            """No text gets here as HTML; the check box of a task does."""
            return "☑" if "checked=" in tokens[i].content else "☐"

        def fence(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f"<pre>{html.escape(spelled_out(tokens[i].content.rstrip()))}</pre>\n"

        def code_block(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return self.fence(tokens, i, options, env)

        def math_inline(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            token, formulas = tokens[i], env[FORMULAS]
            source = f"{token.markup}{token.content}{token.info}"
            formulas.append(Formula(token.content, token.meta["display"], source))
            return f"<!--math:{len(formulas) - 1}-->"

        def math_block(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            token = tokens[i]
            if not token.meta["closed"]:
                source = html.escape(calm(f"{token.markup}{token.content}")).replace("\n", "<br>")
                return f"<p><code>{source}</code></p>"
            return f'<p align="center">{self.math_inline(tokens, i, options, env)}</p>'

        def footnote_ref(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f'<sup style="color:{theme.accent}">{html.escape(calm(tokens[i].meta["label"]))}</sup>'

        def footnote_reference_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            label = html.escape(calm(tokens[i].meta["label"]))
            return (
                '<table cellspacing="0" cellpadding="0" style="margin-bottom:8px"><tr>'
                f'<td style="padding-right:8px; color:{theme.accent}"><sup>{label}</sup></td>'
                f'<td style="color:{theme.muted}">'
            )

        def footnote_reference_close(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return "</td></tr></table>"

        def hr(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f'<hr style="background-color:{theme.line}">'

        def table_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return '<table cellspacing="0" cellpadding="7">\n'

        def th_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f'<td style="{_cell(tokens[i])}border-bottom: 1px solid {theme.muted}; font-weight:600">'

        def th_close(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return "</td>"

        def td_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f'<td style="{_cell(tokens[i])}border-bottom: 1px solid {theme.line}">'

        def blockquote_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return (
                '<table cellspacing="0" cellpadding="0" style="margin-top:6px; margin-bottom:10px"><tr>'
                f'<td style="border-left: 3px solid {theme.line}; padding-left: 12px; color: {theme.muted}">'
            )

        def blockquote_close(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return "</td></tr></table>"

    return Renderer


def _cell(token: Token) -> str:
    """The alignment markdown-it put on a table cell; where it put none, the text's own side."""
    style = token.attrGet("style")
    return f"{style}; " if style else ""
