r"""Markdown as used in chats, configured once for the screen and for exports. HTML stays text.

LaTeX is $…$, $$…$$, \(…\), \[…\] and bare environments such as align. Its rules are implemented here because a formula
must not change while a reply streams: it ends at the next blank line at the latest (as in TeX), so an opener
without a closer never swallows the rest.
"""

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from mdit_py_plugins.footnote import footnote_plugin
from mdit_py_plugins.tasklists import tasklists_plugin

from kvchat.text.safe_text import safe_code, safe_prose

STREAMING = "streaming"  # markdown-it env key: more text may follow, so a formula at its end may still be closed
_MAX_NESTING = 40  # nested lists (each counts twice) and quotes
_LINK_SCHEMES = ("http", "https", "mailto")
_INLINE_DELIMITERS = (("$$", "$$", True), ("\\[", "\\]", True), ("\\(", "\\)", False), ("$", "$", False))
_ENVIRONMENT = re.compile(r"\\begin\{((?:equation|align|aligned|alignat|gather|gathered|multline|cases|split)\*?)\}")
_MONEY = re.compile(r"\d[\d.,]*\s+[a-z]{2,}\s", re.IGNORECASE)  # "5 and 10" between two dollar signs


class SafeRenderer(RendererHTML):
    """Renderer that shows hidden characters, fetches nothing, and links only to the web."""

    def text(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
        return html.escape(safe_prose(tokens[i].content))

    def code_inline(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
        return f"<code>{html.escape(safe_code(tokens[i].content))}</code>"

    def fence(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
        return f"<pre>{html.escape(safe_code(tokens[i].content.rstrip()))}</pre>\n"

    def code_block(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
        return self.fence(tokens, i, options, env)

    def image(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
        """Show a picture's description instead: a viewer would fetch the picture."""
        alt = safe_prose(self.renderInlineAsText(tokens[i].children or [], options, env))
        return f"<em>[image: {html.escape(alt or 'untitled')}]</em>"

    def link_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
        """Open a link; one that is not a web link becomes plain text."""
        url = str(tokens[i].attrGet("href") or "")
        return f'<a href="{html.escape(url)}">' if self.allows_link(url) else "<span>"

    def link_close(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
        opened = next(t for t in reversed(tokens[:i]) if t.type == "link_open" and t.level == tokens[i].level)
        return "</a>" if self.allows_link(str(opened.attrGet("href") or "")) else "</span>"

    def allows_link(self, url: str) -> bool:
        return is_web_link(url)

    def html_inline(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
        return "☑" if "checked=" in tokens[i].content else "☐"

    def math_inline(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
        return formula_source(f"{tokens[i].markup}{tokens[i].content}{tokens[i].info}")

    def math_block(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
        token = tokens[i]
        return f"<p>{formula_source(token.markup + token.content + (token.info if token.meta['closed'] else ''))}</p>"

    def footnote_ref(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
        return f"<sup>{html.escape(safe_prose(tokens[i].meta['label']))}</sup>"

    def footnote_reference_open(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
        return f"<blockquote>{SafeRenderer.footnote_ref(self, tokens, i, options, env)} "

    def footnote_reference_close(self, tokens: Sequence[Token], i: int, options: OptionsDict, env: Any) -> str:
        return "</blockquote>\n"


def markdown_parser(renderer: type[SafeRenderer]) -> MarkdownIt:
    """Make a parser of replies. It never raises: any text is Markdown."""
    options = {"html": False, "linkify": False, "breaks": True, "maxNesting": _MAX_NESTING}
    parser = MarkdownIt("commonmark", options, renderer_cls=renderer)
    parser.enable(["table", "strikethrough"])
    footnote_plugin(parser, inline=False, move_to_end=False)
    tasklists_plugin(parser)
    # Tokens of both rules: `content` LaTeX, `markup` opener, `info` closer, both empty if `content` has them.
    parser.inline.ruler.before("escape", "math_inline", _inline)
    parser.block.ruler.before(
        "fence", "math_block", _block, {"alt": ["paragraph", "reference", "blockquote", "list", "footnote_def"]}
    )
    parser.renderer.rules["footnote_ref"] = parser.renderer.footnote_ref  # type: ignore[attr-defined]  # the plugin put its own there
    return parser


def is_too_deep(tokens: Iterable[Token]) -> bool:
    """Return True if markdown-it dropped text nested too deeply, which is then shown as written."""
    return any(token.level >= _MAX_NESTING - 1 for token in tokens)


def is_web_link(url: str) -> bool:
    """Return True if clicking `url` may leave the page: http, https or mailto only."""
    try:
        return urlsplit(url).scheme.lower() in _LINK_SCHEMES
    except ValueError:
        return False


def formula_source(source: str) -> str:
    return f"<code>{html.escape(safe_prose(source))}</code>".replace("\n", "<br>")


def _inline(state: StateInline, silent: bool) -> bool:
    source, start = state.src, state.pos
    for opener, closer, display in _INLINE_DELIMITERS:
        if not source.startswith(opener, start):
            continue
        begin = start + len(opener)
        end = source.find(closer, begin, state.posMax)
        while end > 0 and closer[0] == "$" and source[end - 1] == "\\":  # escaped
            end = source.find(closer, end + 1, state.posMax)
        if end < 0 or not _is_formula(source, begin, end, closer):
            continue
        if not silent:
            token = state.push("math_inline", "math", 0)
            token.content, token.markup, token.info = source[begin:end].strip(), opener, closer
            token.meta = {"display": display}
        state.pos = end + len(closer)
        return True
    return False


def _is_formula(source: str, begin: int, end: int, closer: str) -> bool:
    content = source[begin:end]
    if not content.strip():
        return False
    if closer != "$":
        return True
    # Pandoc's rule: no space inside the dollars, no digit after them. "$5 and $6" is money.
    digit_behind = source[end + 1 : end + 2].isdigit()
    return not (content[0].isspace() or content[-1].isspace() or digit_behind or _MONEY.match(content))


def _block(state: StateBlock, first: int, limit: int, silent: bool) -> bool:
    if state.is_code_block(first):
        return False
    line = _line(state, first)
    opener, closer, keep = _delimiters(line)
    if not opener:
        return False
    content: list[str] = []
    number, rest, closed = first, line[len(opener) :], False
    while True:
        if rest.rstrip().endswith(closer):
            content.append(rest.rstrip()[: -len(closer)])
            closed = True
            break
        if closer in rest:
            return False  # text follows the formula: a paragraph with its own formulas
        content.append(rest)
        number += 1
        if number >= limit:
            break
        if state.isEmpty(number) or state.sCount[number] < state.blkIndent:
            return False
        rest = _line(state, number)
    if not closed and not state.env.get(STREAMING):
        return False
    if silent:
        return True
    state.line = number + 1 if closed else limit
    token = state.push("math_block", "math", 0)
    tex = "\n".join(content).strip()
    token.content = f"{opener}\n{tex}\n{closer}" if keep else tex
    token.markup, token.info = ("", "") if keep else (opener, closer)
    token.map = [first, state.line]
    token.meta = {"display": True, "closed": closed and bool(tex)}
    return True


def _delimiters(line: str) -> tuple[str, str, bool]:
    """Return the opening and closing delimiters of a formula that begins at this line, or empty ones.

    The last value is True if the delimiters are part of the LaTeX.
    """
    if line.startswith("$$"):
        return "$$", "$$", False
    if line.startswith("\\["):
        return "\\[", "\\]", False
    if found := _ENVIRONMENT.match(line):
        return found[0], f"\\end{{{found[1]}}}", True
    return "", "", False


def _line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]]
