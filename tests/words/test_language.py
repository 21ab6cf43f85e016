"""Which language is spoken; how sizes, times, counts and kept reasons are told in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kvchat.errors import KvchatError
from kvchat.words import language, wording
from kvchat.words.language import beside, listed, mark, number, pgettext, sentences, several, speak, spoken
from kvchat.words.wording import duration, moment_of, rough_duration, roughly, since, size, size_of, tokens_short


@pytest.fixture(autouse=True)
def english_again() -> Iterator[None]:
    yield
    speak("en")


@pytest.fixture
def german(catalogues: None) -> None:
    assert speak("de") == "de"


def test_the_environment_says_which_and_without_it_the_desktop(monkeypatch: pytest.MonkeyPatch) -> None:
    meant = {
        "de_AT.UTF-8": "de",
        "zh_CN": "zh_Hans",
        "zh-Hant-HK": "zh_Hant",
        "zh_TW.UTF-8": "zh_Hant",
        "zh": "zh_Hans",
    }
    meant |= {"zh": "zh_Hans", "C.UTF-8": "en", "pl:fr_FR@euro": "fr", "pl_PL": "en"}
    for wanted, language_meant in meant.items():
        # Python's alone: the C library keeps what it has once said, and an error was Polish in a later test.
        monkeypatch.setattr(os, "environ", {"LANGUAGE": wanted})
        assert speak("system", ["ko-KR"]) == language_meant == spoken()
    monkeypatch.setattr(os, "environ", {})
    assert speak("system", ["pl-PL", "ja-JP"]) == "ja"
    assert speak("es", ["ja-JP"]) == "es"


def test_a_language_without_a_catalogue_here_is_english_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language, "CATALOGUES", tmp_path)
    speak("de")
    assert language._("Quit") == "Quit"
    assert language._("") == ""


def test_numbers_in_english() -> None:
    assert number(1204) == "1,204"
    assert number(1204.5, 1, grouped=False) == "1204.5"
    assert several(1, "{count} chat of {whose}", "{count} chats of {whose}", whose="Ada") == "1 chat of Ada"
    for count, words in ((0, "0 chats were"), (1, "1 chat was"), (1204, "1,204 chats were")):
        assert several(count, "{count} chat was", "{count} chats were") == words


def test_sentences_stand_beside_each_other_as_the_language_parts_them() -> None:
    assert sentences("The disk is full", "", "Nothing was saved.", "Make room") == (
        "The disk is full. Nothing was saved. Make room"
    )
    assert sentences("", "") == ""
    assert str(KvchatError("It cannot be kept", "The disk is full.")) == "It cannot be kept. The disk is full."
    speak("ja")
    assert sentences("ディスクがいっぱいです", "保存されませんでした。", "空けてください。") == (
        "ディスクがいっぱいです。保存されませんでした。空けてください。"
    )
    assert sentences("No space left on device.", "空けてください。") == "No space left on device. 空けてください。"
    speak("ko")
    assert sentences("하나입니다", "둘입니다.") == "하나입니다. 둘입니다."


@pytest.mark.usefixtures("catalogues")
def test_things_are_listed_and_parted_as_the_language_does() -> None:
    assert listed(("a", "", "b", "c")) == "a, b, c"
    assert listed(()) == ""
    assert mark("; ") == "; "
    for chosen, told in (("de", "a, b"), ("ko", "a, b"), ("zh_Hans", "a、b"), ("zh_Hant", "a、b"), ("ja", "a、b")):
        speak(chosen)
        assert listed(["a", "b"]) == told
    assert mark("; ").join(["読み直し", "約2分"]) == "読み直し；約2分"


@pytest.mark.usefixtures("german")
def test_numbers_sizes_and_dates_in_german() -> None:
    assert number(1204.5, 1) == "1.204,5"
    assert wording.size(3_136_000_000) == "3,1 GB"
    assert wording.duration(310) == "0,31 s"
    assert wording.day_of(date(2026, 11, 22)) == "22. November"
    assert wording.moment_of(datetime(2026, 11, 22, 14, 5).astimezone()) == "22. November 2026, 14:05"
    assert several(2, "{count} chat", "{count} chats") == "2 Chats"
    assert pgettext("between thousands", ",") == "."


def test_parts_beside_each_other_keep_their_own_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    assert beside(("Qwen3", "", "4.9 GB")) == "Qwen3 · 4.9 GB"
    monkeypatch.setattr(language._Spoken, "language", "he")
    assert beside(("Qwen3", "", "4.9 GB")) == "\u200f\u2068Qwen3\u2069 · \u20684.9 GB\u2069"


NOON, NIGHT = datetime(2026, 11, 20, 12, 0), datetime(2026, 11, 20, 1, 0)


def test_how_long_ago() -> None:
    times = {timedelta(seconds=5): "just now", timedelta(minutes=5): "5 min ago", timedelta(hours=3): "3 h ago"}
    times |= {timedelta(days=1): "yesterday", timedelta(days=5): "5 days ago", timedelta(days=40): "11 Oct 2026"}
    assert {ago: since(NOON - ago, NOON) for ago in times} == times
    assert since(NIGHT - timedelta(minutes=90), NIGHT) == "1 h ago", "the evening is not yet yesterday"
    assert since(NIGHT - timedelta(hours=9), NIGHT) == "yesterday"


CASES: dict[Callable[..., str], dict[Any, str]] = {
    rough_duration: {
        0: "1 s",
        7.6: "8 s",
        59.4: "59 s",
        59.6: "1 min",
        3599: "1 h",
        4800: "1 h 20 min",
        90_000: "25 h",
    },
    roughly: {0.0: "less than a second", 36.4: "about 36 s", 89.9: "about 90 s", 185: "about 3 min", 7400: "about 2 h"},
    size: {0: "0 bytes", 999: "999 bytes", 1500: "1.5 KB", 9_960_000: "10 MB", 136_000_000: "136 MB", 3.1e9: "3.1 GB"}
    | {999_960_000: "1 GB"},
    duration: {21.4: "21 ms", 312: "0.31 s", 9_999: "10.00 s", 34_600: "34.6 s", 125_000: "2 min 5 s"},
    tokens_short: {812: "812", 5_918: "5.9K", 4_000: "4K", 131_072: "128K"},
    moment_of: {datetime(2026, 11, 2, 9, 5).astimezone(UTC): "2 November 2026, 09:05"},
}


@pytest.mark.parametrize("say", CASES)
def test_times_sizes_and_counts_in_words(say: Callable[..., str]) -> None:
    assert size_of(3_136_000_000, 20_000_000_000) == "3.1 of 20 GB"
    assert size_of(136_000_000, 20_000_000_000) == "136 MB of 20 GB"
    assert {value: say(value) for value in CASES[say]} == CASES[say]
