"""Incremental Markdown parser that parses text only once when it can no longer change.

In CommonMark, a top-level block (or an item of a top-level list) begins with a complete line, and its beginning ends
the previous block. Everything before the last block that began with a complete line is therefore final. There are two
exceptions: a fenced code block is extended line by line, and after a definition of a link or footnote, the blocks that
refer to it are parsed again.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from markdown_it.token import Token

from kvchat.ui.rendering.markdown import (
    LIST_ITEM,
    Block,
    Code,
    Markdown,
    MarkdownEnv,
    Prose,
    Unit,
    code_language,
    plain_block,
)

_MAX_SLICE = 4_000  # characters parsed per step
_MAX_PIECE_CELLS = 120  # per piece of a growing table; each piece repeats the header
_MAX_JOINED_CELLS = 360  # a finished table up to this size is joined: its layout takes a few ms
_MAX_PARAGRAPH, _MAX_UNIT = 4_000, 24_000  # characters; longer ones are cut and shown as plain text
_MIN_ROWS = 8  # rows per piece of a table
_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})[ \t]*([^\n]*)\n")


@dataclass
class _Fence:
    opening: str
    indent: int
    delimiter: str
    language: str
    text: str = ""  # complete lines so far

    def is_closed_by(self, line: str) -> bool:
        marks, indent = line.strip(), len(line) - len(line.lstrip(" "))
        return indent <= 3 and len(marks) >= len(self.delimiter) and set(marks) == {self.delimiter[0]}

    def add_lines(self, lines: list[str]) -> None:
        indents = (min(len(line) - len(line.lstrip(" ")), self.indent) for line in lines)
        self.text += "".join(f"{line[indent:]}\n" for line, indent in zip(lines, indents, strict=True))

    def to_code(self, last: str = "", closing: str = "") -> Code:
        """Return the code block so far. `last` is its incomplete last line, `closing` its closing fence, if any."""
        text = (self.text + last).rstrip()
        return Code(self.language, text, f"{self.opening}\n{text}\n{closing or self.delimiter}\n")


class MarkdownStream:
    """Incremental Markdown parser. Call `feed`, then `step` until it returns False."""

    def __init__(self, markdown: Markdown) -> None:
        self.settled_blocks: list[Block] = []
        self.open_blocks: list[Block] = []  # blocks at the end that may still change
        self._markdown = markdown
        self._unread, self._position = "", 0
        self._tail = ""  # text that was taken from `_unread`, but is not settled
        self._ordinal: int | None = None  # number of the tail's first item if its list began earlier
        self._fence: _Fence | None = None
        self._env: MarkdownEnv = {"references": {}, "footnotes": {"refs": {}, "list": {}}}  # of settled text
        self._pieces: list[str] = []  # sources of the settled pieces of the table at the tail
        self.finished = False  # set it after the last text, so that the next steps settle everything

    @property
    def unread_length(self) -> int:
        return max(len(self._unread) - self._position, 0)

    def feed(self, text: str) -> None:
        self._unread, self._position = self._unread[self._position :] + text, 0

    def step(self) -> bool:
        """Parse more of the text, for a limited time. Return False if nothing is left."""
        self._tail += self._unread[self._position : self._position + _MAX_SLICE]
        self._position += _MAX_SLICE
        more = self._position < len(self._unread)
        last = self.finished and not more
        while self._parse_fence(last) if self._fence else self._parse_units(last):
            pass
        return more

    def _parse_fence(self, is_last: bool) -> bool:
        """Parse more of an open code block. Return True if the block has ended."""
        fence = self._fence
        assert fence is not None
        *lines, rest = self._tail.split("\n")
        closing = next((i for i, line in enumerate(lines) if fence.is_closed_by(line)), None)
        fence.add_lines(lines[:closing])
        if closing is None and not is_last:
            self._tail = rest
            perhaps_closing = rest.strip() and set(rest.strip()) == {fence.delimiter[0]}
            self.open_blocks = [fence.to_code("" if perhaps_closing else rest)]
            return False
        if closing is None and rest and not fence.is_closed_by(rest):
            fence.add_lines([rest])
        self._add_settled([fence.to_code(closing="" if closing is None else lines[closing])])
        self._fence, self._tail = None, "" if closing is None else "\n".join([*lines[closing + 1 :], rest])
        return closing is not None

    def _parse_units(self, is_last: bool) -> bool:
        """Parse the tail, which is the text that can still change, and move what is final to `settled_blocks`.

        Return True if the rest must be parsed again.
        """
        env = _copy_env(self._env)
        units = self._markdown.parse_units(self._tail, env, streaming=not is_last)
        if self._ordinal is not None and units and units[0].ordinal is not None:  # the list began earlier
            offset, ours = self._ordinal - units[0].ordinal, units[0].list_number
            units = [replace(u, ordinal=(u.ordinal or 0) + offset) if u.list_number == ours else u for u in units]
        starts = [0, *(newline.end() for newline in re.finditer("\n", self._tail))]  # of lines
        whole = len(starts) - 1  # complete lines
        started_units = [
            i for i, unit in enumerate(units) if unit.first_line < whole and not _is_open_formula(unit.tokens[0])
        ]
        keep = len(units) if is_last else started_units[-1] if started_units else 0
        pairs = [(unit, _unit_source(self._tail, starts, unit)) for unit in units]
        self._add_settled(block for unit, source in pairs[:keep] for block in self._final_blocks(unit, source, env))
        self.open_blocks = [block for pair in pairs[keep:] for block in self._markdown.render_unit(*pair, env)]
        if is_last:
            self._adopt_definitions(env)
            self._tail, self._ordinal = "", None
            return False
        if keep:
            before, now = units[keep - 1], units[keep]
            same_list = before.kind == now.kind == LIST_ITEM and before.list_number == now.list_number
            self._ordinal = now.ordinal if same_list else None
            position = starts[now.first_line]
            if _definition_labels(env) != _definition_labels(self._env):
                settled = _copy_env(self._env)
                self._markdown.parse_units(self._tail[:position], settled, streaming=False)
                self._adopt_definitions(settled)
            self._tail = self._tail[position:]
        return bool(units) and self._shorten_tail(units[keep])

    def _final_blocks(self, unit: Unit, source: str, env: MarkdownEnv) -> list[Block]:
        """Return the blocks of a unit that can no longer change. The pieces of a small table become one block."""
        if unit.kind == "table_open":
            before, self._pieces = self._pieces, []
            pieces = _table_pieces(unit, source)
            head = "".join(source.splitlines(keepends=True)[:2])
            whole = head + "".join(piece.removeprefix(head) for piece in [*before, *pieces])
            columns = sum(token.type == "th_open" for token in unit.tokens)
            if (whole.count("\n") - 2) * columns <= _MAX_JOINED_CELLS:
                del self.settled_blocks[len(self.settled_blocks) - len(before) :]
                pieces = [whole]
            return [block for piece in pieces for block in self._parse_alone(piece, env)]
        if any(map(_is_open_formula, unit.tokens)):
            return self._parse_alone(source, env)
        return self._markdown.render_unit(unit, source, env)

    def _parse_alone(self, source: str, env: MarkdownEnv) -> list[Block]:
        units = self._markdown.parse_units(source, env, streaming=False)
        return [block for unit in units for block in self._markdown.render_unit(unit, source, env)]

    def _shorten_tail(self, unit: Unit) -> bool:
        """Shorten a tail that begins with `unit`, if possible. Return True if the rest must be parsed again."""
        if unit.kind == "fence" and (opened := _FENCE.match(self._tail)):
            self._fence = _Fence(opened[0].rstrip("\n"), len(opened[1]), opened[2], code_language(opened[3]))
            self._tail = self._tail[opened.end() :]
            return True
        if unit.kind == "table_open":
            rows = self._tail[: self._tail.rfind("\n") + 1]
            *whole, rest = _table_pieces(unit, rows)
            if whole:
                env = _copy_env(self._env)
                self._add_settled(block for piece in whole for block in self._parse_alone(piece, env))
                self._pieces += whole
                self._tail = rest + self._tail[len(rows) :]
                return True
        limit = _MAX_PARAGRAPH if unit.kind == "paragraph_open" else _MAX_UNIT
        if len(self._tail) <= limit:
            return False
        piece = self._tail[:limit]
        cut = max(piece.rfind("\n"), piece.rfind(" ")) + 1 or limit
        self._add_settled([plain_block(self._tail[:cut])])
        self._pieces = []
        self._tail, self._ordinal = self._tail[cut:], None
        return True

    def _add_settled(self, blocks: Iterable[Block]) -> None:
        self.settled_blocks += list(blocks)  # before appending, because iterating may remove settled blocks
        self.open_blocks = []

    def _adopt_definitions(self, env: MarkdownEnv) -> None:
        fresh = _definition_labels(env) - _definition_labels(self._env)
        self._env = _copy_env(env)
        for i, old in enumerate(self.settled_blocks):
            if isinstance(old, Code) or not any(label in old.source.upper() for label in fresh):
                continue
            blocks = self._parse_alone(old.source, _copy_env(env))
            place = slice(i, i + len(blocks))
            if [type(block) for block in blocks] != [type(block) for block in self.settled_blocks[place]]:
                continue  # the block parses differently on its own
            if isinstance(old, Prose) and blocks and isinstance(blocks[0], Prose):
                blocks[0] = replace(blocks[0], list_tag=old.list_tag)
            if self.settled_blocks[place] != blocks:
                self.settled_blocks[place] = blocks


def parse_blocks(markdown: Markdown, text: str) -> list[Block]:
    """Parse a whole text at once."""
    stream = MarkdownStream(markdown)
    stream.feed(text)
    stream.finished = True
    while stream.step():
        pass
    return stream.settled_blocks


def _table_pieces(unit: Unit, source: str) -> list[str]:
    """Split a table into pieces that are quick to lay out, each with the table's header.

    The last piece also includes any lines after the table.
    """
    columns = sum(token.type == "th_open" for token in unit.tokens)
    lines = source.splitlines(keepends=True)
    end, max_rows = unit.end_line - unit.first_line, max(_MAX_PIECE_CELLS // columns, _MIN_ROWS)
    cuts = range(2, max(min(end, len(lines)), 3), max_rows)
    ends = [*cuts[1:], len(lines)]
    return ["".join([*lines[:2], *lines[at:to]]) for at, to in zip(cuts, ends, strict=True)]


def _is_open_formula(token: Token) -> bool:
    """Return True for a display formula that is not closed yet."""
    return token.type == "math_block" and not token.meta["closed"]


def _unit_source(text: str, starts: list[int], unit: Unit) -> str:
    end = starts[unit.end_line] if unit.end_line < len(starts) else len(text)
    return text[starts[unit.first_line] : end].rstrip("\n") + "\n"


def _definition_labels(env: MarkdownEnv) -> set[str]:
    """Return the labels of all definitions, in capitals: [LABEL] for links and [^LABEL] for footnotes."""
    notes: dict[str, Any] = env["footnotes"]["refs"]
    return {f"[{label}]" for label in env["references"]} | {f"[^{label[1:].upper()}]" for label in notes}


def _copy_env(env: MarkdownEnv) -> MarkdownEnv:
    return {
        "references": dict(env.get("references", {})),
        "footnotes": {"refs": dict.fromkeys(env["footnotes"]["refs"], -1), "list": {}},  # -1: not referenced yet
    }
