"""Markdown that grows at its end: what can no longer change is read once and never again.

CommonMark decides by whole lines where a top-level block (or an item of a top-level list) begins, and what begins one
ends the one before. So everything before the last unit begun by a whole line is settled. Two things look back: a fence,
which is followed line by line here, and definitions of links and notes, after which what refers to them is read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from markdown_it.token import Token

from kvchat.ui.rendering.blocks import Block, Code, Prose, Wide
from kvchat.ui.rendering.markdown import Env, Markdown, Unit, plain_block
from kvchat.ui.rendering.table_pieces import JOINED_CELLS, pieces_of_one_table, table_pieces

SLICE = 4_000  # characters read in one step
_LONGEST = {"paragraph_open": 4_000}  # of a unit, in characters; longer ones are cut
_LONGEST_OTHER = 24_000
_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})[ \t]*([^\n]*)\n")


@dataclass(frozen=True)
class _Place:
    """Where reading stood before the end was settled."""

    settled: list[Block]
    tail: str
    ordinal: int | None
    fence: _Fence | None
    env: Env


@dataclass
class _Fence:
    """A code block whose end has not come."""

    opening: str
    indent: int
    delimiter: str
    language: str
    lines: list[str] = field(default_factory=list)

    def closed_by(self, line: str) -> bool:
        """Whether this line ends the block."""
        words = line.strip()
        deep = len(line) - len(line.lstrip(" ")) > 3
        return not deep and len(words) >= len(self.delimiter) and set(words) == {self.delimiter[0]}

    def add(self, line: str) -> None:
        """One more line of code."""
        lead = len(line) - len(line.lstrip(" "))
        self.lines.append(line[min(lead, self.indent) :])

    def code(self, last: str = "", closing: str = "") -> Code:
        """The block as it is now, with a line that is not whole yet."""
        text = "\n".join([*self.lines, last] if last else self.lines).rstrip()
        return Code(self.language, text, f"{self.opening}\n{text}\n{closing or self.delimiter}\n")


class MarkdownStream:
    """The blocks of one text. Feed it, then `step` until it says that nothing is left to read."""

    def __init__(self, markdown: Markdown) -> None:
        self.settled: list[Block] = []
        self.open: list[Block] = []  # what the end of the text looks like so far
        self.revision = 0  # counts how often settled blocks were changed by a late definition
        self._markdown = markdown
        self._unread, self._at = "", 0
        self._tail = ""  # read, not settled
        self._ordinal: int | None = None  # of the item the tail begins with, in a list that began before it
        self._fence: _Fence | None = None
        self._env: Env = {"references": {}, "footnotes": {"refs": {}, "list": {}}}  # definitions in what is settled
        self._finished = False
        self._before_end: _Place | None = None  # once the end is settled
        self._joined = 0  # settled blocks among which no pieces of a table are left

    def feed(self, text: str) -> None:
        """More text at the end."""
        self._unread, self._at = self._unread[self._at :] + text, 0

    @property
    def finished(self) -> bool:
        """Whether no more text is expected."""
        return self._finished

    def finish(self) -> None:
        """No more text will come: the next steps settle all of it."""
        self._finished = True

    def go_on(self) -> None:
        """More text will come after all: its end is open again, as if it had never been finished."""
        place, self._finished, self._before_end = self._before_end, False, None
        if place is not None:
            self.settled, self._tail, self._ordinal = place.settled, place.tail, place.ordinal
            self._fence, self._env, self._joined = place.fence, place.env, 0
            self.revision += 1

    def step(self) -> bool:
        """Read the next slice; whether there is more to read. Never takes long, whatever the text is."""
        self._tail += self._unread[self._at : self._at + SLICE]
        self._at += SLICE
        more = self._at < len(self._unread)
        last = self._finished and not more
        if last and self._before_end is None:
            fence = replace(self._fence, lines=[*self._fence.lines]) if self._fence else None
            self._before_end = _Place([*self.settled], self._tail, self._ordinal, fence, _copy(self._env))
        while self._read_fence(last) if self._fence else self._read_units(last):
            pass
        return more or (last and self._join_next_table())

    def _read_fence(self, last: bool) -> bool:
        """Read on in an open code block; whether it ended with text behind it."""
        fence = self._fence
        assert fence is not None
        *lines, rest = self._tail.split("\n")
        for i, line in enumerate(lines):
            if fence.closed_by(line):
                self._settle([fence.code(closing=line)])
                self._fence, self._tail = None, "\n".join([*lines[i + 1 :], rest])
                return True
            fence.add(line)
        self._tail = rest
        if last:
            if rest and not fence.closed_by(rest):
                fence.add(rest)
            self._settle([fence.code()])
            self._fence, self._tail = None, ""
            return False
        perhaps_closing = rest.strip() and set(rest.strip()) == {fence.delimiter[0]}
        self.open = [fence.code("" if perhaps_closing else rest)]
        return False

    def _read_units(self, last: bool) -> bool:
        """Read the tail; whether it is to be read again, having become shorter."""
        env = _copy(self._env)
        units = self._numbered(self._markdown.units(self._tail, env, streaming=not last))
        starts = _line_starts(self._tail)
        whole = len(starts) - 1  # lines that have ended
        begun = [i for i, unit in enumerate(units) if unit.first_line < whole and not _is_open_formula(unit.tokens[0])]
        keep = len(units) if last else begun[-1] if begun else 0
        self._settle(
            block for unit in units[:keep] for block in self._final(unit, _source(self._tail, starts, unit), env)
        )
        self.open = [
            block
            for unit in units[keep:]
            for block in self._markdown.blocks(unit, _source(self._tail, starts, unit), env)
        ]
        if last:
            self._define(env)
            self._tail, self._ordinal = "", None
            return False
        if keep:
            self._cut(units, starts, keep, env)
        return bool(units) and self._go_on(units[keep])

    def _final(self, unit: Unit, source: str, env: Env) -> list[Block]:
        """A settled unit's blocks. A formula that was still open in it will not be closed any more."""
        if unit.kind == "table_open":
            return [block for piece in table_pieces(unit, source) for block in self._read(piece, env)]
        if any(map(_is_open_formula, unit.tokens)):
            return self._read(source, env)
        return self._markdown.blocks(unit, source, env)

    def _read(self, source: str, env: Env) -> list[Block]:
        """The blocks of a unit that is read alone."""
        units = self._markdown.units(source, env, streaming=False)
        return [block for unit in units for block in self._markdown.blocks(unit, source, env)]

    def _go_on(self, unit: Unit) -> bool:
        """The tail begins with `unit` now: whether another way of reading it is due."""
        if unit.kind == "fence" and (opened := _FENCE.match(self._tail)):
            words = opened[3].split()
            self._fence = _Fence(opened[0].rstrip("\n"), len(opened[1]), opened[2], words[0].lower() if words else "")
            self._tail = self._tail[opened.end() :]
            return True
        if unit.kind == "table_open":
            rows = self._tail[: self._tail.rfind("\n") + 1]
            *whole, rest = table_pieces(unit, rows)
            if whole:
                env = _copy(self._env)
                self._settle(block for piece in whole for block in self._read(piece, env))
                self._tail = rest + self._tail[len(rows) :]
                return True
        longest = _LONGEST.get(unit.kind, _LONGEST_OTHER)
        if len(self._tail) <= longest:
            return False
        piece = self._tail[:longest]
        cut = max(piece.rfind("\n"), piece.rfind(" ")) + 1 or longest
        self._settle([plain_block(self._tail[:cut])])
        self._tail, self._ordinal = self._tail[cut:], None
        return True

    def _numbered(self, units: list[Unit]) -> list[Unit]:
        """The units with items counted on from a list that is settled in part."""
        if self._ordinal is None or not units or units[0].ordinal is None:
            return units
        ahead = self._ordinal - units[0].ordinal
        ours = units[0].list_number
        counted = [replace(unit, ordinal=(unit.ordinal or 0) + ahead) for unit in units if unit.list_number == ours]
        return counted + units[len(counted) :]

    def _cut(self, units: list[Unit], starts: list[int], keep: int, env: Env) -> None:
        """The first `keep` units are settled: the tail begins with the next one."""
        before, now = units[keep - 1], units[keep]
        same_list = before.is_item and now.is_item and before.list_number == now.list_number
        self._ordinal = now.ordinal if same_list else None
        position = starts[now.first_line]
        if _labels(env) != _labels(self._env):
            settled = _copy(self._env)
            self._markdown.units(self._tail[:position], settled, streaming=False)
            self._define(settled)
        self._tail = self._tail[position:]

    def _join_next_table(self) -> bool:
        """Join the pieces that the next table was read in; whether there was one."""
        while self._joined < len(self.settled):
            at = self._joined
            pieces, cells = pieces_of_one_table(islice(self.settled, at, None))
            if len(pieces) > 1 and cells <= JOINED_CELLS:
                self.settled[at : at + len(pieces)] = self._read("".join(pieces), _copy(self._env))
                self._joined += 1
                self.revision += 1
                return True
            self._joined += max(len(pieces), 1)
        return False

    def _settle(self, blocks: Iterable[Block]) -> None:
        self.settled += blocks
        self.open = []

    def _define(self, env: Env) -> None:
        """Keep new definitions, and read again what is settled and refers to them."""
        fresh = _labels(env) - _labels(self._env)
        self._env = _copy(env)
        for label in fresh:
            for i, block in enumerate(self.settled):
                if isinstance(block, Prose | Wide) and label in block.source.upper():
                    self._read_again(i, block)

    def _read_again(self, i: int, old: Prose | Wide) -> None:
        env = _copy(self._env)
        blocks = self._read(old.source, env)
        if [type(block) for block in blocks] != [type(block) for block in self.settled[i : i + len(blocks)]]:
            return  # read otherwise alone than in its place: it stays as it is
        if isinstance(old, Prose) and blocks and isinstance(blocks[0], Prose):
            blocks[0] = replace(blocks[0], list_tag=old.list_tag)
        if self.settled[i : i + len(blocks)] != blocks:
            self.settled[i : i + len(blocks)] = blocks
            self.revision += 1


def _is_open_formula(token: Token) -> bool:
    """Whether this may still become a formula, or else a part of the paragraph before it."""
    return token.type == "math_block" and not token.meta["closed"]


def _line_starts(text: str) -> list[int]:
    """Where each line begins; the last entry is where one begins that has not ended, at the text's end if all have."""
    starts = [0]
    at = text.find("\n")
    while at >= 0:
        starts.append(at + 1)
        at = text.find("\n", at + 1)
    return starts


def _source(text: str, starts: list[int], unit: Unit) -> str:
    end = starts[unit.end_line] if unit.end_line < len(starts) else len(text)
    return text[starts[unit.first_line] : end].rstrip("\n") + "\n"


def _labels(env: Env) -> set[str]:
    """How the text refers to what is defined: [LABEL] or [^LABEL], in capitals."""
    notes: dict[str, Any] = env["footnotes"]["refs"]
    return {f"[{label}]" for label in env["references"]} | {f"[^{label[1:].upper()}]" for label in notes}


def _copy(env: Env) -> Env:
    return {
        "references": dict(env.get("references", {})),
        "footnotes": {"refs": dict.fromkeys(env["footnotes"]["refs"], -1), "list": {}},  # -1: not referred to yet
    }
