"""What a person reads is in the catalogue, and every catalogue has all of it."""

from __future__ import annotations

import ast
import io
import re
import string
import symtable
from functools import cache
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.extract import DEFAULT_KEYWORDS, extract_from_dir
from babel.messages.pofile import read_po

import kvchat
from kvchat.text.language import CATALOGUES, LANGUAGES

ROOT = Path(kvchat.__file__).parent
KEYWORDS = {**DEFAULT_KEYWORDS, "N_": None, "plural": (2, 3), "pgettext": ((1, "c"), 2)}


def is_broken_up(call: ast.Call) -> bool:
    """True if a translated text is not one literal: parts of an f-string or a sum never reach the catalogue."""
    function = getattr(call.func, "attr", "") or getattr(call.func, "id", "")
    texts = call.args[1:] if function in ("plural", "pgettext") else call.args[:1]
    return function in KEYWORDS and any(isinstance(text, ast.JoinedStr | ast.BinOp) for text in texts)


def test_translated_texts_are_whole_literals() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        within = [node for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for node in ast.walk(text)]
        broken = [call for call in calls if is_broken_up(call)]
        broken += [
            call
            for call in within
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id in KEYWORDS
            and isinstance(call.args[0], ast.Constant)
        ]
        assert [(path.name, call.lineno, ast.unparse(call)) for call in broken] == []


@cache
def template() -> Catalog:
    """All that is marked in the source."""
    catalogue = Catalog()
    found = extract_from_dir(ROOT, keywords=KEYWORDS, comment_tags=("Translators:",), strip_comment_tags=True)
    for name, line, message, comments, context in found:
        catalogue.add(message, None, [(name, line)], auto_comments=comments, context=context)
    return catalogue


@cache
def catalogue_of(language: str) -> Catalog:
    return read_po(io.BytesIO((CATALOGUES / language / "LC_MESSAGES" / "kvchat.po").read_bytes()), locale=language)


THERE = sorted(path.name for path in CATALOGUES.iterdir() if path.is_dir())


def key(message: object) -> tuple[object, object]:
    first = message.id if isinstance(message.id, str) else message.id[0]  # type: ignore[attr-defined]
    return first, message.context  # type: ignore[attr-defined]


def test_underscore_is_never_a_local_variable_that_is_called() -> None:
    """`_ = …` in a function makes every `_("…")` in it a call of that, which mypy lets pass."""
    hidden = []
    for path in ROOT.rglob("*.py"):
        tables = [symtable.symtable(path.read_text("utf-8"), str(path), "exec")]
        for table in tables:
            tables += table.get_children()
            if table.get_type() == "function" and "_" in table.get_identifiers():
                name = table.lookup("_")
                if name.is_free() or (name.is_local() and name.is_referenced()):
                    hidden.append(f"{path.relative_to(ROOT)}: {table.get_name()}")
    assert hidden == []


def test_one_catalogue_per_language() -> None:
    assert set(THERE) == set(LANGUAGES) - {"en"}


def test_catalogues_have_exactly_the_messages_in_the_source() -> None:
    """`make catalogues` gathers what is new; then somebody has to translate it."""
    wanted = {key(message) for message in template() if message.id}
    for language in THERE:  # in one test, for the source is gathered once in a process
        there = {key(message) for message in catalogue_of(language) if message.id}
        assert (language, wanted - there, there - wanted) == (language, set(), set())


@pytest.mark.parametrize("language", THERE)
def test_catalogue_is_complete_with_the_same_placeholders(language: str) -> None:
    bad = []
    for message in catalogue_of(language):
        strings = message.string if isinstance(message.string, tuple) else (message.string,)
        if message.id and (not all(strings) or message.fuzzy):
            bad.append(message.id)
    assert bad == []
    assert places_that_differ(language) == []


def places_that_differ(language: str) -> list[tuple[object, object]]:
    """A sentence with {count} may leave that out in a form for one number only; nothing else may differ."""
    bad: list[tuple[object, object]] = []
    for message in catalogue_of(language):
        ids = message.id if isinstance(message.id, tuple) else (message.id,)
        strings = message.string if isinstance(message.string, tuple) else (message.string,)
        wanted = fields(ids[-1])
        for number, text in enumerate(strings):
            free = {"count"} if len(strings) > 1 and number == 0 else set()
            if message.id and text and not wanted - free <= fields(text) <= wanted:
                bad.append((message.id, text))
            wide = ids[0].endswith(" ") and bool(text) and text.endswith(("：", "、"))  # these bring their space
            ends = (bool(text) and text.endswith(" ")) or wide
            if text and (text.startswith(" "), ends) != (ids[0].startswith(" "), ids[0].endswith(" ")):
                bad.append((message.id, text))
            if message.id and text and ids[0].count("…") != text.count("…") and re.search("… |…-", ids[0]):
                bad.append((message.id, text))
    return bad


def fields(text: str) -> set[str]:
    try:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name and name.isidentifier()}
    except ValueError:  # a brace that is meant as one
        return set()
