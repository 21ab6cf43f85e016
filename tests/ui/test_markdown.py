"""Markdown from a model is not to be trusted: it may look well, and do nothing."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices, QTextDocument
from pytestqt.qtbot import QtBot

from kvchat.ui.markdown import Code, MarkdownReader, Prose, is_web_link
from kvchat.ui.text_page import TextPage, page_font
from kvchat.ui.tokens import LIGHT

READER = MarkdownReader(LIGHT, "monospace")


def prose(text: str) -> str:
    (segment,) = READER.segments(text)
    assert isinstance(segment, Prose)
    return segment.html


def test_cuts_at_top_level_code() -> None:
    assert READER.segments("a\n\n```Py title=x\nx = 1\n```\n\nb") == (
        Prose("<p>a</p>\n"),
        Code("py", "x = 1"),
        Prose("<p>b</p>\n"),
    )


def test_an_open_fence_is_code_already() -> None:
    assert READER.segments("```\nx")[-1] == Code("", "x")


def test_code_inside_a_list_stays_in_the_text() -> None:
    assert "<pre>x &lt; 1</pre>" in prose("- a\n\n  ```\n  x < 1\n  ```")


def test_tables_lists_and_quotes() -> None:
    assert "text-align:right" in prose("|a|b|\n|-|-:|\n|1|2|")
    assert "<ol>" in prose("1. a\n2. b")
    assert "border-left" in prose("> a")
    assert "<s>a</s>" in prose("~~a~~")


def test_empty_text_has_no_segments() -> None:
    assert READER.segments("") == ()


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "a <img src='http://evil.example/x.png'> b",
        "<iframe src=x></iframe>",
        "<style>body{}</style>",
        "<a href='file:///etc/passwd'>x</a>",
    ],
)
def test_raw_html_stays_text(text: str) -> None:
    html = prose(text)
    for tag in ("<script", "<img", "<iframe", "<style", "<a "):
        assert tag not in html


@pytest.mark.parametrize(
    "url", ["http://evil.example/x.png", "file:///etc/passwd", "data:image/png;base64,AAAA", "x.png"]
)
def test_images_become_their_description(url: str) -> None:
    html = prose(f"![a picture]({url})")
    assert "<img" not in html
    assert "a picture" in html


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "javascript:alert(1)", "/etc/passwd", "data:text/html,x", "vbscript:x", "smb://host/share"],
)
def test_other_links_than_web_links_are_text(url: str) -> None:
    assert "href" not in prose(f"[click]({url})")
    assert not is_web_link(url)


def test_web_links_are_links() -> None:
    assert '<a href="https://example.org/a?b=1&amp;c=2">x</a>' in prose("[x](https://example.org/a?b=1&c=2)")
    assert is_web_link("mailto:a@example.org")


def test_nested_links_and_styles_close_properly() -> None:
    assert prose("[**a**](file:///x) [b](https://b.example)").count("</a>") == 1


def test_a_page_loads_nothing(qtbot: QtBot) -> None:
    page = TextPage(page_font("sans", 10), "Reply")
    qtbot.addWidget(page)
    for url in ("http://evil.example/x.png", "file:///etc/passwd", "/etc/passwd"):
        assert not page.document().resource(QTextDocument.ResourceType.ImageResource.value, QUrl(url))


def test_a_click_opens_web_links_only(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toString()))
    page = TextPage(page_font("sans", 10), "Reply")
    qtbot.addWidget(page)
    for url in ("file:///etc/passwd", "javascript:alert(1)", "https://example.org/"):
        page.anchorClicked.emit(QUrl(url))
    assert opened == ["https://example.org/"]
    assert page.source() == QUrl()
