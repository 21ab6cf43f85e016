"""The .gitignore rules of a folder, matched in time linear in the length of the name.

Repositories are untrusted, and pathspec's regular expressions backtrack: twelve stars against one long name never
finished, while holding the GIL. The rules are those of gitignore(5) and git's wildmatch.c: `?` is one byte.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvchat.system.files import open_plain

MOST_BYTES = 100_000  # per .gitignore; the largest public ones have some 20,000
MOST_RULE = 1000  # bytes; names have at most 255
_CLASSES = {
    b"alnum": b"0-9A-Za-z",
    b"alpha": b"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": b"0-9",
    b"graph": b"!-~",
    b"lower": b"a-z",
    b"print": b" -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb"\s",
    b"upper": b"A-Z",
    b"xdigit": b"0-9A-Fa-f",
}
_STAR, _SLASH = b"*", b"/"  # tokens; all others are one-byte regular expressions

_Segment = re.Pattern[bytes] | None  # None: `**`, any number of folders


@dataclass(frozen=True)
class Rule:
    keeps: bool  # starts with "!"
    folders_only: bool
    anywhere: bool  # no slash: matches only the last name of a path
    segments: tuple[_Segment, ...]

    def matches(self, names: Sequence[bytes], *, is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        return _match(self.segments, names[-1:] if self.anywhere else names)


@dataclass(frozen=True)
class Rules:
    folder: Path
    rules: tuple[Rule, ...]

    def ignores(self, path: Path, *, is_folder: bool) -> bool | None:
        """Return what the last matching rule decides for a path below the folder; None if no rule matches."""
        names = [os.fsencode(name) for name in path.relative_to(self.folder).parts]
        said = (not rule.keeps for rule in reversed(self.rules) if rule.matches(names, is_folder=is_folder))
        return next(said, None)


def read_rules(folder: Path) -> tuple[Rules, ...]:
    """Read a folder's .gitignore, if any. Like git, follow no links."""
    path = folder / ".gitignore"
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return ()
        with open_plain(path) as file:
            text = file.read(MOST_BYTES)
    except (OSError, ValueError):
        return ()
    rules = map(_rule, text.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    return (Rules(folder, tuple(rule for rule in rules if rule)),)


def _rule(line: bytes) -> Rule | None:
    line = line.removesuffix(b"\r")
    stripped = line.rstrip(b" ")
    backslashes = len(stripped) - len(stripped.rstrip(b"\\"))
    line = stripped + b" " if backslashes % 2 and stripped != line else stripped
    if not line or line.startswith(b"#") or len(line) > MOST_RULE:
        return None
    keeps = line.startswith(b"!")
    line = line[keeps:]
    folders_only = line.endswith(b"/")
    line = line[: len(line) - folders_only]
    if not line:
        return None
    anywhere = b"/" not in line
    try:
        tokens = list(_tokens(line.removeprefix(b"/")))
    except IndexError:  # an unclosed class or escape matches nothing
        return None
    segments: list[list[bytes]] = [[]]
    for token in tokens:
        segments.append([]) if token == _SLASH else segments[-1].append(token)
    return Rule(keeps, folders_only, anywhere, tuple(_segment(segment, deep=not anywhere) for segment in segments))


def _tokens(rule: bytes) -> Iterator[bytes]:
    """Split a rule into one-byte patterns, stars and slashes. Raises IndexError if it is unterminated."""
    place = 0
    while place < len(rule):
        letter = rule[place : place + 1]
        place += 1
        if letter == b"\\":
            letter = rule[place : place + 1]
            if not letter:
                raise IndexError
            place += 1
            yield _SLASH if letter == b"/" else re.escape(letter)
        elif letter == b"[":
            token, place = _class(rule, place)
            yield token
        elif letter == b"?":
            yield b"."
        else:
            yield letter if letter in (_STAR, _SLASH) else re.escape(letter)


def _class(rule: bytes, place: int) -> tuple[bytes, int]:
    """Convert a class such as `[!a-z]` to a regular expression and the position after it. Raises IndexError."""
    negated = rule[place] in b"!^"
    place += negated
    parts: list[bytes] = []
    before: int | None = None  # possible start of a range
    first = True
    while first or rule[place] != ord("]"):
        first = False
        byte = rule[place]
        if byte == ord("-") and before is not None and rule[place + 1] != ord("]"):
            place += 1 + (rule[place + 1] == ord("\\"))
            low, high, before = before, rule[place], None
            parts += [re.escape(bytes([low])) + b"-" + re.escape(bytes([high]))] if low <= high else []
        elif rule[place : place + 2] == b"[:" and rule[rule.index(b"]", place + 2) - 1] == ord(":"):
            end = rule.index(b"]", place + 2)
            parts.append(_CLASSES[rule[place + 2 : end - 1]])
            place, before = end, None
        else:
            if byte == ord("\\"):
                place += 1
            before = rule[place]
            parts.append(re.escape(bytes([before])))
        place += 1
    inside = b"".join(parts)
    return (b"[^" if negated else b"[") + inside + b"]" if inside else b"." if negated else b"(?!)", place + 1


def _segment(tokens: Sequence[bytes], *, deep: bool) -> _Segment:
    """Build the pattern for one path component.

    Text after a star matches at its first place, which is as good as any later one (an atomic group), so that
    nothing is tried twice.
    """
    if deep and len(tokens) > 1 and set(tokens) == {_STAR}:
        return None
    pieces = [b""]
    for token in tokens:
        if token == _STAR:
            pieces.append(b"")
        else:
            pieces[-1] += token
    first, *middle, last = pieces if len(pieces) > 1 else (pieces[0], None)
    if last is None:
        return re.compile(first, re.DOTALL)
    found = b"".join(b"(?>.*?" + piece + b")" for piece in middle if piece)
    return re.compile(first + found + b".*" + last, re.DOTALL)


def _match(segments: Sequence[_Segment], names: Sequence[bytes]) -> bool:
    at = place = 0
    again: tuple[int, int] | None = None  # after the last `**`: segment and next name to try
    while place < len(names) or at < len(segments):
        segment = segments[at] if at < len(segments) else None
        if at < len(segments) and segment is None:
            if at + 1 == len(segments):
                return place < len(names)
            again = at + 1, place + 1
            at += 1
        elif segment is not None and place < len(names) and segment.fullmatch(names[place]):
            at, place = at + 1, place + 1
        elif again is None or again[1] > len(names):
            return False
        else:
            at, place = again
            again = at, place + 1
    return True
