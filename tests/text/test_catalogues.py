"""The catalogues have exactly the texts in the source, each translated."""

import ast
import io
import re
import string
import symtable
from collections.abc import Iterator
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


def translations(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
            if name in KEYWORDS and node.args:
                yield node


def test_translated_texts_are_whole_literals() -> None:
    """Parts of an f-string or of a concatenation are not extracted, nor is a call inside an f-string."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        broken = [c for c in translations(tree) if any(isinstance(a, ast.JoinedStr | ast.BinOp) for a in c.args[-2:])]
        for text in (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)):
            broken += [call for call in translations(text) if isinstance(call.args[0], ast.Constant)]
        assert [(path.name, call.lineno, ast.unparse(call)) for call in broken] == []


@cache
def template() -> Catalog:
    catalogue = Catalog()
    found = extract_from_dir(ROOT, keywords=KEYWORDS, comment_tags=("Translators:",), strip_comment_tags=True)
    for name, line, message, comments, context in found:
        catalogue.add(message, None, [(name, line)], auto_comments=comments, context=context)
    return catalogue


@cache
def catalogue_of(language: str) -> Catalog:
    return read_po(io.BytesIO((CATALOGUES / language / "LC_MESSAGES" / "kvchat.po").read_bytes()), locale=language)


TRANSLATED = sorted(path.name for path in CATALOGUES.iterdir() if path.is_dir())


def key(message: object) -> tuple[object, object]:
    first = message.id if isinstance(message.id, str) else message.id[0]  # type: ignore[attr-defined]
    return first, message.context  # type: ignore[attr-defined]


def test_underscore_is_never_a_local_variable_that_is_called() -> None:
    """`_ = …` in a function makes every `_("…")` in it call that value, which mypy does not notice."""
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
    assert set(TRANSLATED) == set(LANGUAGES) - {"en"}


def test_catalogues_have_exactly_the_messages_in_the_source() -> None:
    """`make catalogues` adds new messages, which then need translation."""
    expected = {key(message) for message in template() if message.id}
    for language in TRANSLATED:  # in one test: extraction runs once per process
        messages = {key(message) for message in catalogue_of(language) if message.id}
        assert (language, expected - messages, messages - expected) == (language, set(), set())


@pytest.mark.parametrize("language", TRANSLATED)
def test_catalogue_is_complete_with_the_same_placeholders(language: str) -> None:
    """The singular may omit {count}; nothing else may differ."""
    bad: list[tuple[object, object]] = []
    for message in (message for message in catalogue_of(language) if message.id):
        ids = message.id if isinstance(message.id, tuple) else (message.id,)
        texts = message.string if isinstance(message.string, tuple) else (message.string,)
        expected, first = fields(ids[-1]), ids[0]
        for number, text in enumerate(texts):
            optional = {"count"} if len(texts) > 1 and number == 0 else set()
            has_end = text.endswith((" ", "：", "、") if first.endswith(" ") else " ")  # wide marks bring their space
            is_right = (
                text
                and not message.fuzzy
                and expected - optional <= fields(text) <= expected
                and (text.startswith(" "), has_end) == (first.startswith(" "), first.endswith(" "))
                and (first.count("…") == text.count("…") or not re.search("… |…-", first))
            )
            if not is_right:
                bad.append((message.id, text))
    assert bad == []


def fields(text: str) -> set[str]:
    try:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name and name.isidentifier()}
    except ValueError:  # a brace that is meant as one
        return set()
