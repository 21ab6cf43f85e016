"""LaTeX in replies: recognition of formulas and of money, and rendering."""

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from kvchat.ui.base.theme import Look
from kvchat.ui.rendering.formulas import formula_renderer, render_outline
from kvchat.ui.rendering.markdown import Prose
from kvchat.ui.rendering.markdown_stream import MarkdownStream
from kvchat.ui.rendering.text_page import PageStyle, TextPage
from tests.ui.reading import MARKDOWN, blocks
from tests.ui.waiting import LONG_MS


def formulas(text: str) -> list[str]:
    return [formula.tex for block in blocks(text) for formula in getattr(block, "formulas", ())]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("$x^2$", ["x^2"]),
        (r"\(x\) and \[y\]", ["x", "y"]),
        ("$$x$$", ["x"]),
        ("$$\nx\n= y\n$$", ["x\n= y"]),
        ("\\[\nx\n\\]", ["x"]),
        ("\\begin{align}\na &= b\n\\end{align}", ["\\begin{align}\na &= b\n\\end{align}"]),
        ("- $x$\n- \\(y\\)\n\n> $$\n> x\n> $$", ["x", "y", "x"]),
        ("It costs $5, and $x$ is left", ["x"]),
        ("between $5 and 10$ or so", []),
        ("$5-$6", []),
        ("$ x $", []),
        ("\\$x$ and $y\\$", []),
        ("```\n$x$\n```", []),
        ("$$\nnever closed\n\nmore", []),
        ("\\[never closed", []),
    ],
)
def test_what_is_a_formula(text: str, found: list[str]) -> None:
    assert formulas(text) == found


def test_an_open_formula_shows_as_source_and_swallows_nothing() -> None:
    stream = MarkdownStream(MARKDOWN)
    stream.feed("Before\n\n$$\nx +\n+ y")
    stream.step()
    source = stream.open_blocks[-1]
    assert "<code>$$x +<br>+ y</code>" in getattr(source, "html", "")
    stream.feed("\n\nA new paragraph.\n\n.\n")
    stream.step()
    assert "<p>A new paragraph.</p>" in [getattr(block, "html", "") for block in stream.settled_blocks]


@pytest.mark.parametrize(
    "tex",
    [r"\ce{H2O}", r"\frac{1", r"\text{价格}", "{" * 500 + "x" + "}" * 500, "x" * 5_000, r"\mathop{x}"],
    ids=lambda tex: tex[:12],
)
def test_what_cannot_be_drawn_in_full_is_not_drawn(tex: str) -> None:
    assert render_outline(tex, False) is None


def test_a_page_shows_the_source_until_the_formula_is_set(look: Look, qtbot: QtBot) -> None:
    page = TextPage(PageStyle(look), "Reply")
    qtbot.addWidget(page)
    with qtbot.waitSignal(formula_renderer().ready, timeout=LONG_MS):
        page.show_blocks([block for block in blocks("a $x_7^2$ b") if not hasattr(block, "language")])  # type: ignore[misc]
        assert "$x_7^2$" in page.toPlainText()
    assert page.show_formulas()
    assert "$" not in page.toPlainText()
    assert page.formulas.source("math:0") == "$x_7^2$"
    assert not page.show_formulas()


def drawn(page: TextPage) -> QImage:
    """Return a picture of the page once its formulas are rendered."""
    while page.formulas.pending:
        QTest.qWait(5)
        page.show_formulas()
    page.resize(600, page.heightForWidth(600))
    picture = QImage(page.size(), QImage.Format.Format_ARGB32)
    picture.fill(Qt.GlobalColor.white)
    page.render(picture)
    return picture


@pytest.mark.parametrize("behind", ["", " and $\\int_0^1 f$"])
@pytest.mark.parametrize(("tex", "below"), [("E", 0), ("x^2", 0), ("g_i", 3)])
def test_a_formula_stands_on_the_line_of_its_text(tex: str, below: int, behind: str, look: Look, qtbot: QtBot) -> None:
    page = TextPage(PageStyle(look), "Reply")
    qtbot.addWidget(page)
    page.show_blocks([block for block in blocks(f"Words ${tex}${behind}") if isinstance(block, Prose)])
    picture = drawn(page)
    line = page.document().firstBlock().layout().lineAt(0)
    stands = page.document().documentLayout().blockBoundingRect(page.document().firstBlock()).y() + line.y()
    stands += line.ascent()
    cursor = page.textCursor()
    cursor.setPosition(len("Words ") + 1)  # behind the strut
    left = page.cursorRect(cursor).x()
    columns = range(left, left + 12)
    inked = [y for y in range(picture.height()) if any(picture.pixelColor(x, y).lightness() < 140 for x in columns)]
    assert max(inked) + 1 == pytest.approx(stands + below, abs=1.6)
