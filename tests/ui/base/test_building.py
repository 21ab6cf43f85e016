"""Rows, columns, labels and buttons as every window builds them."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QBoxLayout, QWidget

from kvchat.ui.base.building import STRETCH, button, column, label, row


def test_a_column_holds_its_parts_in_order(qapp: QApplication) -> None:
    ground, first, second = QWidget(), label("first"), label("second")
    inner = row(second, STRETCH, spacing=3)
    made = column(first, 12, (inner, 1), on=ground, spacing=5, margins=(1, 2, 3, 4))
    assert ground.layout() is made
    assert made.count() == 3
    assert made.stretch(2) == 1
    assert second.parent() is ground
    assert inner.spacing() == 3
    assert made.spacing() == 5
    assert (made.contentsMargins().left(), made.contentsMargins().bottom()) == (1, 4)
    assert made.itemAt(1).sizeHint().height() == 12


def test_a_part_has_its_stretch_and_its_place(qapp: QApplication) -> None:
    ground, wide = QWidget(), label("wide")
    made: QBoxLayout = row((wide, 2, Qt.AlignmentFlag.AlignTop), on=ground, margins=0)
    assert made.stretch(0) == 2
    assert made.itemAt(0).alignment() == Qt.AlignmentFlag.AlignTop
    assert made.contentsMargins().isNull()


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
