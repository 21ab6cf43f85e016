"""Limits on what a request makes the engine parse: llama-server recurses over it, and its stack overflows."""

from __future__ import annotations

import json
import re
from typing import Any

from kvchat.gateway.dialects.conversion import Json

MOST_LEVELS = 200  # of objects and lists in a body, and of brackets in a grammar
MOST_GRAMMAR = 50_000  # characters of a grammar, or of a JSON schema, of which the engine makes one
GRAMMARS = ("grammar", "json_schema", "schema", "parameters", "input_schema")
_BRACKET = re.compile(r"[()\[\]{}]")


class OutOfBounds(ValueError):
    """The body has something that would crash the engine; the message says what, for the client."""


def check_bounds(body: Json) -> None:
    """Raise OutOfBounds for a body that is nested too deeply, or has too large a grammar, at any place."""
    places: list[tuple[Any, int, bool]] = [(body, 1, False)]
    while places:
        value, level, in_grammar = places.pop()
        if level > MOST_LEVELS:
            raise OutOfBounds(f"The body is nested more than {MOST_LEVELS} levels deep.")
        if isinstance(value, list):
            places += [(one, level + 1, in_grammar) for one in value if isinstance(one, dict | list)]
        elif isinstance(value, dict):
            for name, one in value.items():
                if isinstance(one, str):
                    places += _within(name, one)
                elif isinstance(one, dict | list):
                    places.append((one, level + 1, in_grammar or name in GRAMMARS))
                    if name in GRAMMARS and not in_grammar:
                        _check_schema(one)


def _within(name: str, text: str) -> list[tuple[Any, int, bool]]:
    """Parse a text as the engine will, by its member's name: the arguments of tool calls are JSON."""
    if name in GRAMMARS and len(text) > MOST_GRAMMAR:
        raise OutOfBounds(f"A grammar may have at most {MOST_GRAMMAR:,} characters.")
    if name in ("grammar", "pattern") and _levels(text) > MOST_LEVELS:
        raise OutOfBounds(f"The brackets of a grammar are nested more than {MOST_LEVELS} levels deep.")
    if name in ("arguments", "json_schema"):
        try:
            return [(json.loads(text), 1, True)]
        except RecursionError:
            raise OutOfBounds(f"The body is nested more than {MOST_LEVELS} levels deep.") from None
        except ValueError:  # the engine says so
            pass
    return []


def _check_schema(schema: dict[str, Any] | list[Any]) -> None:
    try:
        size = len(json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
    except RecursionError:
        raise OutOfBounds(f"The body is nested more than {MOST_LEVELS} levels deep.") from None
    if size > MOST_GRAMMAR:
        raise OutOfBounds(f"A JSON schema may have at most {MOST_GRAMMAR:,} characters.")


def _levels(text: str) -> int:
    """How deeply its brackets are nested at most, whatever they mean."""
    level = most = 0
    for bracket in _BRACKET.findall(text):
        level += 1 if bracket in "([{" else -1
        most = max(most, level)
    return most
