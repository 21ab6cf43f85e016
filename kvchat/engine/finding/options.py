"""The options a llama-server knows, read from its own --help. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_NAME = re.compile(r"-{1,2}[A-Za-z][\w-]*")
_END_OF_HEAD = re.compile(
    r"(?<![,\s])\s{2,}"
)  # names are parted by a comma and spaces, the description by spaces alone


@dataclass(frozen=True)
class Option:
    """One option: every spelling of it, "no" forms included, and how many values follow it."""

    names: tuple[str, ...]
    values: int


@dataclass(frozen=True)
class KnownOptions:
    """All options of one build."""

    options: tuple[Option, ...]
    traces: bool = False  # log levels are numbered up to "trace", below which no conversation is logged

    def find(self, name: str) -> Option | None:
        """The option of that name; llama.cpp takes `--ctx_size` for `--ctx-size`."""
        wanted = plain(name)
        return next((option for option in self.options if wanted in option.names), None)

    def missing(self, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` that this build does not know."""
        return frozenset(name for name in names if self.find(name) is None)


def plain(name: str) -> str:
    """An option's name as --help spells it (common/arg.cpp replaces underscores in long options)."""
    return name.replace("_", "-") if name.startswith("--") else name


def parse_help(text: str) -> KnownOptions | None:
    """What `llama-server --help` prints; None when it is something else.

    A line that begins with a dash is an option: names, what follows them, and, after two spaces or on the next line,
    its description (common_arg::to_string in llama.cpp's common/arg.cpp).
    """
    found = tuple(_option(line) for line in text.splitlines() if _NAME.match(line))
    options = KnownOptions(found, traces="4: trace" in text)
    return None if options.missing(("--model", "--port")) else options


def _option(line: str) -> Option:
    head = _END_OF_HEAD.split(line, maxsplit=1)[0]
    names: list[str] = []
    while match := _NAME.match(head):
        names.append(match[0])
        head = head[match.end() :].lstrip(", ")
    if not head:
        return Option(tuple(names), 0)
    return Option(tuple(names), 2 if re.fullmatch(r"[A-Z]+ [A-Z]+", head) else 1)
