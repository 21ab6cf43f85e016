"""The window uses plain language: technical and internal terms occur only in details for experts."""

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QComboBox,
    QLabel,
    QLineEdit,
    QPlainTextEdit,
    QWidget,
)

import kvchat
from kvchat.text import language
from kvchat.ui.base.theme import Look
from kvchat.ui.manual.manual_window import ManualWindow
from kvchat.ui.transcript.footer import ReceiptView
from tests.text.test_catalogues import template
from tests.ui.every_window import furnish, open_all
from tests.ui.staged_runtime import StagedRuntime
from tests.ui.waiting import until
from tests.ui.windows import on_show

# The engine's terms may occur only in a receipt's details; the others are kvchat's former names for common things.
JARGON = (
    "slot",
    "staging",
    "prefill",
    "TTFT",
    "hot",
    "warm",
    "cold",
    "hollow",
    "settle",
    "fingerprint",
    "turn boundary",
)
PRIVATE = (
    "tok/s",
    "offload",
    "context checkpoint",
    "gateway",
    "mend",
    "fetch",
    "of late",
    "for good",
    "bring back",
)
ALLOWED = ("--slot-save-path", "statistics plots seconds hot warm disk cold")
SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|WHERE|FROM|JOIN|AND|GROUP|SET|ORDER|DROP|ALTER|VALUES)\b")
IN_DETAILS = (  # of a receipt
    "hot: still in the engine",
    "warm: restored from memory",
    "cold: processed from the beginning",
    "Processing (prefill)",
)


def forms(term: str) -> str:
    """Return a pattern for the term and its inflected forms."""
    stem = re.escape(term.removesuffix("e"))
    return rf"\b{stem}{re.escape(term[-1])}?(?:e?s|e?d|ing|e)?\b" if term[-1].isalpha() else re.escape(term)


TERM = re.compile("|".join(map(forms, (*JARGON, *PRIVATE))), re.IGNORECASE)


def terms_in(text: str) -> list[str]:
    for words in ALLOWED:
        text = text.replace(words, "")
    text = re.sub(r"\S*/\S*", "", text)  # paths are named as they are
    return TERM.findall(text)


def literals(path: Path) -> Iterator[str]:
    """Yield a module's strings that users may read: with a space or a capital letter, and no docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and isinstance(node.body[0], ast.Expr)
    }
    typed = (node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "terms")
    documentation |= {
        id(part) for value in typed for part in ast.walk(value)
    }  # search terms, which users may type in any words
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in documentation:
            continue
        if " " in node.value.strip() or node.value[:1].isupper():
            yield node.value


def modules(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((Path(kvchat.__file__).parent / folder).rglob("*.py"))]


def test_no_term_is_written_into_the_window() -> None:
    assert [f"{path.name}: {text}" for path in modules("ui") for text in literals(path) if terms_in(text)] == []


def test_nor_into_what_the_window_is_told() -> None:
    told = [(path, text) for path in modules("chat", "engine_host", "transfer") for text in literals(path)]
    known = [(path, text) for path, text in told if not SQL.search(text) and text not in IN_DETAILS]
    assert [f"{path.name}: {text}" for path, text in known if terms_in(text)] == []


@pytest.fixture
def furnished(runtime: StagedRuntime) -> StagedRuntime:
    furnish(runtime)
    return runtime


class Bracketed(gettext.NullTranslations):
    """A fake language that puts every text from the catalogue in brackets."""

    def gettext(self, message: str) -> str:
        return f"⟦{message}⟧"

    def ngettext(self, one: str, many: str, number: int) -> str:
        return f"⟦{one if number == 1 else many}⟧"

    def pgettext(self, context: str, message: str) -> str:
        return message if len(message) == 1 else f"⟦{message}⟧"


@pytest.mark.slow
async def test_what_is_marked_is_shown_in_the_language_in_force(
    furnished: StagedRuntime, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts in tables are translated when they are shown."""
    marked = {
        str(message.id[0] if isinstance(message.id, tuple) else message.id) for message in template() if message.id
    }
    monkeypatch.setattr(language._Current, "catalogue", Bracketed())
    async with on_show(furnished, look) as window:
        window.chat.open("thesis")
        await until(lambda: window.findChildren(ReceiptView))
        windows = await open_all(furnished, window)
        manual = {
            text for manual_window in window.findChildren(ManualWindow) for text in texts(manual_window)
        }  # its text is English
        told = {text for top in windows for text in texts(top)} - manual
        for top in windows[1:]:
            top.close()
    assert any("⟦" in text for text in told)
    loose = {piece.strip(" .") for text in told for piece in re.split(r"[\n·;:,]", outside_brackets(text))}
    assert sorted(piece for piece in loose if " " in piece and piece in marked) == []


def outside_brackets(text: str) -> str:
    while text != (text := re.sub(r"⟦[^⟦⟧]*⟧", "", text)):
        pass
    return text.replace("&nbsp;", " ")


def texts(top: QWidget) -> list[str]:
    """Return every text of a window: visible, in tooltips, and for screen readers."""
    found: list[str] = []
    for widget in (top, *top.findChildren(QWidget)):
        found += [widget.windowTitle(), widget.toolTip(), widget.accessibleName(), widget.accessibleDescription()]
        found += [action.text() for action in widget.actions()] + [action.toolTip() for action in widget.actions()]
        match widget:
            case QLabel() | QAbstractButton():
                found.append(widget.text())
            case QLineEdit() | QPlainTextEdit():
                found.append(widget.placeholderText())
            case QComboBox():
                found += [widget.itemText(place) for place in range(widget.count())]
            case QAbstractItemView() if widget.model() is not None:
                found += _rows(widget)
    return [text for text in found if text]


def _rows(view: QAbstractItemView) -> list[str]:
    roles = (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole, Qt.ItemDataRole.AccessibleTextRole)
    model = view.model()
    places = [model.index(row, 0) for row in range(model.rowCount())]
    return [str(model.data(place, role) or "") for place in places for role in roles]
