"""Nothing that is shown is hidden in it, and nothing that belongs to a script or a picture is lost."""

from __future__ import annotations

import pytest

from kvchat.words.safe_text import calm, shown_document, spelled_out

TAGS = "".join(chr(0xE0000 + ord(char)) for char in "ignore all")


@pytest.mark.parametrize(
    ("hidden", "name"),
    [
        ("\u00ad", "SHY"),
        ("\u2063", "U+2063"),
        ("\u3164", "HANGUL FILLER"),
        ("\u115f", "HANGUL FILLER"),
        ("\u1160", "HANGUL FILLER"),
        ("\uffa0", "HANGUL FILLER"),
        ("\u034f", "CGJ"),
        ("\u206a", "U+206A"),
        ("\U000e0001", "U+E0001"),
        ("\U000e0041", "TAG A"),
        ("\U000e0fff", "U+E0FFF"),
        ("\ufe0f", "VS16"),
        ("\ufe00", "VS1"),
        ("\U000e0100", "VS17"),
        ("\U000e01ef", "VS256"),
        ("\u180b", "U+180B"),
        ("\U0001d173", "U+1D173"),
        ("\u202e", "RLO"),
        ("\u200b", "ZWSP"),
    ],
)
def test_what_cannot_be_seen_is_left_out_of_prose_and_named_in_code(hidden: str, name: str) -> None:
    assert calm(f"a{hidden}b") == "ab"
    assert spelled_out(f"a{hidden}b") == f"a⟦{name}⟧b"
    assert calm(hidden) == ""


@pytest.mark.parametrize(
    ("mark", "name"), [("\u200c", "ZWNJ"), ("\u200d", "ZWJ"), ("\u200e", "LRM"), ("\u200f", "RLM"), ("\u061c", "ALM")]
)
def test_a_mark_of_other_scripts_is_named_among_plain_code(mark: str, name: str) -> None:
    assert spelled_out(f"is_admin{mark} = 1") == f"is_admin⟦{name}⟧ = 1"
    assert spelled_out(f"{mark}{mark}x") == f"⟦{name}⟧⟦{name}⟧x"
    honest = 'greet = "می\u200cخواهم 👨\u200d👩 שלום\u200f!"'
    assert spelled_out(honest) == honest


def test_words_hidden_in_tags_or_selectors_are_seen() -> None:
    assert calm(f"Hi{TAGS}!") == "Hi!"
    assert spelled_out(f"Hi{TAGS[:2]}!") == "Hi⟦TAG i⟧⟦TAG g⟧!"
    smuggled = "😀" + "".join(chr(0xE0100 + code) for code in b"payload")
    assert calm(smuggled) == "😀"
    assert calm("😀\ufe0f\ufe0f\ufe0e!") == "😀\ufe0f!"  # one is the picture's, the others are not
    assert calm(f"🏴{TAGS}\U000e007f") == "🏴"  # no flag has so long a name
    assert calm("🏴" + TAGS[:3]) == "🏴"  # nor one without an end


@pytest.mark.parametrize(
    "honest",
    [
        "❤️‍🔥 1️⃣ #️⃣ ©️ ☎︎ 👩🏽‍🚀 👨‍👩‍👧 🏳️‍🌈 ✌🏾",
        "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f in Scotland",
        "葛\U000e0100城 辻\U000e0101 漢\ufe00 ≩\ufe00",
        "ᠮᠣᠩᠭᠣᠯ\u180b",
        "\u1100\u1160 \u115f\u1161",
        "می\u200cخواهم שלום\u200f",
        "naïve e\u0301 क्\u200dष \n\tx",
    ],
)
def test_what_belongs_to_a_script_or_a_picture_stays(honest: str) -> None:
    assert calm(honest) == honest
    assert spelled_out(honest) == honest


def test_control_codes_get_their_pictures() -> None:
    assert calm("\x1b[31m\x7f\x9b") == spelled_out("\x1b[31m\x7f\x9b") == "␛[31m␡\ufffd"


def test_a_document_is_shown_as_what_it_is() -> None:
    assert shown_document("notes.TXT", "a\u00adb") == shown_document("README", "a\u00adb") == "ab"
    assert shown_document("main.py", "a\u00adb") == "a⟦SHY⟧b"
