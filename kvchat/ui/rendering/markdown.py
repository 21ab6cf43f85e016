"""Conversion of Markdown to blocks of HTML. Raw HTML and images become plain text; only web links remain links."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import bidirectional

from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from kvchat.text.markdown import STREAMING, SafeRenderer, is_too_deep, markdown_parser
from kvchat.text.passages import CITATION
from kvchat.text.safe_text import safe_prose
from kvchat.ui.base.theme import Theme

LIST_ITEM = "list_item_open"  # `Unit.kind` of a list item
FORMULAS_KEY = "formulas"  # key of the current block's formulas in markdown-it's env
PLACES_KEY = "places"  # key in markdown-it's env: places in looked-up documents become links
PLACE_LINK = "place:"  # scheme of such a link, before the line's number
_MAX_PLAIN = 3_000  # characters per block of plain text
_EMPTY_LINE = '<p class="plain" style="-qt-paragraph-type:empty"><br></p>'
_WITHOUT_BULLETS = '<ul style="list-style-type:none">'

MarkdownEnv = dict[str, Any]  # markdown-it's env: link references and footnotes so far


@dataclass(frozen=True)
class Formula:
    """LaTeX formula. `source` is its original text with delimiters."""

    tex: str
    is_display: bool
    source: str


@dataclass(frozen=True)
class Prose:
    """Paragraph, heading, quotation or list item as HTML for QTextDocument.

    `<!--math:i-->` in the HTML is the place of formula i. A list item is `<li>…</li>`, and `list_tag` is the opening
    tag of its list.
    """

    html: str
    source: str  # Markdown
    formulas: tuple[Formula, ...] = ()
    list_tag: str = ""
    is_heading: bool = False


@dataclass(frozen=True)
class Code:
    """Code block. `indent` is the number of lists that contain it."""

    language: str
    text: str
    source: str
    indent: int = 0


@dataclass(frozen=True)
class WideBlock:
    """Table or displayed formula, which may be wider than the page. Its HTML is as described for Prose."""

    html: str
    source: str
    formulas: tuple[Formula, ...] = ()
    columns: int = 0  # 0 unless it is a table


Block = Prose | Code | WideBlock


@dataclass(frozen=True)
class Unit:
    """Smallest part of a text that can be rendered by itself: a top-level block, or an item of a top-level list."""

    kind: str  # type of its first token
    first_line: int
    end_line: int
    tokens: tuple[Token, ...]
    list_number: int = 0  # number of the top-level list that has this item
    ordinal: int | None = None  # number in an ordered list


class Markdown:
    def __init__(self, theme: Theme) -> None:
        self._parser = markdown_parser(renderer_class(theme))
        self.links_places = False  # places in looked-up documents become links

    def parse_units(self, text: str, env: MarkdownEnv, *, streaming: bool) -> list[Unit]:
        """Split `text` into units, and add its definitions of links and footnotes to `env`. Never raises."""
        env[STREAMING] = streaming
        return list(_split_units(self._parser.parse(text, env)))

    def render_unit(self, unit: Unit, source: str, env: MarkdownEnv) -> list[Block]:
        """Render a unit, whose Markdown is `source`. A list item that contains code becomes several blocks."""
        first = unit.tokens[0]
        if is_too_deep(unit.tokens):
            return [plain_block(source)]
        if first.type in ("fence", "code_block"):
            return [_code_block(first, source)]
        if first.type == "table_open":
            columns = sum(token.type == "th_open" for token in unit.tokens)
            return [WideBlock(*self._render(unit.tokens, source, env), columns)]
        if first.type == "math_block" and first.meta["closed"]:
            return [WideBlock(*self._render(unit.tokens, source, env))]
        if unit.kind == LIST_ITEM:
            return self._render_item(unit, source, env)
        return [Prose(*self._render(unit.tokens, source, env), is_heading=first.type == "heading_open")]

    def _render_item(self, unit: Unit, source: str, env: MarkdownEnv) -> list[Block]:
        tokens = unit.tokens[1:-1]
        base = unit.tokens[0].level + 1
        tag = _WITHOUT_BULLETS if unit.tokens[0].attrGet("class") else "<ul>"  # a class marks tasks
        if unit.ordinal is not None:
            tag = f'<ol start="{unit.ordinal}">'
        if tokens and tokens[0].type == "paragraph_open":
            # Without its paragraph tag, the text of a loose list's item is also beside its bullet.
            closing = next(t for t in tokens if t.type == "paragraph_close" and t.level == base)
            tokens[0].hidden = closing.hidden = True
        blocks: list[Block] = []
        run: list[Token] = []
        for token in (*tokens, None):
            if token is not None and not (token.level == base and token.type == "fence"):
                run.append(token)
                continue
            if run or not blocks:
                opening = _WITHOUT_BULLETS if blocks else tag
                text, written, formulas = self._render(run, "" if blocks else source, env)
                blocks.append(Prose(f"<li>{text}</li>", written, formulas, opening))
            if token is not None:
                blocks.append(_code_block(token, "", indent=1))
            run = []
        return blocks

    def _render(self, tokens: Sequence[Token], source: str, env: MarkdownEnv) -> tuple[str, str, tuple[Formula, ...]]:
        env[FORMULAS_KEY], env[PLACES_KEY] = [], self.links_places
        text = self._parser.renderer.render(tokens, self._parser.options, env)
        return text.strip(), source, tuple(env[FORMULAS_KEY])


def plain_block(source: str) -> Prose:
    lines = html.escape(safe_prose(source.rstrip("\n"))).split("\n")
    return Prose("".join(f'<p class="plain">{line}</p>' if line else _EMPTY_LINE for line in lines), source)


def plain_blocks(text: str) -> list[Prose]:
    """Split plain text into blocks at line or word ends. Return at least one block."""
    blocks: list[Prose] = []
    at = 0
    while at < len(text) or not blocks:
        piece = text[at : at + _MAX_PLAIN]
        if at + len(piece) < len(text):
            piece = piece[: piece.rfind("\n") + 1 or piece.rfind(" ") + 1 or len(piece)]
        blocks.append(plain_block(piece))
        at += len(piece)
    return blocks


def _split_units(tokens: list[Token]) -> Iterator[Unit]:
    ordinal: int | None = None
    list_number = 0
    begin: int | None = None
    for i, token in enumerate(tokens):
        if token.level == 0 and token.type in ("bullet_list_open", "ordered_list_open"):
            ordinal = int(token.attrGet("start") or 1) if token.type == "ordered_list_open" else None
            list_number += 1
        elif token.level == 0 and token.type in ("bullet_list_close", "ordered_list_close"):
            ordinal = None
        elif begin is None:
            begin = i
        if begin is None:
            continue
        first = tokens[begin]
        closes = token.nesting == -1 or (token.nesting == 0 and i == begin)
        if closes and token.level == first.level and first.map is not None:
            first_line, end_line = first.map
            item = (list_number, ordinal) if first.level else (0, None)
            yield Unit(first.type, first_line, end_line, tuple(tokens[begin : i + 1]), *item)
            begin = None
            if first.type == LIST_ITEM and ordinal is not None:
                ordinal += 1


def _code_block(token: Token, source: str, indent: int = 0) -> Code:
    return Code(code_language(token.info), token.content.rstrip(), source, indent)


def code_language(info: str) -> str:
    return "".join(info.split()[:1]).lower()


def prose_css(theme: Theme, mono: str, points: float) -> str:
    """Return the style sheet of prose, in QTextDocument's subset of CSS. `points` is the font size of code."""
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


def renderer_class(theme: Theme, *, allow_internal_links: bool = False) -> type[SafeRenderer]:
    """Return a renderer class with the theme's colors. `allow_internal_links` also allows links within the text."""

    class Renderer(SafeRenderer):
        """HTML renderer for QTextDocument that replaces formulas by `<!--math:i-->`."""

        def text(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            shown = super().text(tokens, i, options, env)
            return CITATION.sub(rf'<a href="{PLACE_LINK}\1">\g<0></a>', shown) if env.get(PLACES_KEY) else shown

        def allows_link(self, url: str) -> bool:
            return super().allows_link(url) or (allow_internal_links and url.startswith("#"))

        def image(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return f'<span style="color:{theme.muted}">{super().image(tokens, i, options, env)}</span>'

        def math_inline(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            token, formulas = tokens[i], env[FORMULAS_KEY]
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
            return f'<table cellspacing="0" cellpadding="7"{_direction_attributes(tokens[i:])}>\n'

        def th_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return _opening_cell_tag(tokens[i], f"border-bottom: 1px solid {theme.muted}; font-weight:600")

        def th_close(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return "</td>"

        def td_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            return _opening_cell_tag(tokens[i], f"border-bottom: 1px solid {theme.line}")

        def blockquote_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
            direction = _direction_attributes(tokens[i:])
            side = "right" if direction else "left"
            return (
                f'<table cellspacing="0" cellpadding="0"{direction} style="margin-top:6px; margin-bottom:10px"><tr>'
                f'<td style="border-{side}: 3px solid {theme.line}; padding-{side}: 12px; color: {theme.muted}">'
            )

        blockquote_close = footnote_reference_close

    return Renderer


def _direction_attributes(tokens: Sequence[Token]) -> str:
    """Return attributes for a right-to-left table, or "". The first letter with a direction decides."""
    text = next((token.content for token in tokens if token.type == "inline" and token.content.strip()), "")
    strong = (kind for kind in map(bidirectional, text) if kind in ("L", "R", "AL"))
    return ' dir="rtl" align="right"' if next(strong, "L") != "L" else ""


def _opening_cell_tag(token: Token, style: str) -> str:
    alignment = token.attrGet("style")
    return f'<td style="{f"{alignment}; " if alignment else ""}{style}">'
