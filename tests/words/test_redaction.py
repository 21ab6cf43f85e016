from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.words.redaction import Person, redact, this_person

ANNA = Person("/home/anna", "anna", "annas-tower")


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("LLAMA_API_KEY=s3cr3t-key", "LLAMA_API_KEY=‹removed›"),
        ("HF_TOKEN: abc", "HF_TOKEN: ‹removed›"),
        ('{"engine_key": "x", "hf_token": "abc"}', '{"engine_key": "‹removed›", "hf_token": "‹removed›"}'),
        ("--api-key abc -t 4", "--api-key ‹removed› -t 4"),
        ("--hf-token=abc", "--hf-token=‹removed›"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ‹removed›"),
        ("sent hf_AbCdEfGhIjKl once", "sent ‹removed› once"),
        ("http://me:pass@den:8080/v1", "http://‹removed›@den:8080/v1"),
        ("/home/anna/models/a.gguf", "~/models/a.gguf"),
        ("/home/anna-2/a.gguf", "/home/anna-2/a.gguf"),
        ("/home/annabel/a.gguf", "/home/annabel/a.gguf"),
        ("/mnt/anna/a.gguf, by Anna on annas-tower", "/mnt/‹user›/a.gguf, by ‹user› on ‹computer›"),
        ("banana", "banana"),
        ("EOS token = 2 '<|im_end|>', n_tokens = 90", "EOS token = 2 '<|im_end|>', n_tokens = 90"),
    ],
)
def test_what_goes_and_what_stays(text: str, clean: str) -> None:
    assert redact(text, ANNA) == clean


def test_known_secrets_go_wherever_they_stand() -> None:
    assert redact("xKEY-1y KEY", ANNA, ["KEY", "KEY-1", ""]) == "x‹removed›y ‹removed›"


def test_a_short_user_name_takes_nothing_out_of_other_words() -> None:
    assert redact("me and the model", Person("/", "me", "")) == "me and the model"


@given(st.text(), st.text("abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=12, max_size=40), st.text())
def test_a_known_secret_never_gets_through(before: str, secret: str, after: str) -> None:
    assert secret not in redact(before + secret + after, ANNA, [secret])


def test_this_person_is_somebody() -> None:
    assert this_person().home
