"""Reasons round-trip through storage and are worded in any language."""

import json
import string
from dataclasses import asdict

import pytest

from kvchat.text.language import set_language
from kvchat.text.reasons import Reason, ReasonCode, parse_reason

NESTED = Reason(
    ReasonCode.SET_ASIDE,
    {"reason": Reason(ReasonCode.OTHER_SETTINGS, {"settings": (Reason(ReasonCode.KV_TYPE_K), "top_p")})},
)


def named_places(sentence: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(sentence) if name]


@pytest.mark.parametrize("code", ReasonCode)
def test_every_reason_round_trips(code: ReasonCode) -> None:
    places = {name: (1_002, "a name", NESTED)[at % 3] for at, name in enumerate(named_places(code.sentence))}
    reason = Reason(code, places)
    assert parse_reason(json.loads(json.dumps(asdict(reason)))) == reason
    assert reason.text == reason.english
    assert "{" not in reason.text
    assert not named_places(code.general), "the general form has no values"


def test_nested_reasons() -> None:
    assert NESTED.english == "its memory was discarded: saved with different engine settings (K cache type, top_p)"
    assert Reason(ReasonCode.DISK_FULL).as_sentence == "The disk is full."


def test_reason_in_the_current_language(catalogues: None) -> None:
    set_language("de")
    reason = Reason(ReasonCode.ERROR, {"message": (Reason(ReasonCode.OTHER_MODEL), 5_000)})
    assert reason.text == "mit einem anderen Modell gespeichert, 5.000"
    assert reason.english == "saved with a different model, 5,000"


@pytest.mark.parametrize(
    "stored",
    [
        *(None, "the first reply", [], {"code": "hollow"}, {"code": "of-a-newer-kvchat", "places": {}}),
        {"code": "set-aside", "places": {"reason": {"code": "of-a-newer-kvchat", "places": {}}}},
        {"code": "set-aside", "places": {"reason": None}},
    ],
)
def test_invalid_stored_reason_is_none(stored: object) -> None:
    assert parse_reason(stored) is None
