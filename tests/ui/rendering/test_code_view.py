"""Code blocks: the copy button, the theme's colours, and growth without relayout."""

import threading

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from kvchat.ui.base.theme import DARK, Look
from kvchat.ui.rendering.code_view import CodeView, LineHighlighter, Span
from kvchat.ui.rendering.formulas import Formulas
from kvchat.ui.rendering.text_page import PageStyle
from tests.ui.waiting import LONG_MS

SOURCE = '\n\ndef f():  # why\n    """Two\n    lines."""\n    return \'x\' + 1\n\n'


@pytest.fixture
def view(look: Look, qtbot: QtBot) -> CodeView:
    view = CodeView(PageStyle(look, Formulas()), "python")
    qtbot.addWidget(view)
    view.resize(400, 300)
    view.show()
    return view


def coloured(colours: LineHighlighter, text: str) -> set[tuple[str, str]]:
    lines = text.split("\n")
    return {(lines[i][at : at + n], colour) for i, spans in enumerate(colours.spans) for at, n, colour in spans}


def colours_on(view: CodeView) -> list[list[tuple[int, int, str]]]:
    block, lines = view.body.document().begin(), []
    while block.isValid():
        spans = [(f.start, f.length, f.format.foreground().color().name()) for f in block.layout().formats()]
        lines.append(spans)
        block = block.next()
    return lines


def test_copy_puts_the_code_on_the_clipboard(view: CodeView, qtbot: QtBot) -> None:
    source = "🍅 = '🍅\u202e'  # 🍅" + "x" * 1_000_000
    view.show_code(source, is_final=True)
    qtbot.mouseClick(view.copy_button, Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == source
    assert "⟦RLO⟧" in view.body.toPlainText()
    assert len(view.body.toPlainText()) < 3_000
    assert "998,013 more characters" in view.body.toPlainText()
    assert view.copy_button.text() == "Copied"
    qtbot.waitUntil(lambda: view.copy_button.text() == "Copy", timeout=LONG_MS)


def test_colours_are_the_themes() -> None:
    colours = LineHighlighter("python", DARK)
    colours.spans = colours.highlight(SOURCE)
    assert len(colours.spans) == len(SOURCE.split("\n"))
    found = coloured(colours, SOURCE)
    assert {("def", DARK.code_keyword), ("# why", DARK.code_comment), ("f", DARK.code_name)} <= found
    assert {('"""Two', DARK.code_string), ('    lines."""', DARK.code_string), ("1", DARK.code_number)} <= found


@pytest.mark.parametrize("step", [1, 40])
def test_colours_of_code_that_grew_are_those_of_the_whole(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent of the machine's speed."""
    monkeypatch.setattr("kvchat.ui.rendering.code_view._EXTEND_MS", 60_000.0)
    source = SOURCE * 60
    long, each = LineHighlighter("python", DARK).highlight(SOURCE * 1_000), SOURCE.count("\n")
    assert all(long[i] == long[i % each] for i in range(len(long) - 1)), "in stretches, too"
    growing, whole = LineHighlighter("python", DARK), LineHighlighter("python", DARK)
    for end in range(0, len(source) + step, step):
        assert len(growing.extend(source[:end])) < 200, "only the end is coloured again"
    assert growing.spans == whole.highlight(source)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["a " * 200_000, "a a a a a a a a\n" * 25_000], ids=["one line", "lines"])
def test_code_that_takes_long_to_read_stays_plain(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pygments' Java lexer would take hours for this."""
    monkeypatch.setattr("kvchat.ui.rendering.code_view._HIGHLIGHT_S", 0.5)
    colours = LineHighlighter("java", DARK)
    assert colours.extend(text[:4_000])
    assert not colours.extend(text[:5_000]), "it was slow already"
    assert len(colours.highlight(text)) < text.count("\n") + 2


def test_code_grows_without_being_made_again_and_is_coloured_beside_the_window(
    view: CodeView, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_by = []
    whole = LineHighlighter.highlight

    def watched(self: LineHighlighter, text: str) -> list[list[Span]]:
        found_by.append(threading.current_thread())
        return whole(self, text)

    monkeypatch.setattr(LineHighlighter, "highlight", watched)
    source = "".join(f"x_{i} = '🍅'  # 🍅\n" for i in range(100))
    view.show_code(source[:1000], is_final=False)
    replaced: list[int] = []
    view.body.document().contentsChange.connect(lambda at, gone, come: replaced.append(gone) if at == 0 else None)
    for end in range(1000, len(source), 50):
        view.show_code(source[:end], is_final=False)
    view.show_code(source, is_final=True)
    assert view.body.toPlainText() == source
    assert not replaced
    qtbot.waitUntil(lambda: all(colours_on(view)[:100]), timeout=LONG_MS)
    assert found_by
    assert threading.main_thread() not in found_by
    start, length, _colour = colours_on(view)[0][-1]
    assert source.encode("utf-16-le")[2 * start : 2 * (start + length)].decode("utf-16-le") == "# 🍅", "none is cut"
