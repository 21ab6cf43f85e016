from __future__ import annotations

import pytest

from kvchat.settings import GB
from kvchat.ui.widgets.entries import DAYS, GIGABYTES, MINUTES, TOKENS, Notation


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
