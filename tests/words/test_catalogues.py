"""What a person reads is in the catalogue, and every catalogue has all of it."""

from __future__ import annotations

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
from kvchat.words.language import CATALOGUES, LANGUAGES

ROOT = Path(kvchat.__file__).parent
KEYWORDS = {**DEFAULT_KEYWORDS, "N_": None, "several": (2, 3), "pgettext": ((1, "c"), 2)}
MARKS = {"_", "N_", "several", "ngettext", "pgettext"}
# What is told to developers, to other programs, to the model, or looks like words and is none.
NOBODYS = re.compile(
    r"""cli/(bench|doctor)|diagnostics|cli/no_display.*hello|words/(folding|language|markdown|safe_text|wording)
    |engine/(embedded|parent_guard|process/log|api/(errors|wire))|library/gguf/(header|kv_cache)
    |gateway/(answering|checks|crashes|dialects/|gateway|diagnosis/|models|server|work)
    |kvstore/(blocks|files|index|layout|memory_files|process_locks|staging)
    |ui/base/(icons|style_sheet|theme)|ui/rendering/(formulas|markdown)
    |ui/(desktop/|programs/clients)|system/session_bus""",
    re.VERBOSE,
)
NO_WORDS = re.compile(
    r"""^Conversation$|^(Enter|Esc|Up|Accept|Authorization|Connection|Host|Range|Bearer.*|None|Source|Reason)$
    |^(Apple|Intel|Metal|Vulkan|Microsoft|Links|Jan|Ollama|LM\ Studio|Hugging\ Face|(Hugging\ Face|llama\.cpp)\ cache)$
    |^(Library|Caches|Local|Roaming|Application\ Support)$|^xllamacpp|^bytes\ |^kvchat\ \{|^-+[a-z]+\ |^den:
    |^ready\ |^GGUF|^(chats|engines|models|prepared|settings|store)\ [a-z]+$
    |^(Hugging\ Face\ access\ token|llama-server\ key|API\ keys|kvchat\ (ask|serve)|kvchat\ starts\ )$
    |^(Exec=|dark,\ |light,\ |Label$|Notify$|table\ )|^\[Desktop\ Entry\]
    |^\s*(ALTER|ATTACH|BEGIN|CREATE|DELETE|DROP|INSERT|PRAGMA|REPLACE|UPDATE|VACUUM|AND|NOT|COMMIT)\ |SELECT
    |FROM|WHERE|ORDER\ BY|\bDESC\b|ifnull|conversation_id
    |[<>]|^export\ |text/html|default-src|color-scheme|^\{"|^root\ ::=|^Expecting|^\^llamacpp|^:\ kvchat|typeof
    |^(Get|Metered)$|^4:\ trace$|^\{asked\.version\}|^read\ by\ \{READER\}$
    |^Screenshot$|^background:|^The\ answer\ is\ too|^all\ programs$
    |cuda|GGML|gguf_init|HTTP\ server|^/health
    |^(invalid|unknown)\ |V\ cache|\{asked|^attached\ |^\{self\.fingerprint|\{identity\}|^JSON\ schema\ error
    |^(Please\ summarise|Answer\ with|Write\ a\ title|Say\ hello|Item\ |Context\ size\ has|Recovered\ chat)
    |^(Extra\ data|Unterminated|Preset$|prepare\ comes|full\ window|for\ ~/)|\ broke(\ over.*)?$
    |^(engine|external|inspecting|starting|memory)\ (engine|supervisor|ending|process|stream|the\ engine|limits)
    |^API\ server$
    |^(it\ holds\ something\ else|its\ file\ was\ changed\ before)""",
    re.VERBOSE,
)


def nodes(tree: ast.AST) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
    """Each node of a module with those around it."""
    todo: list[tuple[ast.AST, list[ast.AST]]] = [(tree, [])]
    while todo:
        node, around = todo.pop()
        yield node, around
        inside = [*around, node]
        todo += [(child, inside) for child in ast.iter_child_nodes(node)]


def said(node: ast.AST) -> str:
    """The text of a literal, with {expression} for what differs."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = node.values
        return "".join(p.value if isinstance(p, ast.Constant) else f"{{{ast.unparse(p.value)}}}" for p in parts)
    return ""


def called(node: ast.AST) -> str:
    return (getattr(node.func, "attr", "") or getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""


def looks_like_words(text: str) -> bool:
    if not re.search(r"[A-Za-z]{2}", text):
        return False
    plain = text
    while plain != (plain := re.sub(r"\{[^{}]*\}", "", plain)):
        pass
    if not re.search(r"[A-Za-z]{2}|“", plain):
        return False
    return bool(
        re.search(r"[A-Za-z’,.:…)] [A-Za-z(]|^ ?[a-z]{3,} | [a-z]{3,}$", plain)
        or re.match(r"^[A-Z][a-z]+[…:.]?$", plain)
        or re.search("“.*”", plain)  # each language has marks of its own
    )


def outside(name: str, within: list[tuple[ast.AST, list[ast.AST]]]) -> Iterator[str]:
    """What looks like words for people and is not marked."""
    for node, around in within:
        parent = around[-1] if around else None
        if not looks_like_words(said(node)) or isinstance(parent, ast.Expr | ast.JoinedStr):
            continue
        if any(called(outer) in MARKS or isinstance(outer, ast.Assert | ast.FormattedValue) for outer in around):
            continue
        functions = [outer for outer in around if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)]
        annotated = [outer for outer in around if isinstance(outer, ast.AnnAssign | ast.arg)]
        in_annotation = any(outer.annotation in (*around, node) for outer in annotated if outer.annotation)
        if in_annotation or (functions and functions[-1].returns in (*around, node)):
            continue
        quiet = ("compile", "sub", "search", "match", "getLogger", "warning", "info", "debug", "exception", "TypeVar")
        if called(parent) in (*quiet, "create_task", "ValueError", "TypeError", "RuntimeError") if parent else False:
            continue
        if not NO_WORDS.search(said(node)):
            yield f"{name}:{getattr(node, 'lineno', 0)}: {said(node)}"


def in_parts(name: str, within: list[tuple[ast.AST, list[ast.AST]]]) -> Iterator[str]:
    """What is marked and no whole literal: of an f-string or a sum, or within one, nothing reaches the catalogue."""
    for node, around in within:
        if (
            called(node) in MARKS
            and isinstance(node, ast.Call)
            and any(isinstance(outer, ast.JoinedStr) for outer in around)
        ) and any(isinstance(argument, ast.Constant) and said(argument) for argument in node.args):
            yield f"{name}:{node.lineno}: {ast.unparse(node)}"
        marked = called(node) in ("_", "N_") and not isinstance(around[-1], ast.FunctionDef)
        if marked and isinstance(node, ast.Call) and isinstance(node.args[0], ast.JoinedStr | ast.BinOp):
            yield f"{name}:{node.lineno}: {ast.unparse(node.args[0])}"


def test_what_people_read_is_in_the_catalogue_in_whole_literals() -> None:
    found: list[str] = []
    for path in sorted(ROOT.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        within = list(nodes(ast.parse(path.read_text("utf-8"))))
        found += in_parts(name, within)
        if not NOBODYS.search(name):
            found += outside(name, within)
    assert found == [], "\n".join(found)


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


def test_nothing_that_is_thrown_away_is_called_as_what_translates() -> None:
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


def test_there_is_a_catalogue_for_each_language_and_no_other() -> None:
    assert set(THERE) == set(LANGUAGES) - {"en"}


def test_a_catalogue_has_all_that_is_said_and_nothing_else() -> None:
    """`make catalogues` gathers what is new; then somebody has to translate it."""
    wanted = {key(message) for message in template() if message.id}
    for language in THERE:  # in one test, for the source is gathered once in a process
        there = {key(message) for message in catalogue_of(language) if message.id}
        assert (language, wanted - there, there - wanted) == (language, set(), set())


@pytest.mark.parametrize("language", THERE)
def test_a_catalogue_translates_everything_with_the_same_places(language: str) -> None:
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
