"""The language of kvchat, and formats of sizes, times and counts."""

import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kvchat.errors import KvchatError
from kvchat.text import formatting, language
from kvchat.text.formatting import (
    format_age,
    format_datetime,
    format_duration,
    format_estimate,
    format_rough_duration,
    format_size,
    format_size_of,
    format_tokens,
)
from kvchat.text.language import (
    current_language,
    format_number,
    join_list,
    join_parts,
    join_sentences,
    plural,
    punctuation,
    set_language,
)


@pytest.fixture(autouse=True)
def english_again() -> Iterator[None]:
    yield
    set_language("en")


@pytest.fixture
def german(catalogues: None) -> None:
    assert set_language("de") == "de"


def test_language_from_environment_or_desktop(monkeypatch: pytest.MonkeyPatch) -> None:
    languages = {"de_AT.UTF-8": "de", "zh_CN": "zh_Hans", "zh-Hant-HK": "zh_Hant", "zh_TW.UTF-8": "zh_Hant"}
    languages |= {"zh": "zh_Hans", "C.UTF-8": "en", "pl:fr_FR@euro": "fr", "pl_PL": "en"}
    for variable, expected in languages.items():
        # Only Python's environment: the C library keeps its language, and an error was Polish in a later test.
        monkeypatch.setattr(os, "environ", {"LANGUAGE": variable})
        assert set_language("system", ["ko-KR"]) == expected == current_language()
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(sys, "platform", "linux")  # Windows always has a language
    assert set_language("system", ["pl-PL", "ja-JP"]) == "ja"
    assert set_language("es", ["ja-JP"]) == "es"


def test_language_without_a_catalogue_falls_back_to_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "CATALOGUES", tmp_path)
    set_language("de")
    assert language._("Quit") == "Quit"
    assert language._("") == ""


def test_numbers_in_english() -> None:
    assert format_number(1204) == "1,204"
    assert plural(1, "{count} chat of {whose}", "{count} chats of {whose}", whose="Ada") == "1 chat of Ada"
    for count, words in ((0, "0 chats were"), (1, "1 chat was"), (1204, "1,204 chats were")):
        assert plural(count, "{count} chat was", "{count} chats were") == words


def test_join_sentences() -> None:
    assert join_sentences("The disk is full", "", "Nothing was saved.", "Make room") == (
        "The disk is full. Nothing was saved. Make room"
    )
    assert join_sentences("", "") == ""
    assert str(KvchatError("It cannot be kept", "The disk is full.")) == "It cannot be kept. The disk is full."
    set_language("ja")
    assert join_sentences("ディスクがいっぱいです", "保存されませんでした。", "空けてください。") == (
        "ディスクがいっぱいです。保存されませんでした。空けてください。"
    )
    assert join_sentences("No space left on device.", "空けてください。") == "No space left on device. 空けてください。"
    set_language("ko")
    assert join_sentences("하나입니다", "둘입니다.") == "하나입니다. 둘입니다."


@pytest.mark.usefixtures("catalogues")
def test_join_list_and_punctuation() -> None:
    assert join_list(("a", "", "b", "c")) == "a, b, c"
    assert join_list(()) == ""
    assert punctuation("; ") == "; "
    for chosen, told in (("de", "a, b"), ("ko", "a, b"), ("zh_Hans", "a、b"), ("zh_Hant", "a、b"), ("ja", "a、b")):
        set_language(chosen)
        assert join_list(["a", "b"]) == told
    assert punctuation("; ").join(["読み直し", "約2分"]) == "読み直し；約2分"


@pytest.mark.usefixtures("german")
def test_formats_in_german() -> None:
    assert format_number(1204.5, 1) == "1.204,5"
    assert formatting.format_size(3_136_000_000) == "3,1 GB"
    assert formatting.format_datetime(datetime(2026, 11, 22, 14, 5).astimezone()) == "22. November 2026, 14:05"
    assert plural(2, "{count} chat", "{count} chats") == "2 Chats"


def test_join_parts_keeps_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert join_parts(("Qwen3", "", "4.9 GB")) == "Qwen3 · 4.9 GB"
    monkeypatch.setattr(language._Current, "language", "he")
    assert join_parts(("Qwen3", "", "4.9 GB")) == "\u200f\u2068Qwen3\u2069 · \u20684.9 GB\u2069"


NOON, NIGHT = datetime(2026, 11, 20, 12, 0), datetime(2026, 11, 20, 1, 0)


def test_format_age() -> None:
    times = {timedelta(seconds=5): "just now", timedelta(minutes=5): "5 min ago", timedelta(hours=3): "3 h ago"}
    times |= {timedelta(days=1): "yesterday", timedelta(days=5): "5 days ago", timedelta(days=40): "11 Oct 2026"}
    assert {ago: format_age(NOON - ago, NOON) for ago in times} == times
    assert format_age(NIGHT - timedelta(minutes=90), NIGHT) == "1 h ago", "the evening is not yet yesterday"
    assert format_age(NIGHT - timedelta(hours=9), NIGHT) == "yesterday"


CASES: tuple[tuple[Callable[..., str], Any, str], ...] = (
    (format_rough_duration, (0, 7.6, 59.4, 59.6, 3599, 4800, 90_000), "1 s, 8 s, 59 s, 1 min, 1 h, 1 h 20 min, 25 h"),
    (
        format_estimate,
        (0.0, 36.4, 89.9, 185, 7400),
        "less than a second, about 36 s, about 90 s, about 3 min, about 2 h",
    ),
    (format_size, (0, 999, 1500, 9_960_000, 136_000_000), "0 bytes, 999 bytes, 1.5 KB, 10 MB, 136 MB"),
    (format_size, (999_960_000, 3.1e9), "1 GB, 3.1 GB"),
    (format_duration, (21.4, 312, 9_999, 34_600, 125_000), "21 ms, 0.31 s, 10.00 s, 34.6 s, 2 min 5 s"),
    (format_tokens, (812, 5_918, 4_000, 131_072), "812, 5.9K, 4K, 128K"),
    (format_datetime, (datetime(2026, 11, 2, 9, 5).astimezone(UTC),), "2 November 2026, 09:05"),
)


@pytest.mark.parametrize(("function", "values", "expected"), CASES)
def test_formats_of_times_sizes_and_counts(function: Callable[..., str], values: Any, expected: str) -> None:
    assert ", ".join(map(function, values)) == expected


def test_format_size_of() -> None:
    assert format_size_of(3_136_000_000, 20_000_000_000) == "3.1 of 20 GB"
    assert format_size_of(136_000_000, 20_000_000_000) == "136 MB of 20 GB"
