r"""LaTeX in Markdown, as rules for markdown-it: $…$, $$…$$, \(…\), \[…\] and bare environments such as align.

Written here because a reply that still streams must not change its mind: a formula ends at the next blank line at the
latest (as in TeX), so an opener without a closer never swallows the rest.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

STREAMING = "streaming"  # key in markdown-it's env: the text may go on, so a formula at its end may still be closed
_INLINE = (("$$", "$$", True), ("\\[", "\\]", True), ("\\(", "\\)", False), ("$", "$", False))
_ENVIRONMENT = re.compile(r"\\begin\{((?:equation|align|aligned|alignat|gather|gathered|multline|cases|split)\*?)\}")
_MONEY = re.compile(r"\d[\d.,]*\s+[a-z]{2,}\s", re.IGNORECASE)  # "5 and 10", between two dollar signs


def math_rules(parser: MarkdownIt) -> None:
    """Teach `parser` tokens math_inline and math_block: `content` LaTeX, `markup` opener, `info` closer ("": open)."""
    parser.inline.ruler.before("escape", "math_inline", _inline)
    parser.block.ruler.before(
        "fence", "math_block", _block, {"alt": ["paragraph", "reference", "blockquote", "list", "footnote_def"]}
    )


def _inline(state: StateInline, silent: bool) -> bool:
    source, start = state.src, state.pos
    for opener, closer, display in _INLINE:
        if not source.startswith(opener, start):
            continue
        begin = start + len(opener)
        end = _closer(source, begin, closer, state.posMax)
        if end < 0 or not _is_formula(source, begin, end, closer):
            continue
        if not silent:
            token = state.push("math_inline", "math", 0)
            token.content, token.markup, token.info = source[begin:end].strip(), opener, closer
            token.meta = {"display": display}
        state.pos = end + len(closer)
        return True
    return False


def _closer(source: str, begin: int, closer: str, limit: int) -> int:
    """Where the next `closer` stands that no backslash takes away; -1 without one."""
    at = source.find(closer, begin, limit)
    while at > 0 and closer[0] == "$" and source[at - 1] == "\\":
        at = source.find(closer, at + 1, limit)
    return at


def _is_formula(source: str, begin: int, end: int, closer: str) -> bool:
    content = source[begin:end]
    if not content.strip():
        return False
    if closer != "$":
        return True
    # Pandoc's rule: no space inside the dollars, no digit behind them. "$5 and $6" is money.
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
            return False  # words behind the formula: a paragraph, which has formulas of its own
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
    """How a formula begins and ends that begins with this line, and whether they are part of it."""
    if line.startswith("$$"):
        return "$$", "$$", False
    if line.startswith("\\["):
        return "\\[", "\\]", False
    if found := _ENVIRONMENT.match(line):
        return found[0], f"\\end{{{found[1]}}}", True
    return "", "", False


def _line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]]
