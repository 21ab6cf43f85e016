"""Code blocks: the copy button copies, the colours are the theme's."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from kvchat.ui.code_view import CodeView
from kvchat.ui.highlight import coloured
from kvchat.ui.theme import Look
from kvchat.ui.tokens import DARK


def test_copy_puts_the_code_on_the_clipboard(look: Look, qtbot: QtBot) -> None:
    view = CodeView(look, "python", "def f():\n    return '🍅'")
    qtbot.addWidget(view)
    view.show()
    qtbot.mouseClick(view.copy_button, Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == "def f():\n    return '🍅'"
    assert view.copy_button.text() == "Copied"
    qtbot.waitUntil(lambda: view.copy_button.text() == "Copy")


def test_colours_are_the_themes_and_nothing_is_lost() -> None:
    source = "\n\ndef f():  # why\n    return 'x' + 1\n\n"
    pieces = list(coloured(source, "python", DARK))
    assert "".join(text for text, _ in pieces) == source
    assert ("def", DARK.code_keyword) in pieces
    assert ("# why", DARK.code_comment) in pieces
    assert ("f", DARK.code_name) in pieces


def test_an_unknown_language_is_plain() -> None:
    assert list(coloured("x <- 1", "no-such-language", DARK)) == [("x <- 1", DARK.text)]
