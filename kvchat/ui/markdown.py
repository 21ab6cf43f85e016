"""Markdown to what a QTextDocument can show. Raw HTML stays text, no image is fetched, only web links are links."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from kvchat.ui.tokens import Theme

_LINK_SCHEMES = ("http", "https", "mailto")


@dataclass(frozen=True)
class Prose:
    """A run of text, as HTML made of tags QTextDocument knows."""

    html: str


@dataclass(frozen=True)
class Code:
    """A fenced code block on its own."""

    language: str
    text: str


Segment = Prose | Code


class MarkdownReader:
    """Cuts Markdown into segments, in the colours of one theme."""

    def __init__(self, theme: Theme, mono: str) -> None:
        self._parser = MarkdownIt(
            "commonmark", {"html": False, "linkify": False, "breaks": True}, renderer_cls=_renderer_class(theme, mono)
        ).enable(["table", "strikethrough"])

    def segments(self, text: str) -> tuple[Segment, ...]:
        """The segments of `text`. Never raises: any text is Markdown."""
        env: dict[str, Any] = {}
        segments: list[Segment] = []
        prose: list[Token] = []
        for token in self._parser.parse(text, env):
            if token.level == 0 and token.type in ("fence", "code_block"):
                segments += self._prose(prose, env)
                prose = []
                words = token.info.split()
                segments.append(Code(words[0].lower() if words else "", token.content.rstrip("\n")))
            else:
                prose.append(token)
        return tuple(segments + self._prose(prose, env))

    def _prose(self, tokens: list[Token], env: dict[str, Any]) -> list[Segment]:
        return [Prose(self._parser.renderer.render(tokens, self._parser.options, env))] if tokens else []


def is_web_link(url: str) -> bool:
    """Whether a click on `url` may leave kvchat: http, https or mailto, nothing else."""
    try:
        return urlsplit(url).scheme.lower() in _LINK_SCHEMES
    except ValueError:
        return False


def prose_css(theme: Theme, mono: str, points: float) -> str:
    """The style sheet of a prose document (QTextDocument's own small subset of CSS); code is `points` large."""
    return f"""
    p, li {{ line-height: 148%; }}
    p {{ margin-top: 0; margin-bottom: 10px; }}
    li {{ margin-bottom: 4px; }}
    ul, ol {{ margin-top: 2px; margin-bottom: 10px; }}
    h1 {{ font-size: 150%; font-weight: 600; margin-top: 16px; margin-bottom: 8px; }}
    h2 {{ font-size: 128%; font-weight: 600; margin-top: 16px; margin-bottom: 8px; }}
    h3, h4, h5, h6 {{ font-size: 110%; font-weight: 600; margin-top: 14px; margin-bottom: 6px; }}
    a {{ color: {theme.accent}; text-decoration: underline; }}
    code {{ font-family: "{mono}"; background-color: {theme.code}; font-size: {points}pt; }}
    pre {{ font-family: "{mono}"; background-color: {theme.code}; font-size: {points}pt; white-space: pre-wrap; }}
    """


def _renderer_class(theme: Theme, mono: str) -> type[RendererHTML]:
    class Renderer(RendererHTML):
        """Rules where QTextDocument, safety or taste want something other than plain CommonMark HTML."""

        def image(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            alt = self.renderInlineAsText(tokens[i].children or [], options, env)
            return f'<span style="color:{theme.muted}">[image: {html.escape(alt or "untitled")}]</span>'

        def link_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            url = str(tokens[i].attrGet("href") or "")
            return f'<a href="{html.escape(url)}">' if is_web_link(url) else "<span>"

        def link_close(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            opened = next(t for t in reversed(tokens[:i]) if t.type == "link_open" and t.level == tokens[i].level)
            return "</a>" if is_web_link(str(opened.attrGet("href") or "")) else "</span>"

        def fence(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f"<pre>{html.escape(tokens[i].content.rstrip())}</pre>\n"

        def code_block(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return self.fence(tokens, i, options, env)

        def table_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return '<table cellspacing="0" cellpadding="7" style="margin-top:4px; margin-bottom:14px">\n'

        def th_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f'<td style="{_cell(tokens[i])}; border-bottom: 1px solid {theme.muted}; font-weight:600">'

        def th_close(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return "</td>"

        def td_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f'<td style="{_cell(tokens[i])}; border-bottom: 1px solid {theme.line}">'

        def blockquote_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return (
                '<table cellspacing="0" cellpadding="0" style="margin-top:6px; margin-bottom:10px"><tr>'
                f'<td style="border-left: 3px solid {theme.line}; padding-left: 12px; color: {theme.muted}">'
            )

        def blockquote_close(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return "</td></tr></table>"

    return Renderer


def _cell(token: Token) -> str:
    """The alignment markdown-it put on a table cell; the left edge where it put none."""
    return str(token.attrGet("style") or "text-align:left")
