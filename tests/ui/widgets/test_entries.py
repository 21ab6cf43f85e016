import pytest

from kvchat.settings import GB
from kvchat.text.language import LANGUAGES, _, set_language
from kvchat.ui.widgets.entries import DAYS, GIGABYTES, MINUTES, TOKENS, Notation


@pytest.mark.parametrize(
    ("notation", "text", "value"),
    [
        (TOKENS, "32,768 tokens", 32_768),
        (TOKENS, "32K", 32_768),
        (DAYS, "90 days", 90),
        (GIGABYTES, "7.5 GB", 7_500_000_000),
        (GIGABYTES, "1,500", 1500 * GB),
        (GIGABYTES, ".5", GB // 2),
        (GIGABYTES, "500 MB", 500_000_000),
    ],
)
def test_reads_what_people_write(notation: Notation, text: str, value: int) -> None:
    assert notation.parse(text) == value
    assert notation.parse(notation.format(value)) == value


@pytest.mark.parametrize(
    ("notation", "text"), [(TOKENS, "-5"), (DAYS, "1.5"), (MINUTES, "soon"), (GIGABYTES, "1.2.3"), (GIGABYTES, "20 KB")]
)
def test_refuses_the_rest_with_an_example(notation: Notation, text: str) -> None:
    with pytest.raises(ValueError, match="such as"):
        notation.parse(text)


@pytest.mark.parametrize("chosen", LANGUAGES)
def test_reads_the_units_that_stand_beside_the_fields_in_every_language(chosen: str, catalogues: None) -> None:
    assert set_language(chosen) == chosen
    for notation, value in ((TOKENS, 32_768), (DAYS, 90), (MINUTES, 1500), (GIGABYTES, 7_500_000_000)):
        written = notation.format(value)
        assert notation.parse(written) == value
        assert notation.parse(f"{written} {_(notation.unit)}") == value
