"""Code blocks: the copy button, the theme's colours, and growth without relayout."""

import time

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from kvchat.ui.base.theme import DARK, Look
from kvchat.ui.rendering.code_view import CodeView, LineHighlighter
from kvchat.ui.rendering.markdown import Code
from kvchat.ui.rendering.text_page import PageStyle
from tests.ui.waiting import LONG_MS

SOURCE = '\n\ndef f():  # why\n    """Two\n    lines."""\n    return \'x\' + 1\n\n'


@pytest.fixture
def view(look: Look, qtbot: QtBot) -> CodeView:
    view = CodeView(PageStyle(look), "python", "python")
    qtbot.addWidget(view)
    view.resize(400, 300)
    view.show()
    return view


def show(view: CodeView, text: str) -> None:
    view.show_blocks([Code("python", text, text)])


def colours_on(view: CodeView) -> list[list[tuple[int, int, str]]]:
    block, lines = view.body.document().begin(), []
    while block.isValid():
        spans = [(f.start, f.length, f.format.foreground().color().name()) for f in block.layout().formats()]
        lines.append(spans)
        block = block.next()
    return lines


def test_copy_puts_the_code_on_the_clipboard(view: CodeView, qtbot: QtBot) -> None:
    source = "🍅 = '🍅\u202e'  # 🍅" + "x" * 1_000_000
    show(view, source)
    qtbot.mouseClick(view.copy_button, Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == source
    assert "⟦RLO⟧" in view.body.toPlainText()
    assert len(view.body.toPlainText()) < 3_000
    assert "998,013 more characters" in view.body.toPlainText()
    assert view.copy_button.text() == "Copied"
    qtbot.waitUntil(lambda: view.copy_button.text() == "Copy", timeout=LONG_MS)


def test_colours_are_the_themes() -> None:
    lines, spans = SOURCE.split("\n"), highlighted("python", SOURCE).spans
    assert len(spans) == len(lines)
    found = {(lines[i][at : at + n], colour) for i, line in enumerate(spans) for at, n, colour in line}
    assert {("def", DARK.code_keyword), ("# why", DARK.code_comment), ("f", DARK.code_name)} <= found
    assert {('"""Two', DARK.code_string), ('    lines."""', DARK.code_string), ("1", DARK.code_number)} <= found


def highlighted(language: str, *texts: str) -> LineHighlighter:
    colours = LineHighlighter(language, DARK)
    for text in texts:
        colours.set_text(text)
        while colours.advance(1.0):
            pass
    return colours


@pytest.mark.parametrize("step", [1, 40])
def test_colours_of_code_that_grew_are_those_of_the_whole(step: int) -> None:
    source = SOURCE * 60
    long, each = highlighted("python", SOURCE * 1_000).spans, SOURCE.count("\n")
    assert all(long[i] == long[i % each] for i in range(len(long) - 1)), "in pieces, too"
    assert highlighted("python", *(source[:end] for end in range(0, len(source) + step, step))).spans == (
        highlighted("python", source).spans
    )


@pytest.mark.slow
@pytest.mark.parametrize("text", ["a " * 200_000, "a a a a a a a a\n" * 25_000], ids=["one line", "lines"])
def test_code_that_takes_long_to_read_stays_plain(text: str) -> None:
    """Pygments' Java lexer would take hours for this."""
    started = time.process_time()
    assert len(highlighted("java", text).spans) < text.count("\n") + 2
    assert time.process_time() - started < 20


def test_code_grows_without_being_made_again(view: CodeView, qtbot: QtBot) -> None:
    source = "".join(f"x_{i} = '🍅'  # 🍅\n" for i in range(100))
    show(view, source[:1000])
    replaced: list[int] = []
    view.body.document().contentsChange.connect(lambda at, gone, come: replaced.append(gone) if at == 0 else None)
    for end in range(1000, len(source), 50):
        show(view, source[:end])
    show(view, source)
    assert view.body.toPlainText() == source
    assert not [gone for gone in replaced if gone > 1000]
    qtbot.waitUntil(lambda: all(colours_on(view)[:100]), timeout=LONG_MS)
    start, length, _colour = colours_on(view)[0][-1]
    assert source.encode("utf-16-le")[2 * start : 2 * (start + length)].decode("utf-16-le") == "# 🍅", "none is cut"
    show(view, "y = 2")
    show(view, "y = 2 + 1")
    assert colours_on(view)[0]
