"""The .gitignore rules of a folder, matched in time linear in the length of the name.

Repositories are untrusted, so the package pathspec is not used: its regular expressions backtrack, and a pattern with
twelve stars never finished on one long name, while holding the GIL. The rules are those of gitignore(5) and git's
wildmatch.c: `?` matches one byte.
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


@dataclass(frozen=True)
class IgnoreRule:
    first_name_index: int  # in a path: the first below the .gitignore's folder, or the last for a rule without slash
    is_exception: bool  # starts with "!"
    folders_only: bool
    segments: tuple[re.Pattern[bytes] | None, ...]  # None: `**`, any number of folders

    def matches(self, names: Sequence[bytes]) -> bool:
        places = {0}  # numbers of names that the segments so far can match
        for segment in self.segments:
            if segment is None:
                places = set(range(min(places, default=len(names)), len(names)))
            else:
                places = {at + 1 for at in places if at < len(names) and segment.fullmatch(names[at])}
        return len(names) in places


def is_ignored(path: Path, rules: Sequence[IgnoreRule], *, is_folder: bool) -> bool:
    """Return True if the last matching rule ignores `path`. `rules`: of its parent folders, innermost last."""
    names = [os.fsencode(name) for name in path.parts]
    for rule in reversed(rules):
        if (is_folder or not rule.folders_only) and rule.matches(names[rule.first_name_index :]):
            return not rule.is_exception
    return False


def read_rules(folder: Path) -> list[IgnoreRule]:
    """Read a folder's .gitignore, if any. Like git, follow no links."""
    path = folder / ".gitignore"
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return []
        with open_regular_file(path) as file:
            text = file.read(MAX_BYTES)
    except (OSError, ValueError):
        return []
    rules = (_parse_rule(len(folder.parts), line) for line in text.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    return [rule for rule in rules if rule]


def _parse_rule(depth: int, line: bytes) -> IgnoreRule | None:
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
    in_any_folder = b"/" not in line
    components = [[b""]]  # the regular expressions between the stars of each path component
    try:
        for escaped, negated, inside, other in _TOKENS.findall(line.removeprefix(b"/")):
            if b"/" in (escaped, other):
                components.append([b""])
            elif other == b"*":
                components[-1].append(b"")
            elif other in (b"[", b"\\"):  # an unclosed class or escape matches nothing
                return None
            elif inside:
                parts = (
                    _CLASSES[name] if name else dash or re.escape(quoted or byte)
                    for name, quoted, dash, byte in _CLASS_PART.findall(inside)
                )
                components[-1][-1] += (b"[^" if negated else b"[") + b"".join(parts) + b"]"
            else:
                components[-1][-1] += b"." if other == b"?" else re.escape(escaped or other)
        segments: list[re.Pattern[bytes] | None] = []
        for pieces in components:
            if len(pieces) > 2 and not any(pieces) and not in_any_folder:
                segments.append(None)
                continue
            first, *rest = pieces
            if rest:
                # Text after a star matches at its first place, which is as good as any later one (an atomic group),
                # so that nothing is tried twice.
                first += b"".join(b"(?>.*?" + piece + b")" for piece in rest[:-1] if piece) + b".*" + rest[-1]
            segments.append(re.compile(first, re.DOTALL))
        if segments[-1] is None:
            segments.append(re.compile(b".*", re.DOTALL))
        return IgnoreRule(-1 if in_any_folder else depth, is_exception, folders_only, tuple(segments))
    except (KeyError, re.error):  # an unknown class, or a range that ends before it begins
        return None
