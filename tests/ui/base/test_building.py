"""Rows, columns, labels and buttons as every window builds them."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication

from kvchat.ui.base.building import button, label


def test_a_button_says_its_words_or_its_name(qapp: QApplication) -> None:
    pressed: list[bool] = []
    save, forget = button("Save", lambda: pressed.append(True), "primary"), button("Forget", name="Forget the key")
    save.click()
    assert pressed
    assert save.property("kind") == "primary"
    assert save.accessibleName() == "Save"
    assert forget.accessibleName() == "Forget the key"


def test_a_label_shows_what_looks_like_html_as_it_is(qapp: QApplication) -> None:
    words = label("<b>bold</b>", "muted", wraps=True)
    assert words.textFormat() is Qt.TextFormat.PlainText
    assert words.wordWrap()
