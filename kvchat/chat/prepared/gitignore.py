"""The .gitignore rules of a folder, matched in time linear in the length of the name.

Repositories are untrusted, and pathspec's regular expressions backtrack: twelve stars against one long name never
finished, while holding the GIL. The rules are those of gitignore(5) and git's wildmatch.c: `?` is one byte.
"""

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvchat.system.files import open_regular_file

MAX_BYTES = 100_000  # per .gitignore; the largest public ones have some 20,000
MAX_RULE_BYTES = 1000  # bytes; names have at most 255
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
_TOKENS = re.compile(  # an escaped byte; a class such as [!a-z]: whether it is negated, and its inside; another byte
    rb"\\(.)|\[([!^]?+)((?:\[:[a-z]+:\]|\\.|[^\\])(?:\[:[a-z]+:\]|\\.|[^\]\\])*)\]|(.)", re.DOTALL
)
_CLASS_PART = re.compile(rb"\[:([a-z]+):\]|\\(.)|(-)|(.)", re.DOTALL)

_Segment = re.Pattern[bytes] | None  # None: `**`, any number of folders


@dataclass(frozen=True)
class IgnoreRule:
    is_exception: bool  # starts with "!"
    folders_only: bool
    name_only: bool  # no slash: matches only the last name of a path
    segments: tuple[_Segment, ...]

    def matches(self, names: Sequence[bytes], *, is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        return _match_segments(self.segments, names[-1:] if self.name_only else names)


@dataclass(frozen=True)
class IgnoreRules:
    folder: Path
    rules: tuple[IgnoreRule, ...]

    def ignores(self, path: Path, *, is_folder: bool) -> bool | None:
        """Return what the last matching rule decides for a path below the folder; None if no rule matches."""
        names = [os.fsencode(name) for name in path.relative_to(self.folder).parts]
        matching = (rule for rule in reversed(self.rules) if rule.matches(names, is_folder=is_folder))
        return next((not rule.is_exception for rule in matching), None)


def read_rules(folder: Path) -> tuple[IgnoreRules, ...]:
    """Read a folder's .gitignore, if any. Like git, follow no links."""
    path = folder / ".gitignore"
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return ()
        with open_regular_file(path) as file:
            text = file.read(MAX_BYTES)
    except (OSError, ValueError):
        return ()
    rules = map(_parse_rule, text.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    return (IgnoreRules(folder, tuple(rule for rule in rules if rule)),)


def _parse_rule(line: bytes) -> IgnoreRule | None:
    line = line.removesuffix(b"\r")
    stripped = line.rstrip(b" ")
    backslashes = len(stripped) - len(stripped.rstrip(b"\\"))
    line = stripped + b" " if backslashes % 2 and stripped != line else stripped
    if not line or line.startswith(b"#") or len(line) > MAX_RULE_BYTES:
        return None
    is_exception = line.startswith(b"!")
    line = line[is_exception:]
    folders_only = line.endswith(b"/")
    line = line[: len(line) - folders_only]
    if not line:
        return None
    name_only = b"/" not in line
    segments = [[b""]]  # the pieces between the stars, for each path component
    try:
        for escaped, negated, inside, other in _TOKENS.findall(line.removeprefix(b"/")):
            if b"/" in (escaped, other):
                segments.append([b""])
            elif other == b"*":
                segments[-1].append(b"")
            elif other in (b"[", b"\\"):  # an unclosed class or escape matches nothing
                return None
            elif inside:
                parts = (
                    _CLASSES[name] if name else dash or re.escape(quoted or byte)
                    for name, quoted, dash, byte in _CLASS_PART.findall(inside)
                )
                segments[-1][-1] += (b"[^" if negated else b"[") + b"".join(parts) + b"]"
            else:
                segments[-1][-1] += b"." if other == b"?" else re.escape(escaped or other)
        patterns = tuple(_compile_segment(pieces, deep=not name_only) for pieces in segments)
        return IgnoreRule(is_exception, folders_only, name_only, patterns)
    except (KeyError, re.error):  # an unknown class, or a range that ends before it begins
        return None


def _compile_segment(pieces: Sequence[bytes], *, deep: bool) -> _Segment:
    """Build the pattern for one path component from the regular expressions between its stars.

    Text after a star matches at its first place, which is as good as any later one (an atomic group), so that
    nothing is tried twice.
    """
    if deep and len(pieces) > 2 and not any(pieces):
        return None
    first, *middle = pieces
    if middle:
        *middle, last = middle
        first += b"".join(b"(?>.*?" + piece + b")" for piece in middle if piece) + b".*" + last
    return re.compile(first, re.DOTALL)


def _match_segments(segments: Sequence[_Segment], names: Sequence[bytes]) -> bool:
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
