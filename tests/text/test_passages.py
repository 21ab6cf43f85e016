"""Passages of long documents: places, languages, limits, and finding them again."""

from itertools import pairwise

import pytest

from kvchat.text.passages import MAX_PASSAGE_BYTES, Index, join_neighbours, quote_passage, quoted_ranges, split

BOOK = """THE HERON

CHAPTER I. Of lakes

{first}

The heron stands in the lake and waits for perch.

## Nests

They nest in tall pines.\f
A second page tells of storks.
"""


def test_passages_are_cut_at_headings_and_know_their_place() -> None:
    book = BOOK.format(first="\n\n".join(f"Paragraph {n} is about reeds and other plants." * 3 for n in range(20)))
    passages = split(book)
    assert passages[0].headings == ("CHAPTER I. Of lakes",)
    nests = next(passage for passage in passages if "pines" in book[passage.start : passage.end])
    assert nests.headings[-1] == "Nests"
    line = book[: nests.start].count("\n") + 1
    assert nests.place.endswith(f"page 1, lines {line}-{nests.last_line}")
    assert book.split("\n")[line - 1] == "## Nests"


@pytest.mark.parametrize(
    "text",
    [
        "word " * 9000,
        "字" * 9000,
        "Ein Satz. " * 3000,
        "x" * 9000,
        "a\n" * 9000,
        "LAKE\n\n" * 900,
        "# " * 90_000 + "x",
        "",
    ],
)
def test_every_character_is_in_one_passage_of_bounded_size(text: str) -> None:
    passages = split(text)
    assert all(len(text[p.start : p.end].encode()) <= MAX_PASSAGE_BYTES for p in passages)
    assert all(first.end <= second.start for first, second in pairwise(passages))
    assert "".join("".join(text[p.start : p.end].split()) for p in passages) == "".join(text.split())


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Where do herons nest?", "The heron builds its nest in pines."),
        ("Wo schläft der Reiher?", "Der Reiher schlaft im Wald."),
        ("青鷺はどこに巣を作りますか", "青鷺は松の木に巣を作る。"),
        ("왜가리는 어디에 둥지를 틀까?", "왜가리는 소나무에 둥지를 튼다."),
        ('What "is (a) NEAR/3 stork* -?', "A stork is a bird."),
    ],
)
def test_best_passage_comes_first_in_any_script(question: str, expected: str) -> None:
    filler = [f"Paragraph {number} tells of rivers, 河, 강, and the sea. " * 12 for number in range(40)]
    text = "\n\n".join([*filler[:25], expected, *filler[25:]])
    best = Index(text).rank(question, 3)[0]
    assert expected in text[best.start : best.end]


def test_question_without_words_finds_nothing() -> None:
    assert Index("The heron stands.").rank("?! …", 5) == []


def test_quoted_passages_are_found_again_and_neighbours_are_joined() -> None:
    text = "\n\n".join(f"Line {number} of the heron book. " * 12 for number in range(30))
    passages = split(text)
    joined = join_neighbours(text, [passages[7], passages[2], passages[3]])
    assert [(p.start, p.end) for p in joined] == [
        (passages[2].start, passages[3].end),
        (passages[7].start, passages[7].end),
    ]
    quotes = "\n\n".join(quote_passage(text, passage) for passage in joined)
    assert list(quoted_ranges(quotes, text)) == [(p.start, p.end) for p in joined]
    assert list(quoted_ranges("[Nowhere, lines 9999-9999]\nnot in it", text)) == []
    second = split(twice := f"{text}\n\n{text}")[-1]
    assert list(quoted_ranges(quote_passage(twice, second), twice)) == [(second.start, second.end)]
