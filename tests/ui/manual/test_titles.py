"""The manual explains every error title that can appear on screen."""

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import kvchat
from kvchat.ui.manual.manual_window import MANUAL_TEXT

ROOT = Path(kvchat.__file__).parent
# Other callables that take a title, and the position of that argument.
OTHERS = {"EngineFailure": 1, "_Rule": 2, "_failure": 0, "__init__": 0}
OTHERS |= {"unreachable": 0, "unexpected_status": 0}


def error_classes(files: Iterable[list[ast.AST]]) -> dict[str, ast.ClassDef]:
    """Return all subclasses of KvchatError, by name."""
    classes = [node for nodes in files for node in nodes if isinstance(node, ast.ClassDef)]
    names = {"KvchatError"}
    for _ in range(5):
        names |= {cls.name for cls in classes for base in cls.bases if getattr(base, "id", "") in names}
    return {cls.name: cls for cls in classes if cls.name in names}


def words(node: ast.expr | None) -> Iterator[str]:
    """Yield the possible texts of an expression, with “…” for variable parts."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield re.sub(r"\{[^}]*\}", "…", node.value)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)  # type: ignore[misc]
    elif isinstance(node, ast.IfExp | ast.BoolOp):
        either = node.values if isinstance(node, ast.BoolOp) else [node.body, node.orelse]
        yield from chain.from_iterable(map(words, either))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("_", "N_"):
        yield from words(node.args[0])


def assigned(nodes: list[ast.AST], call: ast.Call, given: ast.expr | None) -> Iterator[ast.expr | None]:
    """Yield the values assigned to a name in the function that uses it, or else the expression itself."""
    values = []
    if isinstance(given, ast.Name):
        for function in nodes:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and call in ast.walk(function):
                every = [inner for inner in ast.walk(function) if isinstance(inner, ast.Assign)]
                values += [
                    assignment.value for assignment in every if getattr(assignment.targets[0], "id", "") == given.id
                ]
    yield from values or [given]


def titles() -> dict[str, str]:
    """Return every title with its file."""
    paths = (path for path in sorted(ROOT.rglob("*.py")) if path.stem != "bench")
    files = {path: list(ast.walk(ast.parse(path.read_text("utf-8")))) for path in paths}
    errors, found = error_classes(files.values()), {}
    places = OTHERS | dict.fromkeys(errors, 0)
    for name, one in errors.items():
        made = next((part for part in one.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
        if made is not None and [argument.arg for argument in made.args.args[1:2]] != ["title"]:
            places.pop(name)  # it sets its own title
    for file, nodes in files.items():
        inside = {
            id(node) for cls in nodes if isinstance(cls, ast.ClassDef) and cls.name in errors for node in ast.walk(cls)
        }
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name not in places or (name == "__init__" and id(node) not in inside):
                continue
            place = places[name]
            given = next((keyword.value for keyword in node.keywords if keyword.arg == "title"), None)
            for meant in assigned(nodes, node, given or (node.args[place] if len(node.args) > place else None)):
                for text in words(meant):
                    found.setdefault(text, file.name)
    return found


def test_every_title_of_a_fault_has_its_place() -> None:
    found = titles()
    assert len(found) > 150
    listed = {line.removeprefix("- ").replace("’", "'") for line in MANUAL_TEXT.splitlines() if line.startswith("- ")}
    missing = {f"{text}  ({file})" for text, file in found.items() if text.replace("’", "'") not in listed}
    assert not missing, "\n".join(sorted(missing))
