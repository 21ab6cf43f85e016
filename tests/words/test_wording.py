"""Sizes, times and counts in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kvchat.errors import KvchatError
from kvchat.words.language import several
from kvchat.words.wording import (
    IN_PLAIN_WORDS,
    duration,
    moment_of,
    rough_duration,
    roughly,
    since,
    size,
    size_of,
    tokens_short,
)


def test_an_error_in_a_line_is_made_of_sentences() -> None:
    assert str(KvchatError("It cannot be kept", "The disk is full.", "Make room.")) == (
        "It cannot be kept. The disk is full. Make room."
    )
    assert str(KvchatError("It cannot be kept")) == "It cannot be kept"


def test_two_sizes_share_their_unit() -> None:
    assert size_of(3_136_000_000, 20_000_000_000) == "3.1 of 20 GB"
    assert size_of(136_000_000, 20_000_000_000) == "136 MB of 20 GB"


@pytest.mark.parametrize(
    ("ago", "words"),
    [
        (timedelta(seconds=5), "just now"),
        (timedelta(minutes=5), "5 min ago"),
        (timedelta(hours=3), "3 h ago"),
        (timedelta(days=1), "yesterday"),
        (timedelta(days=5), "5 days ago"),
        (timedelta(days=40), "11 Oct 2026"),
    ],
)
def test_how_long_ago(ago: timedelta, words: str) -> None:
    now = datetime(2026, 11, 20, 12, 0)
    assert since(now - ago, now) == words


def test_after_midnight_the_evening_is_not_yet_yesterday() -> None:
    now = datetime(2026, 11, 20, 1, 0)
    assert since(now - timedelta(minutes=90), now) == "1 h ago"
    assert since(now - timedelta(hours=9), now) == "yesterday"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "1 s"), (7.6, "8 s"), (59.4, "59 s"), (59.6, "1 min"), (3599, "1 h"), (4800, "1 h 20 min"), (90_000, "25 h")],
)
def test_how_long_still(seconds: float, words: str) -> None:
    assert rough_duration(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "less than a second"),
        (36.4, "about 36 s"),
        (89.9, "about 90 s"),
        (185, "about 3 min"),
        (7400, "about 2 h"),
    ],
)
def test_estimates_are_marked_and_no_finer_than_known(seconds: float, words: str) -> None:
    assert roughly(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (999_960_000, "1 GB"),
        (9_960_000, "10 MB"),
        (1_500, "1.5 KB"),
        (136_000_000, "136 MB"),
        (3.1e9, "3.1 GB"),
    ],
)
def test_sizes(count: float, words: str) -> None:
    assert size(count) == words


@pytest.mark.parametrize(
    ("ms", "words"), [(21.4, "21 ms"), (312, "0.31 s"), (34_600, "34.6 s"), (125_000, "2 min 5 s"), (9_999, "10.00 s")]
)
def test_durations(ms: float, words: str) -> None:
    assert duration(ms) == words


@pytest.mark.parametrize(("count", "words"), [(812, "812"), (5_918, "5.9K"), (4_000, "4K"), (131_072, "128K")])
def test_token_counts(count: int, words: str) -> None:
    assert tokens_short(count) == words


def test_a_moment() -> None:
    assert moment_of(datetime(2026, 11, 2, 9, 5).astimezone(UTC)) == "2 November 2026, 09:05"


def test_counts_of_things() -> None:
    assert several(1, "{count} chat", "{count} chats") == "1 chat"
    assert several(0, "{count} chat", "{count} chats") == "0 chats"
    assert several(1204, "{count} chat was", "{count} chats were") == "1,204 chats were"


@pytest.mark.parametrize("term", IN_PLAIN_WORDS)
def test_the_glossary_explains_every_term_that_has_a_plain_word(term: str) -> None:
    architecture = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text("utf-8")
    glossary = architecture.partition("## Words")[2].partition("\n## ")[0].replace("\n", " ")
    assert f"*{term}*" in glossary
