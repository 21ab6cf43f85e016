"""Which language is spoken, and how counts, numbers and kept reasons are told in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path

import pytest

from kvchat.words import language, wording
from kvchat.words.language import beside, listed, mark, number, pgettext, sentences, several, speak, spoken


@pytest.fixture(autouse=True)
def english_again() -> Iterator[None]:
    yield
    speak("en")


@pytest.fixture
def german(catalogues: None) -> None:
    assert speak("de") == "de"


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ("de_AT.UTF-8", "de"),
        ("zh_CN", "zh_Hans"),
        ("zh-Hant-HK", "zh_Hant"),
        ("zh_TW.UTF-8", "zh_Hant"),
        ("zh", "zh_Hans"),
        ("C.UTF-8", "en"),
        ("pl:fr_FR@euro", "fr"),
        ("pl_PL", "en"),
    ],
)
def test_the_environment_says_which(wanted: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Python's alone: the C library keeps what it has once said, and an error of the system was Polish in a later test.
    monkeypatch.setattr(os, "environ", {"LANGUAGE": wanted})
    assert speak("system", ["ko-KR"]) == meant == spoken()


def test_without_a_word_in_the_environment_the_desktop_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_sentences_stand_beside_each_other_as_the_language_parts_them() -> None:
    assert sentences("The disk is full", "", "Nothing was saved.", "Make room") == (
        "The disk is full. Nothing was saved. Make room"
    )
    assert sentences("", "") == ""
    speak("ja")
    assert sentences("ディスクがいっぱいです", "保存されませんでした。", "空けてください。") == (
        "ディスクがいっぱいです。保存されませんでした。空けてください。"
    )
    assert sentences("No space left on device.", "空けてください。") == "No space left on device. 空けてください。"
    speak("ko")
    assert sentences("하나입니다", "둘입니다.") == "하나입니다. 둘입니다."


@pytest.mark.usefixtures("catalogues")
def test_things_are_listed_as_the_language_parts_them() -> None:
    assert listed(("a", "", "b", "c")) == "a, b, c"
    assert listed(()) == ""
    for chosen, told in (("de", "a, b"), ("ko", "a, b"), ("ja", "a、b"), ("zh_Hans", "a、b"), ("zh_Hant", "a、b")):
        speak(chosen)
        assert listed(["a", "b"]) == told


@pytest.mark.usefixtures("catalogues")
def test_what_parts_two_parts_is_as_wide_as_what_stands_around_it() -> None:
    assert mark("; ") == "; "
    speak("ja")
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
