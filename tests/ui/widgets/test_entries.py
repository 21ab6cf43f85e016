from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from kvchat.settings import GB, Settings
from kvchat.ui.base.theme import Look
from kvchat.ui.widgets.entries import DAYS, GIGABYTES, MINUTES, TOKENS, Notation
from kvchat.ui.widgets.text_search import ClearableField
from kvchat.words.language import LANGUAGES, _, speak


@pytest.mark.parametrize(
    ("notation", "text", "value"),
    [
        (TOKENS, "32768", 32_768),
        (TOKENS, "32,768 tokens", 32_768),
        (TOKENS, "32 768", 32_768),
        (TOKENS, "32K", 32_768),
        (DAYS, "90 days", 90),
        (DAYS, "1", 1),
        (MINUTES, "15 min", 15),
        (GIGABYTES, "20", 20 * GB),
        (GIGABYTES, "7.5 GB", 7_500_000_000),
        (GIGABYTES, "7,5", 7_500_000_000),
        (GIGABYTES, "1,500", 1500 * GB),
        (GIGABYTES, ".5", GB // 2),
        (GIGABYTES, "500 MB", 500_000_000),
        (GIGABYTES, "2tb", 2000 * GB),
    ],
)
def test_reads_what_people_write(notation: Notation, text: str, value: int) -> None:
    assert notation.read(text) == value
    assert notation.read(notation.write(value)) == value


@pytest.mark.parametrize(
    ("notation", "text"),
    [
        (TOKENS, "many"),
        (TOKENS, "-5"),
        (TOKENS, "3.5K"),
        (DAYS, "1.5"),
        (MINUTES, "soon"),
        (GIGABYTES, "1.2.3"),
        (GIGABYTES, "20 KB"),
    ],
)
def test_refuses_the_rest_with_an_example(notation: Notation, text: str) -> None:
    with pytest.raises(ValueError, match="such as"):
        notation.read(text)


@pytest.mark.parametrize("chosen", LANGUAGES)
def test_reads_the_units_that_stand_beside_the_fields_in_every_language(chosen: str, catalogues: None) -> None:
    assert speak(chosen) == chosen
    for notation, value in ((TOKENS, 32_768), (DAYS, 90), (MINUTES, 1500), (GIGABYTES, 7_500_000_000)):
        written = notation.write(value)
        assert notation.read(written) == value
        assert notation.read(f"{written} {_(notation.unit)}") == value


def test_what_empties_a_field_grows_with_the_text(look: Look, qtbot: QtBot) -> None:
    field = ClearableField(look, "Search", "Search…")
    qtbot.addWidget(field)
    field.show()
    assert field.empty.isHidden()
    qtbot.keyClicks(field, "bridge")
    small = field.empty.size(), field.empty.iconSize()
    look.follow(replace(Settings(), zoom=200))
    assert (field.empty.size(), field.empty.iconSize()) == (small[0] * 2, small[1] * 2)
    qtbot.mouseClick(field.empty, Qt.MouseButton.LeftButton)
    assert field.text() == ""
    assert field.empty.isHidden()
