"""Hidden characters are shown or dropped, legitimate marks stay, and secrets are removed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.text import safe_text
from kvchat.text.safe_text import redact, safe_code, safe_document, safe_prose

TAGS = "".join(chr(0xE0000 + ord(char)) for char in "ignore all")


HIDDEN = {"\u00ad": "SHY", "\u2063": "U+2063", "\u034f": "CGJ", "\u206a": "U+206A", "\u202e": "RLO", "\u200b": "ZWSP"}
HIDDEN |= dict.fromkeys("\u3164\u115f\u1160\uffa0", "HANGUL FILLER") | {"\u180b": "U+180B", "\U0001d173": "U+1D173"}
HIDDEN |= {"\U000e0001": "U+E0001", "\U000e0041": "TAG A", "\U000e0fff": "U+E0FFF"}
HIDDEN |= {"\ufe0f": "VS16", "\ufe00": "VS1", "\U000e0100": "VS17", "\U000e01ef": "VS256"}


def test_hidden_characters_in_prose_and_code() -> None:
    for hidden, name in HIDDEN.items():
        assert safe_prose(f"a{hidden}b") == "ab"
        assert safe_code(f"a{hidden}b") == f"a⟦{name}⟧b"
        assert safe_prose(hidden) == ""


def test_stray_marks_in_code() -> None:
    marks = {"\u200c": "ZWNJ", "\u200d": "ZWJ", "\u200e": "LRM", "\u200f": "RLM", "\u061c": "ALM"}
    for mark, name in marks.items():
        assert safe_code(f"is_admin{mark} = 1") == f"is_admin⟦{name}⟧ = 1"
        assert safe_code(f"{mark}{mark}x") == f"⟦{name}⟧⟦{name}⟧x"


def test_text_hidden_in_tags_or_selectors() -> None:
    assert safe_prose(f"Hi{TAGS}!") == "Hi!"
    assert safe_code(f"Hi{TAGS[:2]}!") == "Hi⟦TAG i⟧⟦TAG g⟧!"
    smuggled = "😀" + "".join(chr(0xE0100 + code) for code in b"payload")
    assert safe_prose(smuggled) == "😀"
    assert safe_prose("😀\ufe0f\ufe0f\ufe0e!") == "😀\ufe0f!"  # one is the picture's, the others are not
    assert safe_prose(f"🏴{TAGS}\U000e007f") == "🏴"  # no flag has so long a name
    assert safe_prose("🏴" + TAGS[:3]) == "🏴"  # nor one without an end


@pytest.mark.parametrize(
    "honest",
    [
        "❤️‍🔥 1️⃣ #️⃣ ©️ ☎︎ 👩🏽‍🚀 👨‍👩‍👧 🏳️‍🌈 ✌🏾",
        "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f in Scotland",
        "葛\U000e0100城 辻\U000e0101 漢\ufe00 ≩\ufe00",
        "ᠮᠣᠩᠭᠣᠯ\u180b",
        "\u1100\u1160 \u115f\u1161",
        "می\u200cخواهم שלום\u200f 👨\u200d👩",
        "naïve e\u0301 क्\u200dष \n\tx",
    ],
)
def test_legitimate_marks_stay(honest: str) -> None:
    assert safe_prose(honest) == honest
    assert safe_code(honest) == honest


def test_control_pictures_and_documents() -> None:
    assert safe_prose("\x1b[31m\x7f\x9b") == safe_code("\x1b[31m\x7f\x9b") == "␛[31m␡\ufffd"
    assert safe_document("notes.TXT", "a\u00adb") == safe_document("README", "a\u00adb") == "ab"
    assert safe_document("main.py", "a\u00adb") == "a⟦SHY⟧b"


def be_user(monkeypatch: pytest.MonkeyPatch, home: str, name: str, host: str) -> None:
    monkeypatch.setattr(safe_text.Path, "home", lambda: home)
    monkeypatch.setattr(safe_text.getpass, "getuser", lambda: name)
    monkeypatch.setattr(safe_text.socket, "gethostname", lambda: host)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("LLAMA_API_KEY=s3cr3t-key", "LLAMA_API_KEY=‹removed›"),
        ('{"engine_key": "x", "hf_token": "abc"}', '{"engine_key": "‹removed›", "hf_token": "‹removed›"}'),
        ("--api-key abc -t 4", "--api-key ‹removed› -t 4"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ‹removed›"),
        ("sent hf_AbCdEfGhIjKl once", "sent ‹removed› once"),
        ("http://me:pass@den:8080/v1", "http://‹removed›@den:8080/v1"),
        ("/home/anna/models/a.gguf", "~/models/a.gguf"),
        ("/home/anna-2/a.gguf", "/home/anna-2/a.gguf"),
        ("/mnt/anna/a.gguf, by Anna on annas-tower", "/mnt/‹user›/a.gguf, by ‹user› on ‹computer›"),
        ("EOS token = 2 '<|im_end|>', n_tokens = 90", "EOS token = 2 '<|im_end|>', n_tokens = 90"),
    ],
)
def test_redact(monkeypatch: pytest.MonkeyPatch, text: str, clean: str) -> None:
    be_user(monkeypatch, "/home/anna", "anna", "annas-tower")
    assert redact(text) == clean


def test_redact_known_secrets_but_not_short_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert redact("xKEY-1y KEY", ["KEY", "KEY-1", ""]) == "x‹removed›y ‹removed›"
    be_user(monkeypatch, "/", "me", "")
    assert redact("me and the model") == "me and the model"


@given(st.text(), st.text("abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=12, max_size=40), st.text())
def test_redact_always_removes_a_known_secret(before: str, secret: str, after: str) -> None:
    assert secret not in redact(before + secret + after, [secret])
