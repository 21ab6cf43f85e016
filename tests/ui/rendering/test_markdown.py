"""Markdown from a model is untrusted: it may format text, but load and run nothing."""

import time

import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QTextDocument
from pytestqt.qtbot import QtBot

from kvchat.text.markdown import is_web_link
from kvchat.text.safe_text import safe_code, safe_prose
from kvchat.ui.base.theme import Look
from kvchat.ui.rendering.markdown import Code, Prose, WideBlock
from kvchat.ui.rendering.text_page import PageStyle, TextPage
from tests.ui.reading import blocks, prose

RLO, ZWSP, ESC = "\u202e", "\u200b", "\x1b"


def test_cuts_at_top_level_code() -> None:
    first, code, last = blocks("a\n\n```Py title=x\nx = 1\n```\n\nb")
    assert (first, last) == (Prose("<p>a</p>", "a\n"), Prose("<p>b</p>", "b\n"))
    assert isinstance(code, Code)
    assert (code.language, code.text) == ("py", "x = 1")
    assert isinstance(blocks("```\nx")[-1], Code), "an open fence is code already"
    assert blocks("") == []


def test_code_in_an_item_is_code_and_the_text_behind_it_has_no_second_bullet() -> None:
    before, code, after = blocks("- a\n\n  ```py\n  x < 1\n  ```\n\n  b")
    assert isinstance(code, Code)
    assert (code.language, code.text, code.indent) == ("py", "x < 1", 1)
    assert isinstance(before, Prose)
    assert before.list_tag == "<ul>"
    assert isinstance(after, Prose)
    assert "none" in after.list_tag
    tags = [block.list_tag for block in blocks("4. a\n4. b") if isinstance(block, Prose)]
    assert tags == ['<ol start="4">', '<ol start="5">']


def test_tables_quotes_tasks_and_notes() -> None:
    table = blocks("|a|b|\n|-|-:|\n|1|2|")[0]
    assert isinstance(table, WideBlock)
    assert table.columns == 2
    assert "text-align:right" in table.html
    assert "border-left" in prose("> a")
    assert "<s>a</s>" in prose("~~a~~")
    assert "☐ a" in prose("- [ ] a")
    assert "☑ a" in prose("- [x] a")
    assert "<sup" in prose("a[^1]\n\n[^1]: b").split("</p>")[0]


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "a <img src='http://evil.example/x.png'> b",
        "<iframe src=x></iframe>",
        "<a href='file:///etc/passwd'>x</a>",
        "|<img src=x>|\n|-|",
        "$<img src=x>$",
        "$$\n<img src=x>\n",
        "<!--math:0-->",
        "[^<img src=x>]: a",
    ],
)
def test_raw_html_stays_text(text: str) -> None:
    html = prose(text)
    for tag in ("<script", "<img", "<iframe", "<style", "<a "):
        assert tag not in html


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "javascript:alert(1)", "/etc/passwd", "data:image/png;base64,AAAA", "vbscript:x"),
        *("smb://host/share", "x.png", "math:0"),
    ],
)
def test_only_web_links_are_links_and_images_are_their_description(url: str) -> None:
    assert "href" not in prose(f"[click]({url})")
    assert not is_web_link(url)
    for image in (url, "http://evil.example/x.png"):
        html = prose(f"![a picture]({image})")
        assert "<img" not in html
        assert "a picture" in html
    assert '<a href="https://example.org/a?b=1&amp;c=2">x</a>' in prose("[x](https://example.org/a?b=1&c=2)")
    assert prose("[**a**](file:///x) [b](https://b.example)").count("</a>") == 1


def test_hidden_characters_do_nothing_in_prose_and_are_seen_in_code() -> None:
    text = f"a{RLO}b{ZWSP}c {ESC}[31mred"
    assert prose(text) == "<p>abc ␛[31mred</p>"
    assert "<code>a⟦RLO⟧b⟦ZWSP⟧c ␛[31mred</code>" in prose(f"`{text}`")
    assert safe_code(text) == "a⟦RLO⟧b⟦ZWSP⟧c ␛[31mred"
    assert safe_prose("می‌خواهم 👩‍👧 שלום\u200f!") == "می‌خواهم 👩‍👧 שלום\u200f!"


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        ">" * 10_000 + " x",
        "\n".join("  " * i + "- x" for i in range(300)),
        "x" * 1_000_000,
        "word " * 200_000,
        "[x" * 10_000,
        "*a " * 10_000,
        "$x" * 20_000,
        "\\(" * 20_000,
        "$" * 20_000,
        "|a" * 5_000 + "|\n" + "|-" * 5_000 + "|",
    ],
    ids=lambda text: text[:8],
)
def test_monstrous_text_is_read_in_pieces(text: str) -> None:
    started = time.process_time()
    assert sum(text.count("x") for text in (getattr(block, "html", "") for block in blocks(text))) >= min(
        text.count("x"), 1
    )
    assert time.process_time() - started < 20  # a second here; the point is that it ends


def test_a_page_loads_nothing(look: Look, qtbot: QtBot) -> None:
    page = TextPage(PageStyle(look), "Reply")
    qtbot.addWidget(page)
    for url in ("http://evil.example/x.png", "file:///etc/passwd", "/etc/passwd"):
        assert not page.document().resource(QTextDocument.ResourceType.ImageResource.value, QUrl(url))
    page.anchorClicked.emit(QUrl("file:///etc/passwd"))
    assert page.source() == QUrl()
