"""Titles from a model's answer."""

import pytest

from kvchat.chat.record.titles import (
    MAX_CHARACTERS,
    TITLE_LENGTH,
    TITLE_REQUEST,
    is_title_complete,
    parse_title,
    title_from,
)

SAID = "How do I bake pancakes without eggs on Sunday? 没有鸡蛋怎么做煎饼？ snake_case Use mashed bananas and soy milk."


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("Pancakes without eggs", "Pancakes without eggs"),
        ('"Pancakes without eggs."', "Pancakes without eggs"),
        ("**Title:** *Pancakes without eggs*", "Pancakes without eggs"),
        ('Here is one for your chat: "Pancakes without eggs".', "Pancakes without eggs"),
        ("# Chat title: “Pancakes without eggs”", "Pancakes without eggs"),
        ("1. `snake_case` pancakes", "snake_case pancakes"),
        ("标题\uff1a《没有鸡蛋的煎饼》。", "没有鸡蛋的煎饼"),
        ("<think>\nThe user wants pancakes.\n</think>\n\nEggless pancakes", "Eggless pancakes"),
        ("Pancakes Without Eggs: A Simple Guide to Making Them Fluffy and Sweet", "Pancakes Without Eggs"),
        ("Pan\x1b[31mcakes \u202ewithout\u2069 \u200beggs\x07", "Pan[31mcakes without eggs"),
    ],
)
def test_title_is_extracted_from_an_answer(answer: str, title: str) -> None:
    assert parse_title(answer, SAID) == title


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "\u202e\u200b",
        "Here is a title about pancakes:",
        TITLE_REQUEST,
        "A title for this chat",
        "The Unyielding Unshakeable",  # nobody said so
        "Pancakes can be made without any eggs if you use a banana",
        "煎饼" * MAX_CHARACTERS,
        "<think>Pancakes without eggs",
    ],
)
def test_unusable_answer_is_no_title(answer: str) -> None:
    assert parse_title(answer, SAID) is None


def test_title_is_complete_at_its_line_end() -> None:
    assert not is_title_complete("\n\n  Pancakes")
    assert not is_title_complete("<think>\nfirst\nsecond\n")
    assert not is_title_complete("<think>\nfirst\n</think>\n\nPancakes")
    assert not is_title_complete("Here is a title:\n")
    assert is_title_complete("Here is a title:\n\nPancakes\n")
    assert is_title_complete("Pancakes\n")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("  two\n\nlines\t of words ", "two lines of words"),
        ("", "New chat"),
        (
            "How does the second proof of the theorem use the lemma of chapter three?",
            "How does the second proof of the theorem use…",
        ),
        ("字" * 100, "字" * TITLE_LENGTH + "…"),
    ],
)
def test_title_from_first_words(text: str, title: str) -> None:
    assert title_from(text) == title
